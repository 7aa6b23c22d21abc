#version 450
// result[i] = the sum of x[p, i] over all p, in order.
// x: (parts, count), result: (count).
// One invocation sums up one value at a time, striding over them by the size of the whole dispatch.
// Source: none.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint parts;
    uint count;
    uint first;
    uint last;
};

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = first + gl_GlobalInvocationID.x; i < last; i += stride) {
        float total = 0.0;
        for (uint part = 0u; part < parts; ++part) total += x[x_offset + part * count + i];
        result[result_offset + i] = total;
    }
}
