#version 450
// result[i] = start + i * step for i < turn, else stop - (count - 1 - i) * step, so that both ends are exact.
// result: (count), contiguous; start, step and stop are the words of values of the result's type.
// One group strides over the elements by the size of the whole dispatch.
// Source: none.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint result_offset;
    uint count;
    uint turn;
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
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        const bool down = i >= turn;
        result[result_offset + i] = value_at(down ? stop : start, down ? count - 1u - i : i, down);
    }
}
