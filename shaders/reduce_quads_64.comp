#version 450
// result[i] = x reduced over the reduced axis at index i of the kept axes, as reduce.comp, whose second stage joins the parts.
// x: strided by kept axes, innermost first, and contiguous along the reduced one; result: (rows), contiguous.
// One invocation computes one part, columns part * chunk and on, of one row, two quads at a time.
// Loads are of words of 64 bits, which llvmpipe takes for the price of 32.
// Source: Blelloch, Prefix sums and their applications, 1990 (reduction in two stages).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#define WORDS_64
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "reduce_quads.glsl"
