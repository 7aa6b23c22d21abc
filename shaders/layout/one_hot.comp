#version 450
// result[o, d, i] = values[1] where d = indices[o, i], else values[0]; negative indices count from depth.
// indices: (outer, inner) ints, values: off and on, result: (outer, depth, inner), contiguous.
// One workgroup takes a run of neighbouring elements (vec4.glsl).
// Source: ONNX OneHot. An index outside the depth makes all of its line off.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "vec4.glsl"

layout(set = 0, binding = 0) readonly buffer Indices { int indices[]; };
layout(set = 0, binding = 1) readonly buffer Values { uint values[]; };
layout(set = 0, binding = 2) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint indices_offset;
    uint values_offset;
    uint result_offset;
    uint count;
    uint depth;
    uint inner;
};

void main() {
    const uint run = run_of_group(count);
    const uint end = end_of_run(count, run);
    for (uint i = first_of_run(run); i < end; i += gl_WorkGroupSize.x) {
        const uint row = i / inner;
        const uint outer = row / depth;
        int index = indices[indices_offset + outer * inner + (i - row * inner)];
        index += index < 0 ? int(depth) : 0;
        const uint is_on = index == int(row - outer * depth) ? 1u : 0u;
        result[result_offset + i] = values[values_offset + is_on];
    }
}
