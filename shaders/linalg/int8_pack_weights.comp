#version 450
// result[tile, 1 + word, c] = four rows of column c of the tile, as codes with a sign: x ^ flip in 8 bits; result[tile, 0, c] = the sum
// of the column. x: (matrices, k, n), result: (matrices, tiles, 1 + words, 16); rows and columns beyond the last are 0.
// One invocation makes a column; a group strides over columns by the size of the whole dispatch.
// Source: ONNX MatMulInteger.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint columns;
    uint k;
    uint n;
    uint flip;
};

void main() {
    const uint depth = (k + 3u) / 4u;
    const uint wide = (n + 15u) / 16u * 16u;
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < columns; i += stride) {
        const uint matrix = i / wide;
        const uint column = i - matrix * wide;
        const uint to = result_offset + i / 16u * 16u * (depth + 1u) + i % 16u;
        const uint from = x_offset + matrix * k * n + column;
        int sum = 0;
        for (uint word = 0u; word < depth; ++word) {
            uint made = 0u;
            const uint count = column < n ? min(k - 4u * word, 4u) : 0u;
            for (uint row = 0u; row < count; ++row) {
                const uint code = uint(x[from + (4u * word + row) * n]) & 0xffu ^ flip;
                sum += int(code << 24) >> 24;
                made |= code << 8u * row;
            }
            result[to + 16u * (word + 1u)] = made;
        }
        result[to] = uint(sum);
    }
}
