#version 450
// result[b, r, c] = x[b, r, c] on one side of a diagonal, with it, else 0: c - r >= diagonal when UPPER, else <=.
// x, result: (batches, rows, columns), contiguous words.
// One workgroup strides over the elements by the size of the whole dispatch.
// Source: ONNX Trilu.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint UPPER = 1;

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint count;
    uint rows;
    uint columns;
    int diagonal;
};

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        const uint row = i / columns;
        const int over = int(i - row * columns) - int(row % rows) - diagonal;
        const bool kept = UPPER != 0u ? over >= 0 : over <= 0;
        result[result_offset + i] = kept ? x[x_offset + i] : 0u;
    }
}
