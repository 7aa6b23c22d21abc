#version 450
// result[m, n] = sum over k of x[m, k] * w[n, k] for few rows m, of up to three weights w of few bits (quant_block.glsl). The columns of
// their results are concatenated. x is a, or with NORMED
// a / sqrt(mean of a^2 over the row + eps) * scale, scale: (k). The first `rotated` columns get a rotary embedding, as rotary.glsl says.
// With STACKED the results are matrices, one after another.
// One workgroup computes some columns of ROWS rows, of one weight or of both, as quant_gemv.glsl says; with INT8 as merged_dot_q8.glsl says.
// For GPUs.
// Source: Zhang and Sennrich, Root mean square layer normalization, 2019.
#extension GL_GOOGLE_include_directive : require
#ifdef INT8
#extension GL_EXT_spirv_intrinsics : require
#endif
layout(local_size_x = 32, local_size_y = 4, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint NORMED = 0;
layout(constant_id = 4) const uint GATE = 0;
layout(constant_id = 5) const uint WEIGHTS = 1;
layout(constant_id = 6) const uint RUNS = 1; // of a row of a, with INT8
layout(constant_id = 7) const uint ROWS = 1;
layout(constant_id = 8) const uint STACKED = 0; // results of weights are matrices, one after another
layout(constant_id = 9) const uint INTERLEAVED = 0;
#define ROTARY
const uint SILU = 1u, GELU = 2u; // 3: GELU by tanh
#include "load_words.glsl"
#include "quant_formats.glsl"

layout(set = 0, binding = 0) readonly buffer A { vec4 a[]; };
layout(set = 0, binding = 1) readonly buffer Scale { vec4 scale[]; };
layout(set = 0, binding = 2) readonly buffer B { LOAD_OF_B b[]; };
layout(set = 0, binding = 3) readonly buffer Second { LOAD_OF_B second[]; };
layout(set = 0, binding = 4) readonly buffer Third { LOAD_OF_B third[]; };
layout(set = 0, binding = 5) readonly buffer Cosine { float cosine[]; };
layout(set = 0, binding = 6) readonly buffer Sine { float sine[]; };
layout(set = 0, binding = 7) writeonly buffer Result { float result[]; };
layout(set = 0, binding = 8) readonly buffer Residual { uint residual[]; } residual_buffer;
VIEWS(2, b)
VIEWS(3, second)
VIEWS(4, third)
layout(push_constant) uniform Push {
    uint a_offset;
    uint scale_offset;
    uint b_offset;
    uint second_offset;
    uint third_offset;
    uint cosine_offset;
    uint sine_offset;
    uint result_offset;
    uint residual_offset;
    uint m;
    uint n;
    uint k;
    uint ends[2]; // the columns where the first and the second weight end, without a gate
    uint b_column; // words of a row of a weight
    float eps;
    uint rotated; // columns of heads with rotary embedding
    uint head_size;
    uint rotary_pairs;
};
#include "quant_gemv_merged.glsl"
