// x and up to three weights of quant_gemm_coopmat.glsl, and its constants.
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 10) const uint WEIGHTS = 1;
layout(constant_id = 11) const uint GATE = 0;
layout(constant_id = 12) const uint FP16_X = 0;
layout(constant_id = 13) const uint FP16_RESULT = 0;
layout(constant_id = 14) const uint ROTARY = 0; // 1: pairs are half a head's pairs apart; 2: they are neighbours
const uint SILU = 1u, GELU = 2u; // 3: GELU by tanh
#define NATIVE_FP16
#include "load_words.glsl"
#include "quant_formats.glsl"

layout(set = 0, binding = 0) readonly buffer A { uvec4 a[]; };
layout(set = 0, binding = 1) readonly buffer B { LOAD_OF_B b[]; };
layout(set = 0, binding = 2) readonly buffer Second { LOAD_OF_B second[]; };
layout(set = 0, binding = 3) readonly buffer Third { LOAD_OF_B third[]; };
VIEWS(1, b)
VIEWS(2, second)
VIEWS(3, third)
