#version 450
// result[sum index * result_strides] = x[sum index * x_strides] over the axes of a transpose that moves the last axis.
// x: contiguous along `width` and with x_strides[0] along `columns`, result the other way round; other axes are lines (line_start.glsl).
// One workgroup turns tiles of SIDE by SIDE words by way of shared memory, so that both sides are read and written along lines. For GPUs.
// Source: Ruetsch and Micikevicius, Optimizing matrix transpose in CUDA, 2009 (the padding of lines).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
layout(local_size_x = 32, local_size_y = 4, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint RANK = 1;
const uint SIDE = 32u;
const uint PASSES = SIDE / gl_WorkGroupSize.y;
shared uint tile[SIDE * (SIDE + 1u)];

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint columns;
    uint width;
    uint lines;
    uint sizes[6];
    uint x_strides[8];
    uint result_strides[8];
};
#define STRIDES(axis) uvec2(x_strides[axis], result_strides[axis])
#define START uvec2(x_offset, result_offset)
#define PLACES uvec2
#include "line_start.glsl"

void main() {
    const uvec2 own = gl_LocalInvocationID.xy;
    for (uint line = gl_WorkGroupID.z; line < lines; line += gl_NumWorkGroups.z) {
        const uvec2 at = start_of_line(line);
        for (uint column = gl_WorkGroupID.y * SIDE; column < columns; column += gl_NumWorkGroups.y * SIDE) {
            for (uint across = gl_WorkGroupID.x * SIDE; across < width; across += gl_NumWorkGroups.x * SIDE) {
                const uvec2 left = uvec2(width - across, columns - column);
                [[unroll]] for (uint i = 0u; i < PASSES; ++i) {
                    const uint down = own.y + i * gl_WorkGroupSize.y;
                    if (own.x < left.x && down < left.y) {
                        tile[down * (SIDE + 1u) + own.x] = x[at.x + (column + down) * x_strides[0] + across + own.x];
                    }
                }
                barrier();
                [[unroll]] for (uint i = 0u; i < PASSES; ++i) {
                    const uint down = own.y + i * gl_WorkGroupSize.y;
                    if (down < left.x && own.x < left.y) {
                        result[at.y + (across + down) * result_strides[0] + column + own.x] = tile[own.x * (SIDE + 1u) + down];
                    }
                }
                barrier(); // the next tile takes its place
            }
        }
    }
}
