// x and up to three weights of products of many rows by quantized weights.
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
