// Four elements of a or b at once, for matrices whose rows, columns and batches start at multiples of four, or were packed so.
#ifdef HALF
#define LOAD uvec2
#else
#define LOAD T4
#endif
#include "matmul.glsl"

T4 four(LOAD words) {
#ifdef HALF
    return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
#else
    return words;
#endif
}

// Four rows of b at four columns; at: in steps of four elements.
mat4 load_b(uvec4 at) {
    const mat4 read = mat4(four(b[at.x]), four(b[at.y]), four(b[at.z]), four(b[at.w]));
    return B_ALONG_N != 0u ? read : transpose(read);
}

// Where load_b reads first: four rows at a column, or four columns from the first row.
uvec4 place_b(uint first, uint column) {
    const uvec4 steps = uvec4(0u, 1u, 2u, 3u);
    if (B_ALONG_N != 0u) return (first + min(column, (n - 1u) / 4u * 4u) + steps * b_row) / 4u;
    return (first + min(column + steps, uvec4(n - 1u)) * b_column) / 4u;
}
