#version 450
// result[i] = start + i * step for i < middle, else stop - (count - 1 - i) * step, so that both ends are exact.
// result: (count), contiguous; start, step and stop are the words of values of the result's type.
// One workgroup takes a run of neighbouring elements (vec4.glsl).
// Source: none.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "vec4.glsl"

layout(set = 0, binding = 0) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint result_offset;
    uint count;
    uint middle;
    uint start;
    uint step;
    uint stop;
};

#if FLOAT
// One rounding of the product and one of the sum, as numpy does it.
uint value_at(uint end, uint steps, bool down) {
    precise const float product = float(steps) * uintBitsToFloat(step);
    precise const float sum = uintBitsToFloat(end) + (down ? -product : product);
    return floatBitsToUint(sum);
}
#else
uint value_at(uint end, uint steps, bool down) { return end + (down ? 0u - steps * step : steps * step); }
#endif

void main() {
    const uint run = run_of_group(count);
    const uint end = end_of_run(count, run);
    for (uint i = first_of_run(run); i < end; i += gl_WorkGroupSize.x) {
        const bool down = i >= middle;
        result[result_offset + i] = value_at(down ? stop : start, down ? count - 1u - i : i, down);
    }
}
