// Shared by the int8 matmul kernels: words of four codes with a sign, and the correction by zero points.
//
//   sum of (a - a_zero) * (b - b_zero) = sum of a * b - a_zero * sum of b - b_zero * (sum of a - count * a_zero)
//
// With DOT a device multiplies two words at once (SPV_KHR_integer_dot_product: OpSDot, 4450, of packed words, 6018 and 6019).
layout(set = 0, binding = 0) readonly buffer A { uint a[]; };
layout(set = 0, binding = 1) readonly buffer B { uint b[]; };
layout(set = 0, binding = 2) readonly buffer Zero { int zero[]; };
layout(set = 0, binding = 3) writeonly buffer Result { int result[]; };
layout(push_constant) uniform Push {
    uint a_offset;
    uint b_offset;
    uint zero_offset;
    uint result_offset;
    uint rows;
    uint columns;
    uint depth;
    uint count;
    uint zero_step;
    uint row_step;
    uint column_step;
    uint words_first;
    uint result_first;
    uint first_row;
    uint places;
    uint image_step;
};
#include "int8_result.glsl"

#ifdef DOT
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int dot_of_words(int a, int b, spirv_literal int packed);
#define CODES int
int codes(uint word) {
    return int(word);
}
int summed(int left, int right) {
    return dot_of_words(left, right, 0);
}
const int ONES = 0x01010101;
#else
#define CODES ivec4
ivec4 codes(uint word) {
    return ivec4(int(word << 24), int(word << 16), int(word << 8), int(word)) >> 24;
}
int summed(ivec4 left, ivec4 right) {
    const ivec4 each = left * right;
    return each.x + each.y + each.z + each.w;
}
const ivec4 ONES = ivec4(1);
#endif

// The first word of a column, that of its sum; columns beyond the last one have those of another.
uint first_of(uint column) {
    const uint own = min(column, columns - 1u);
    return b_offset + words_first + own / 16u * 16u * (depth + 1u) + own % 16u;
}

uint row_of(uint row) {
    return a_offset + 4u + min(row, rows - 1u) * depth;
}

// at: what result_of says of the row. of_row: the sum of a.
void store(uint at, uint row, uint column, int sum, int of_row) {
    if (row >= rows || column >= columns) return;
    const int a_zero = int(a[a_offset]);
    const int b_zero = zero[zero_offset + column * zero_step];
    const int made = sum - a_zero * int(b[first_of(column)]) - b_zero * (of_row - int(count) * a_zero);
    result[at + column * column_step] = made;
}
