#version 450
// result[i] = exp(v[i] - max) / sum of exp(v - max), max and sum over the row of i; or its log.
// x, result: (rows / inner, columns, inner), contiguous; a row has one outer and one inner index.
// One invocation or some invocations of a workgroup compute one row, or four that lie side by side (vec4_rows.glsl).
// Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018 (the safe, three-pass form).
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#ifndef LOGARITHM
layout(constant_id = 5) const uint LOGARITHM = 0;
#endif
layout(constant_id = 6) const uint USE_VEC4 = 1; // words are read four at a time
#include "float_math.glsl"
#include "vec4.glsl"

layout(set = 0, binding = 0) readonly buffer X { vec4 x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { vec4 result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint rows;
    uint columns;
    uint inner;
};
#include "softmax.glsl"
