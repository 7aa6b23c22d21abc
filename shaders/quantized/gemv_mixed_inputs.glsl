// x, the scale of its norm and the weights of quant_gemv_mixed.glsl, with and without a rotary embedding.
#include "load_words.glsl"
#include "quant_formats.glsl"

layout(set = 0, binding = 0) readonly buffer A { vec4 a[]; };
layout(set = 0, binding = 1) readonly buffer Scale { vec4 scale[]; };
layout(set = 0, binding = 2) readonly buffer B { LOAD_OF_B b[]; };
layout(set = 0, binding = 3) readonly buffer Second { LOAD_OF_B second[]; };
layout(set = 0, binding = 4) readonly buffer Third { LOAD_OF_B third[]; };
VIEWS(2, b)
VIEWS(3, second)
VIEWS(4, third)
