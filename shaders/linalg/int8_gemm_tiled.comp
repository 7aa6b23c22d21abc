#version 450
// result[row, column] = sum over words of a[row] * b[column], less what zero points take off (int8.glsl).
// a: (rows, depth) words behind 4 with the zero point, b: tiles of 16 columns, result: rows and columns at steps of their own.
// One workgroup computes 64 x 64 results; eight words of their rows and columns at a time lie in shared memory. An invocation has
// 8 rows and 4 columns.
// Source: Volkov and Demmel, Benchmarking GPUs to tune dense linear algebra, 2008.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
layout(local_size_x = 16, local_size_y = 8, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "int8.glsl"

const uint WORDS = 8u;
const uint SIDE = 64u;
shared uint rows_of_tile[SIDE * WORDS];
shared uint columns_of_tile[WORDS * SIDE];

void load(uint row, uint column, uint word, uint lane) {
    for (uint i = 0u; i < 4u; ++i) {
        const uint item = lane + 128u * i;
        const uint along = word + item % WORDS;
        rows_of_tile[item] = along < depth ? a[row_of(row + item / WORDS) + along] : 0u;
        const uint down = word + item / SIDE;
        columns_of_tile[item] = down < depth ? b[first_of(column + item % SIDE) + 16u * (down + 1u)] : 0u;
    }
}

void compute_tile(uint row, uint column) {
    const uint x = gl_LocalInvocationID.x;
    const uint y = gl_LocalInvocationID.y;
    int sums[8][4];
    int of_rows[8];
    for (uint r = 0u; r < 8u; ++r) {
        of_rows[r] = 0;
        for (uint c = 0u; c < 4u; ++c) sums[r][c] = 0;
    }
    for (uint word = 0u; word < depth; word += WORDS) {
        load(row, column, word, gl_LocalInvocationIndex);
        barrier();
        [[dont_unroll]] for (uint w = 0u; w < WORDS; ++w) {
            CODES right[4];
            for (uint c = 0u; c < 4u; ++c) right[c] = codes(columns_of_tile[w * SIDE + x + 16u * c]);
            for (uint r = 0u; r < 8u; ++r) {
                const CODES left = codes(rows_of_tile[(y + 8u * r) * WORDS + w]);
                of_rows[r] += summed(left, ONES);
                for (uint c = 0u; c < 4u; ++c) sums[r][c] += summed(left, right[c]);
            }
        }
        barrier();
    }
    for (uint r = 0u; r < 8u; ++r) {
        const uint own = row + y + 8u * r;
        const uint at = result_of(own);
        for (uint c = 0u; c < 4u; ++c) store(at, own, column + x + 16u * c, sums[r][c], of_rows[r]);
    }
}

void main() {
    for (uint column = gl_WorkGroupID.x * SIDE; column < columns; column += gl_NumWorkGroups.x * SIDE) {
        compute_tile(gl_WorkGroupID.y * SIDE, column);
    }
}
