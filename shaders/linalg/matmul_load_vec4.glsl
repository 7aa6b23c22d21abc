// Four elements of a or b at once, for matrices whose rows, columns and batches start at multiples of four, or were packed so.
// With UNALIGNED a and b are read element by element, and lie as they like.
#include "load_vec4.glsl"
#ifdef UNALIGNED
#define LOAD float
#else
#define LOAD LOADED
#endif
#define RESULT VEC4_LOAD
#define VEC4
#include "matmul.glsl"

#ifndef UNALIGNED
// Four rows of b at four columns; at: in steps of four elements.
mat4 load_b(uvec4 at) {
    const mat4 read = mat4(as_vec4(b[at.x]), as_vec4(b[at.y]), as_vec4(b[at.z]), as_vec4(b[at.w]));
    return B_ALONG_N != 0u ? read : transpose(read);
}

// Where load_b reads first: four rows at a column, or four columns from the first row.
uvec4 place_b(uint first, uint column) {
    const uvec4 steps = uvec4(0u, 1u, 2u, 3u);
    if (B_ALONG_N != 0u) return (first + min(column, (n - 1u) / 4u * 4u) + steps * b_row) / 4u;
    return (first + min(column + steps, uvec4(n - 1u)) * b_column) / 4u;
}

#endif

// Four values of the bias of columns; 0 where there is none.
T4 bias_of_columns(uint column) {
    const bool has = has_bias == 1u;
    const T4 values = as_vec4(bias[has ? (bias_offset * PER_WORD + min(column, (n - 1u) / 4u * 4u)) / 4u : 0u]);
    return has ? values : T4(0);
}

// That of a row.
T bias_of_row(uint first, uint row) {
    const bool has = has_bias == 2u;
    const uint matrix = (first - result_offset * PER_WORD) / result_row;
    const uint place = has ? bias_offset * PER_WORD + matrix % max(bias_rows, 1u) + row : 0u;
    const T value = as_vec4(bias[place / 4u])[place % 4u];
    return has ? value : T(0);
}

// The result in four columns so far: the sum of the earlier parts of k.
T4 before(uint first, uint row, uint column) {
    const uvec4 at = first + row * result_row + min(column + uvec4(0u, 1u, 2u, 3u), uvec4(n - 1u));
    return T4(
        as_vec4(result[at.x / 4u])[at.x % 4u], as_vec4(result[at.y / 4u])[at.y % 4u],
        as_vec4(result[at.z / 4u])[at.z % 4u], as_vec4(result[at.w / 4u])[at.w % 4u]
    );
}

// Whether vec4s can be stored as they are.
bool stores_vec4() {
    return ((n | result_row | result_offset) & 3u) == 0u && adds == 0u;
}

void write_vec4(uint at, T4 values) {
    values = epilogue(values, uvec4(at));
#ifdef FP16
    result[at / 4u] = uvec2(
        float_to_fp16(values.x) | float_to_fp16(values.y) << 16, float_to_fp16(values.z) | float_to_fp16(values.w) << 16
    );
#else
    result[at / 4u] = values;
#endif
}

void store_vec4(uint first, uint row, uint column, T4 values) {
    if (column < n) write_vec4(first + row * result_row + column, values);
}

void store_each(uint first, uint row, uint column, T4 values) {
    const uint at = first + row * result_row + column;
    values = epilogue(values, elements(at, at - column + n - 1u));
#ifdef FP16
    for (uint i = 0u; i < 4u && column + i < n; i += 2u) {
        result[(at + i) / 4u][(at + i) / 2u % 2u] = float_to_fp16(values[i]) | float_to_fp16(values[i + 1u]) << 16;
    }
#else
    for (uint i = 0u; i < 4u && column + i < n; ++i) result[(at + i) / 4u][(at + i) % 4u] = values[i];
#endif
}

// Stores one four of sums of products, with the bias and the parts of k before. For GPUs.
void store_sum(uint first, uint row, uint column, T4 sum) {
    if (row >= m || column >= n) return;
    sum += bias_of_columns(column) + bias_of_row(first, row);
    if (stores_vec4()) {
        write_vec4(first + row * result_row + column, sum);
    } else {
        store_each(first, row, column, sum + (adds != 0u ? before(first, row, column) : T4(0)));
    }
}

// Stores `stores` vec4s of `values`, `wide` of them in a row, `apart` columns apart. Two loops of counts that no compiler knows:
// CPU drivers go through both sides of a branch, and take seconds over many stores written out.
#define STORE_TILE(at, row, column, values, stores, wide, apart) { \
    const uint whole = stores_vec4() ? stores : 0u; \
    for (uint i = 0u; i < whole; ++i) { \
        store_vec4(at, row + i / wide, column + i % wide * apart, values[i] + bias_of_row(at, row + i / wide)); \
    } \
    for (uint i = whole; i < stores; ++i) { \
        const uint to_row = row + i / wide, to_column = column + i % wide * apart; \
        const T4 sum = adds != 0u ? before(at, to_row, to_column) : T4(0); \
        store_each(at, to_row, to_column, values[i] + bias_of_row(at, to_row) + sum); \
    } }
