#version 450
// result = x, matrices of rows x columns, each widened to padded_rows x padded_columns by zeros.
// x: (matrices, rows, columns), result: (matrices, padded_rows, padded_columns), padded_columns a multiple of four.
// One invocation copies four neighbours, striding over them by the size of the whole dispatch.
// Source: none.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uvec4 result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint matrices;
    uint rows;
    uint columns;
    uint padded_rows;
    uint padded_columns;
};

uint load(uint matrix, uint row, uint column) {
    return row < rows && column < columns ? x[x_offset + (matrix * rows + row) * columns + column] : 0u;
}

void main() {
    const uint fours = padded_columns / 4u;
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < matrices * padded_rows * fours; i += stride) {
        const uint line = i / fours, column = i % fours * 4u;
        const uint matrix = line / padded_rows, row = line % padded_rows;
        uvec4 values;
        for (uint j = 0u; j < 4u; ++j) values[j] = load(matrix, row, column + j);
        result[result_offset / 4u + i] = values;
    }
}
