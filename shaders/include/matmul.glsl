// What the matmul algorithms share: buffers, push block, where the matrices of a batch lie, and the stored value.
// T is the element type, T4 four of them, LOAD what one access of a or b reads: T, T4, or float16 packed in words; of these
// HALF is defined. Sizes and strides count elements. A long k is done in parts, one dispatch after the other; all but the
// first have `adds` 1 and add to the result.
// a: (batch, m, k) and b: (batch, k, n) by strides, result: (batch, m, n), contiguous but for rows of result_row elements.
// bias, by has_bias: 1: (n), one value per column; 2: (bias_rows, a multiple of m), one per row of all matrices in turn.
// FOURS: the bias and the result are read and written as LOAD, too, by functions of matmul_four.glsl.
#ifdef HALF
#include "half.glsl"
const uint PER_WORD = 2u;
#else
const uint PER_WORD = 1u;
#endif
#ifdef FOURS
#define RESULT LOAD
#elif defined(HALF)
#define RESULT uint
#else
#define RESULT T
#endif
layout(set = 0, binding = 0) readonly buffer A { LOAD a[]; };
layout(set = 0, binding = 1) readonly buffer B { LOAD b[]; };
layout(set = 0, binding = 2) readonly buffer Bias { RESULT bias[]; };
layout(set = 0, binding = 3) buffer Result { RESULT result[]; };
layout(push_constant) uniform Push {
    uint a_offset;
    uint b_offset;
    uint bias_offset;
    uint result_offset;
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

// First elements of the matrices a, b and result of one batch.
uvec3 matrices(uint batch) {
    uvec3 at = uvec3(a_offset, b_offset, result_offset) * PER_WORD;
    at.z += batch * m * result_row;
    for (uint axis = 0u; axis < 3u; ++axis) {
        const uint next = batch / batch_sizes[axis];
        const uint index = batch - next * batch_sizes[axis];
        at.xy += index * uvec2(a_batch[axis], b_batch[axis]);
        batch = next;
    }
    at.xy += batch * uvec2(a_batch[3], b_batch[3]);
    return at;
}

#ifndef FOURS
T element(RESULT words, uint at) {
#ifdef HALF
    return half_to_float(at % 2u == 0u ? words & 0xffffu : words >> 16);
#else
    return words;
#endif
}

// The value that is stored, from the sum of the products: everything that follows a product in its kernel happens here.
// at: the element of the result; first: that of its matrix.
T finish(T value, uint at, uint first, uint row, uint column) {
    if (has_bias != 0u) {
        const uint matrix = (first - result_offset * PER_WORD) / result_row;
        const uint place = bias_offset * PER_WORD + (has_bias == 1u ? column : matrix % bias_rows + row);
        value += element(bias[place / PER_WORD], place);
    }
    if (adds != 0u) value += element(result[at / PER_WORD], at);
    return value;
}

#ifndef HALF
void store(uint first, uint row, uint column, T value) {
    if (row < m && column < n) {
        const uint at = first + row * result_row + column;
        result[at] = finish(value, at, first, row, column);
    }
}
#endif

#ifdef T4
// Four neighbours of a row; of float16 their elements start words.
void store4(uint first, uint row, uint column, T4 values) {
#ifdef HALF
    if (row >= m) return;
    for (uint i = 0u; i < 4u && column + i < n; i += 2u) {
        const uint at = first + row * result_row + column + i;
        const float low = finish(values[i], at, first, row, column + i);
        const float high = finish(values[i + 1u], at + 1u, first, row, column + i + 1u);
        result[at / 2u] = float_to_half(low) | float_to_half(high) << 16;
    }
#else
    store(first, row, column, values.x);
    store(first, row, column + 1u, values.y);
    store(first, row, column + 2u, values.z);
    store(first, row, column + 3u, values.w);
#endif
}
#endif
#endif
