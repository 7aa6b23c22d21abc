#version 450
// result[m, n] = sum over k of a[m, k] * b[k, n] (+ bias), for every matrix of a batch, where m is so small that reading b bounds it.
// One workgroup computes ROWS rows of some columns, each invocation ROWS x 4 of them over a slice of k; slices then meet in shared
// memory. Lanes that follow each other read b along its contiguous axis, each four elements of four lines at once. For GPUs.
// Source: none.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 8, local_size_y = 16, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint ROWS = 1;
layout(constant_id = 4) const uint A_ALONG_K = 1;
layout(constant_id = 5) const uint B_ALONG_N = 1;
#ifdef FP16
#define LOAD uint
#define READ(x, at) unpackHalf2x16(x[(at) / 2u])[(at) % 2u]
#define WHOLE_FOUR(x, at) vec4(unpackHalf2x16(x[(at) / 2u]), unpackHalf2x16(x[(at) / 2u + 1u])) // they start words
#else
#define LOAD T
#define READ(x, at) x[at]
#define WHOLE_FOUR(x, at) T4(x[at], x[at + 1u], x[at + 2u], x[at + 3u])
#endif
#include "matmul.glsl"

const uint VEC4 = B_ALONG_N != 0u ? gl_WorkGroupSize.x : gl_WorkGroupSize.y; // of columns, in a group
const uint SLICES = B_ALONG_N != 0u ? gl_WorkGroupSize.y : gl_WorkGroupSize.x;
shared T4 slices[VEC4 * SLICES];

// Four neighbours of a line, of which those from `end` on are over an edge, and 0.
#define PART_FOUR(x, at, end) \
    T4(end > 0u ? READ(x, at) : T(0), end > 1u ? READ(x, at + 1u) : T(0), end > 2u ? READ(x, at + 2u) : T(0), \
       end > 3u ? READ(x, at + 3u) : T(0))

// Adds to four columns of a row what four steps along k give; lines of b: of a step, or of a column.
void add_steps(inout T4 sum, T4 left, T4 lines[4]) {
    for (uint j = 0u; j < 4u; ++j) {
        if (B_ALONG_N != 0u) {
            sum += left[j] * lines[j];
        } else {
            const T4 products = left * lines[j];
            sum[j] += products.x + products.y + (products.z + products.w);
        }
    }
}

void compute_tile(uvec4 at, uint row, uint column, uint own, uint slice) {
    T4 sums[ROWS];
    uint a_at[ROWS];
    for (uint i = 0u; i < ROWS; ++i) {
        sums[i] = T4(0);
        a_at[i] = at.x + min(row + i, m - 1u) * a_row;
    }
    const uint columns = column < n ? n - column : 0u;
    const uint line = B_ALONG_N != 0u ? b_row : b_column;
    const uint b_at = at.y + column * b_column;
    uint step = slice * 4u;
    T4 lines[4];
    if (columns >= 4u) {
        for (; step + 4u <= at.w; step += SLICES * 4u) {
            for (uint j = 0u; j < 4u; ++j) lines[j] = WHOLE_FOUR(b, b_at + step * b_row + j * line);
            for (uint i = 0u; i < ROWS; ++i) {
                const uint from = a_at[i] + step * a_column;
                T4 left;
                if (A_ALONG_K != 0u) {
                    left = WHOLE_FOUR(a, from);
                } else {
                    for (uint j = 0u; j < 4u; ++j) left[j] = READ(a, from + j * a_column);
                }
                add_steps(sums[i], left, lines);
            }
        }
    }
    for (; step < at.w; step += SLICES * 4u) {
        const uint steps = k - step;
        for (uint j = 0u; j < 4u; ++j) {
            const uint end = j < (B_ALONG_N != 0u ? steps : columns) ? (B_ALONG_N != 0u ? columns : steps) : 0u;
            lines[j] = PART_FOUR(b, b_at + step * b_row + j * line, end);
        }
        for (uint i = 0u; i < ROWS; ++i) {
            T4 left;
            for (uint j = 0u; j < 4u; ++j) left[j] = j < steps ? READ(a, a_at[i] + (step + j) * a_column) : T(0);
            add_steps(sums[i], left, lines);
        }
    }
    for (uint i = 0u; i < ROWS; ++i) {
        barrier(); // the slices of the row before have been read
        slices[slice * VEC4 + own] = sums[i];
        for (uint apart = SLICES / 2u; apart > 0u; apart /= 2u) {
            barrier();
            if (slice < apart) slices[slice * VEC4 + own] += slices[(slice + apart) * VEC4 + own];
        }
        if (slice == 0u) store4(at.z, row + i, column, slices[own]);
    }
}

void main() {
    const uvec2 lane = B_ALONG_N != 0u ? gl_LocalInvocationID.xy : gl_LocalInvocationID.yx;
    for (uint batch = gl_WorkGroupID.z; batch < batches; batch += gl_NumWorkGroups.z) {
        const uvec4 at = matrices(batch);
        for (uint row = gl_WorkGroupID.y * ROWS; row < m; row += gl_NumWorkGroups.y * ROWS) {
            for (uint first = gl_WorkGroupID.x * VEC4; first * 4u < n; first += gl_NumWorkGroups.x * VEC4) {
                compute_tile(at, row, (first + lane.x) * 4u, lane.x, lane.y);
            }
        }
    }
}
