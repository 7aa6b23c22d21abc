#version 450
// result[r] = sum over c of a[r, c] * b[r, c].
// a, b: (rows, columns), result: (rows), contiguous.
// One invocation computes one row.
// Source: none.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "words.glsl"
layout(set = 0, binding = 0) readonly buffer A { vec4 a[]; };
layout(set = 0, binding = 1) readonly buffer B { vec4 b[]; };
layout(set = 0, binding = 2) writeonly buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint a_offset;
    uint b_offset;
    uint result_offset;
    uint rows;
    uint columns;
};

void main() {
    const uint quads = columns % 4u == 0u ? columns / 4u : 0u; // rows start at a quad then
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint row = gl_GlobalInvocationID.x; row < rows; row += stride) {
        const uint at = row * columns;
        vec4 sum = vec4(0.0);
        for (uint i = 0u; i < quads; ++i) sum += a[(a_offset + at) / 4u + i] * b[(b_offset + at) / 4u + i];
        for (uint i = 4u * quads; i < columns; ++i) sum.x += WORD(a, a_offset + at + i) * WORD(b, b_offset + at + i);
        result[result_offset + row] = (sum.x + sum.y) + (sum.z + sum.w);
    }
}
