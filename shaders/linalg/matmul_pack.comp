#version 450
// result = x, matrices of rows x columns, each widened to padded_rows x padded_columns by zeros.
// x: (matrices, rows, columns), result: (matrices, padded_rows, padded_columns), padded_columns a multiple of four.
// One invocation copies RUN neighbouring vec4s of a line, and strides on by the size of the whole dispatch.
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

const uint RUN = 16u;

void main() {
    const uint fours = padded_columns / 4u;
    const uint runs = (fours + RUN - 1u) / RUN;
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint item = gl_GlobalInvocationID.x; item < matrices * padded_rows * runs; item += stride) {
        const uint line = item / runs, first = (item - line * runs) * RUN;
        const uint matrix = line / padded_rows, row = line - matrix * padded_rows;
        const uint there = row < rows ? columns : 0u; // of a line of x, none in one that is added
        const uint from = x_offset + (matrix * rows + row) * columns;
        const uint to = result_offset / 4u + line * fours;
        for (uint four = first; four < min(first + RUN, fours); ++four) {
            uvec4 values = uvec4(0u);
            for (uint j = 0u; j < 4u; ++j) {
                const uint column = four * 4u + j;
                if (column < there) values[j] = x[from + column];
            }
            result[to + four] = values;
        }
    }
}
