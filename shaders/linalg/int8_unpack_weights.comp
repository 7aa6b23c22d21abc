#version 450
// result[part, column, code] = b - zero as float32 of 256 rows of weights in a part. b: tiles of 16 columns, words of four rows behind
// a row of sums; one zero for all or for each column.
// One invocation makes four values; a group strides over words by the size of the whole dispatch.
// Source: ONNX MatMulInteger.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) readonly buffer B { uint b[]; };
layout(set = 0, binding = 1) readonly buffer Zero { int zero[]; };
layout(set = 0, binding = 2) writeonly buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint b_offset;
    uint zero_offset;
    uint result_offset;
    uint columns;
    uint depth;
    uint zero_step;
    uint words_first;
};

void main() {
    const uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint item = gl_GlobalInvocationID.x; item < columns * depth; item += step) {
        const uint column = item / depth;
        const uint first = item - column * depth;
        const uint part = first / 64u;
        const uint codes = min(256u, 4u * (depth - 64u * part));
        const uint at = result_offset + 256u * part * columns + column * codes + 4u * (first - 64u * part);
        const uint tile = b_offset + words_first + column / 16u * 16u * (depth + 1u);
        const uint word = b[tile + 16u * (first + 1u) + column % 16u];
        const int less = zero[zero_offset + column * zero_step];
        for (uint c = 0u; c < 4u; ++c) result[at + c] = float((int(word >> 8u * c << 24u) >> 24) - less);
    }
}
