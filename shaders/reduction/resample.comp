#version 450
// result[o, i, n] = sum over t of weights[i, t] * x[o, indices[i, t], n]; a tap of weight 0 is not read.
// x: (outer, size, inner), indices: (outs, taps) ints, clamped to the axis, weights: (outs, taps), result: (outer, outs, inner).
// One workgroup strides over the elements start..end by the size of the whole dispatch.
// Source: none.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer Indices { int indices[]; };
layout(set = 0, binding = 2) readonly buffer Weights { float weights[]; };
layout(set = 0, binding = 3) writeonly buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint indices_offset;
    uint weights_offset;
    uint result_offset;
    uint start;
    uint end;
    uint size;
    uint outs;
    uint taps;
    uint inner;
};

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = start + gl_GlobalInvocationID.x; i < end; i += stride) {
        const uint row = i / inner;
        const uint outer = row / outs;
        const uint first_tap = (row - outer * outs) * taps;
        const uint first = x_offset + outer * size * inner + (i - row * inner);
        float sum = 0.0;
        for (uint tap = first_tap; tap < first_tap + taps; ++tap) {
            const float weight = weights[weights_offset + tap];
            const int index = clamp(indices[indices_offset + tap], 0, int(size) - 1);
            if (weight != 0.0) sum += weight * x[first + uint(index) * inner];
        }
        result[result_offset + i] = sum;
    }
}
