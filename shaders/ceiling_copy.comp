#version 450
// dst[i] = src[i] for i < count, as values of type T: the device's memory and nothing else.
// src: (count), dst: (count); `vksched bench` holds the bytes per second of kernels against this one.
// One group strides over the values by the size of the whole dispatch.
// Source: none.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) readonly buffer Src { T src[]; };
layout(set = 0, binding = 1) writeonly buffer Dst { T dst[]; };
layout(push_constant) uniform Push {
    uint src_offset;
    uint dst_offset;
    uint count;
};

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        dst[dst_offset + i] = src[src_offset + i];
    }
}
