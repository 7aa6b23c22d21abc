// Shared by the matmul kernels: buffers, push block, where the matrices of a batch lie, and the stored value.
// T is the element type, T4 four of them, LOAD what one access of a or b reads: T, T4, or float16 packed in words; of these
// FP16 is defined. LOAD_OF_B: that of b, where it is another one; FP16_B: b alone is float16. Sizes and strides count elements. A long k
// is done in parts, one dispatch after the other; all but the first have `adds` 1 and add to the result.
// a: (batch, m, k) and b: (batch, k, n) by strides, result: (batch, m, n), contiguous but for rows of result_row elements.
// bias, by has_bias: 1: (n), one value per column; 2: (bias_rows, a multiple of m), one per row of all matrices in turn;
// 3 (NUMBERS): (batches), no values but the number of the matrix of b by which each matrix of a is multiplied, matrices of b being
// b_batch[0] apart; -1: by none, its result is 0.
// VEC4: the bias, the result and the residual are read and written as RESULT, four at once, by functions of matmul_load_vec4.glsl.
#ifdef FP16
#include "fp16.glsl"
const uint PER_WORD = 2u;
#else
const uint PER_WORD = 1u;
#endif
#ifdef FP16_B
const uint PER_WORD_OF_B = 2u;
#else
const uint PER_WORD_OF_B = PER_WORD;
#endif
#ifndef LOAD_OF_B
#define LOAD_OF_B LOAD
#endif
#ifdef VEC4
#define RESIDUAL RESULT
#else
#define RESIDUAL uint
#ifdef FP16
#define RESULT uint
#else
#define RESULT T
#endif
#endif
layout(set = 0, binding = 0) readonly buffer A { LOAD a[]; };
layout(set = 0, binding = 1) readonly buffer B { LOAD_OF_B b[]; };
layout(set = 0, binding = 2) readonly buffer Bias { RESULT bias[]; };
layout(set = 0, binding = 3) buffer Result { RESULT result[]; };
layout(set = 0, binding = 4) readonly buffer Residual { RESIDUAL residual[]; } residual_buffer;
layout(push_constant) uniform Push {
    uint a_offset;
    uint b_offset;
    uint bias_offset;
    uint result_offset;
    uint residual_offset;
    uint batches;
    uint m;
    uint n;
    uint k;
    uint has_bias;
    uint adds;
    uint result_row;
    uint bias_rows;
    uint a_row;
    uint a_column;
    uint b_row;
    uint b_column;
    uint batch_sizes[3];
    uint a_batch[4];
    uint b_batch[4];
};
#include "epilogue.glsl"

const uint NUMBERS = 3u;

#ifdef VEC4
#define NUMBER_OF(batch) bias[(bias_offset + (batch)) / 4u][(bias_offset + (batch)) % 4u]
#else
#define NUMBER_OF(batch) bias[bias_offset + (batch)]
#endif

#define NEXT_AXIS(axis) { \
    const uint next = batch / batch_sizes[axis]; \
    at.xy += (batch - next * batch_sizes[axis]) * uvec2(a_batch[axis], b_batch[axis]); \
    batch = next; }

// First elements of the matrices a, b and result of one batch, and the steps along k.
uvec4 matrices(uint batch) {
    uvec4 at = uvec4(uvec3(a_offset, b_offset, result_offset) * uvec3(PER_WORD, PER_WORD_OF_B, PER_WORD), k);
    at.z += batch * m * result_row;
#ifndef FP16
    const bool numbered = has_bias == NUMBERS;
    const float number = float(NUMBER_OF(numbered ? batch : 0u));
#endif
    NEXT_AXIS(0) NEXT_AXIS(1) NEXT_AXIS(2)
    at.xy += batch * uvec2(a_batch[3], b_batch[3]);
#ifndef FP16
    at.y = numbered ? b_offset + uint(max(number, 0.0)) * b_batch[0] : at.y;
    at.w = numbered && number < 0.0 ? 0u : k;
#endif
    return at;
}

// Tile number `tile` of rows of a result by quantized weights: where its matrix of b starts, and the steps along k. b has several
// matrices, b_batch[0] apart, if the bias is of NUMBERS, of which there is one for each tile then.
uvec2 matrix_of_tile(uint tile) {
    const bool numbered = has_bias == NUMBERS;
    const float number = float(NUMBER_OF(numbered ? tile : 0u));
    return numbered ? uvec2(b_offset + uint(max(number, 0.0)) * b_batch[0], number < 0.0 ? 0u : k) : uvec2(b_offset, k);
}

#ifndef VEC4
#ifdef FP16
// The input of the epilogue: the sums of the products, with the bias, of whole vec4s of columns.
T4 finish(T4 values, uint column) {
    const uint word = bias_offset + column / 2u;
    return has_bias != 0u ? values + fp16x4_to_vec4(uvec2(bias[word], bias[word + 1u])) : values;
}
#else
// The input of the epilogue: the sum of the products, with the bias and the parts before.
// at: the element of the result; first: that of its matrix.
T finish(T value, uint at, uint first, uint row, uint column) {
    if (has_bias != 0u && has_bias != NUMBERS) {
        const uint matrix = (first - result_offset) / result_row;
        value += bias[bias_offset + (has_bias == 1u ? column : matrix % bias_rows + row)];
    }
    if (adds != 0u) value += result[at];
    return value;
}
#endif

// Four neighbours of a row; of float16 they are two words.
void store4(uint first, uint row, uint column, T4 values) {
    if (row >= m || column >= n) return;
    const uint start = first + row * result_row;
    const uint at = start + column;
#ifdef FP16
    values = epilogue(finish(values, column), uvec4(at, at, at + 2u, at + 2u));
    result[at / 2u] = float_to_fp16(values.x) | float_to_fp16(values.y) << 16;
    result[at / 2u + 1u] = float_to_fp16(values.z) | float_to_fp16(values.w) << 16;
#else
    const uvec4 own = min(column + uvec4(0u, 1u, 2u, 3u), uvec4(n - 1u));
    values = T4(
        finish(values.x, start + own.x, first, row, own.x), finish(values.y, start + own.y, first, row, own.y),
        finish(values.z, start + own.z, first, row, own.z), finish(values.w, start + own.w, first, row, own.w)
    );
    values = epilogue(values, start + own);
    result[at] = values.x;
    if (column + 1u < n) result[at + 1u] = values.y;
    if (column + 2u < n) result[at + 2u] = values.z;
    if (column + 3u < n) result[at + 3u] = values.w;
#endif
}
#endif
