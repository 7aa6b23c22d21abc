#version 450
// result[m, n] = sum over k of x[m, k] * w[n, k] (+ bias), a few rows by up to three quantized weights w. The columns
// of their results are concatenated, or with STACKED the results are matrices, one after another. Or by two, with a GATE: activation(x W1) * (x W2). x is a, or with NORMED
// a / sqrt(mean of a^2 over the row + eps) * scale, rounded to float16; sums are float32. One workgroup has BATCH rows of x in shared memory and
// computes 1 / SPLITS of ROWS rows of weights per subgroup (quant_gemv_mixed.glsl). For GPUs.
// Source: Zhang and Sennrich, Root mean square layer normalization, 2019.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "gemv_mixed_buffers.glsl"
#include "quant_gemv_mixed.glsl"
