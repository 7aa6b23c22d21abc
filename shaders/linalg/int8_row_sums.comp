#version 450
// result[row, column] = sum over parts of sums[part, row, column], whole numbers of float32, as int32; result: rows and columns at steps
// of their own.
// One invocation makes a sum; a group strides over sums by the size of the whole dispatch.
// Source: ONNX MatMulInteger.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) readonly buffer Sums { float sums[]; };
layout(set = 0, binding = 1) writeonly buffer Result { int result[]; };
layout(push_constant) uniform Push {
    uint sums_offset;
    uint result_offset;
    uint rows;
    uint columns;
    uint parts;
    uint row_step;
    uint column_step;
    uint result_first;
    uint first_row;
    uint places;
    uint image_step;
};
#include "int8_result.glsl"

void main() {
    const uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint item = gl_GlobalInvocationID.x; item < rows * columns; item += step) {
        const uint row = item / columns;
        int sum = 0;
        for (uint part = 0u; part < parts; ++part) sum += int(sums[sums_offset + part * rows * columns + item]);
        result[result_of(row) + (item - row * columns) * column_step] = sum;
    }
}
