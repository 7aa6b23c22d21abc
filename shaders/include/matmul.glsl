// What both matmul algorithms share: buffers, push block, where the matrices of a batch lie, and the stored value.
// T is the element type, LOAD what one access of a or b reads: T, or four of them.
// A long k is done in parts, one dispatch after the other; all but the first have ADDS 1 and add to the result.
// a: (batch, m, k) and b: (batch, k, n) by strides, result: (batch, m, n), contiguous but for rows of result_row words.
// bias, by HAS_BIAS: 1: (n), one value per column; 2: (bias_rows, a multiple of m), one per row of all matrices in turn.
layout(set = 0, binding = 0) readonly buffer A { LOAD a[]; };
layout(set = 0, binding = 1) readonly buffer B { LOAD b[]; };
layout(set = 0, binding = 2) readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 3) buffer Result { T result[]; };
layout(push_constant) uniform Push {
    uint a_offset;
    uint b_offset;
    uint bias_offset;
    uint result_offset;
    uint batches;
    uint m;
    uint n;
    uint k;
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

// First words of the matrices a, b and result of one batch.
uvec3 matrices(uint batch) {
    uvec3 at = uvec3(a_offset, b_offset, result_offset + batch * m * result_row);
    for (uint axis = 0u; axis < 3u; ++axis) {
        const uint next = batch / batch_sizes[axis];
        const uint index = batch - next * batch_sizes[axis];
        at.xy += index * uvec2(a_batch[axis], b_batch[axis]);
        batch = next;
    }
    at.xy += batch * uvec2(a_batch[3], b_batch[3]);
    return at;
}

void store(uint first, uint row, uint column, T value) {
    if (row < m && column < n) {
        const uint at = first + row * result_row + column;
        if (HAS_BIAS == 1u) value += bias[bias_offset + column];
        if (HAS_BIAS == 2u) value += bias[bias_offset + (first - result_offset) / result_row % bias_rows + row];
        if (ADDS != 0u) value += result[at];
        result[at] = value;
    }
}
