#version 450
// result[row, column] = sum over words of a[row] * b[column], less what zero points take off (int8.glsl), for ROWS rows and a
// column in each invocation, without shared memory or barriers: for CPU drivers, and few rows.
// a: (rows, depth) words behind 4 with the zero point, b: tiles of 16 columns, result: rows and columns at steps of their own.
// One workgroup computes ROWS rows of neighbouring columns, and strides over columns by the size of the whole dispatch.
// Source: Goto and van de Geijn, Anatomy of high-performance matrix multiplication, 2008 (the register kernel).
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
layout(local_size_x = 16, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "int8.glsl"

#if ROWS == 1
#define EACH_ROW(DO) DO(0)
#else
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#endif
#define START(i) \
    int sum##i = 0; \
    int of_row##i = 0; \
    const uint from##i = row_of(own_row + i);
#define STEP(i) \
    const CODES left##i = codes(a[from##i + word]); \
    sum##i += summed(left##i, right); \
    of_row##i += summed(left##i, ONES);
#define STORE(i) store(result_of(own_row + i), own_row + i, column, sum##i, of_row##i);

void compute_column(uint column, uint own_row) {
    uint at = first_of(column);
    EACH_ROW(START)
    for (uint word = 0u; word < depth; ++word) {
        at += 16u;
        const CODES right = codes(b[at]);
        EACH_ROW(STEP)
    }
    EACH_ROW(STORE)
}

void main() {
    const uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint column = gl_GlobalInvocationID.x; column < columns; column += step) {
        compute_column(column, gl_WorkGroupID.y * ROWS);
    }
}
