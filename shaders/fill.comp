#version 450
// result[i] = value for i < count, a 32-bit word whatever it holds.
// result: (count).
// One group takes a run of neighbouring words (quads.glsl).
// Source: none.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "quads.glsl"

layout(set = 0, binding = 0) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint result_offset;
    uint count;
    uint value;
};

void main() {
    const uint run = run_of_group(count);
    const uint end = end_of_run(count, run);
    for (uint i = first_of_run(run); i < end; i += gl_WorkGroupSize.x) {
        result[result_offset + i] = value;
    }
}
