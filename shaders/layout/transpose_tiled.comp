#version 450
// result[sum index * result_strides] = x[sum index * x_strides] over the axes of a transpose that moves the last axis.
// x: contiguous along `width` and with x_strides[0] along `columns`, result the other way round; other axes are lines (line_start.glsl).
// One invocation turns tiles of four by four, read and written as vec4s; a group goes along `columns` for a while.
// Source: none.
#extension GL_GOOGLE_include_directive : require
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint RANK = 1;
#include "vec4.glsl"

layout(set = 0, binding = 0) readonly buffer X { WORDS x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { WORDS result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint columns;
    uint width;
    uint lines;
    uint run; // tiles that a group goes along columns
    uint sizes[6];
    uint x_strides[8];
    uint result_strides[8];
};
#define STRIDES(axis) uvec2(x_strides[axis], result_strides[axis])
#define START uvec2(x_offset, result_offset)
#define PLACES uvec2
#include "line_start.glsl"

void main() {
    const uint from_step = x_strides[0] / 4u;
    const uint to_step = result_strides[0] / 4u;
    const uint first = gl_WorkGroupID.y * run + gl_LocalInvocationID.y;
    const uint end = min(gl_WorkGroupID.y * run + run, columns / 4u);
    for (uint line = gl_WorkGroupID.z; line < lines; line += gl_NumWorkGroups.z) {
        const uvec2 at = start_of_line(line) / 4u;
        for (uint across = gl_GlobalInvocationID.x; across < width / 4u; across += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
            for (uint tile = first; tile < end; tile += gl_WorkGroupSize.y) {
                const uint from = at.x + 4u * tile * from_step + across;
                const uint to = at.y + 4u * across * to_step + tile;
                const uvec4 a = words(x[from]);
                const uvec4 b = words(x[from + from_step]);
                const uvec4 c = words(x[from + 2u * from_step]);
                const uvec4 d = words(x[from + 3u * from_step]);
                result[to] = stored(uvec4(a.x, b.x, c.x, d.x));
                result[to + to_step] = stored(uvec4(a.y, b.y, c.y, d.y));
                result[to + 2u * to_step] = stored(uvec4(a.z, b.z, c.z, d.z));
                result[to + 3u * to_step] = stored(uvec4(a.w, b.w, c.w, d.w));
            }
        }
    }
}
