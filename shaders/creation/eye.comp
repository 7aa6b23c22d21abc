#version 450
// result[row, column] = value where column - row = diagonal, else 0.
// result: (count / columns, columns), contiguous words.
// One workgroup strides over the elements by the size of the whole dispatch.
// Source: none.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint result_offset;
    uint count;
    uint value;
    uint columns;
    int diagonal;
};

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        const uint row = i / columns;
        const int over = int(i - row * columns) - int(row);
        result[result_offset + i] = over == diagonal ? value : 0u;
    }
}
