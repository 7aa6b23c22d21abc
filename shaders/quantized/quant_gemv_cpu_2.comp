#version 450
// result[m, n] = sum over k of a[m, k] * b[n, k] (+ bias), two rows at a time, of quantized weights b: quant_gemv_cpu.glsl.
// Source: none.
#extension GL_GOOGLE_include_directive : require
#define ROWS 2
#include "quant_gemv_cpu.glsl"
