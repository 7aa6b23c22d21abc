#version 450
// result[m, n] = sum over k of x[m, k] * w[n, k] (+ bias) for many rows m, on GPUs without cooperative matrices: x and quantized weights w
// become float16 in shared memory (quant_gemm.glsl), products and sums are float32, or with FP16_SUMS float16 for a step along k.
// Up to three weights w, a GATE of two, and results by heads with ROTARY as quant_gemm_coopmat.comp has them.
// One workgroup computes a tile of TILE_M x TILE_N, each invocation DOWN x ACROSS results of it.
// Source: Volkov and Demmel, Benchmarking GPUs to tune dense linear algebra, 2008 (tiles in shared memory and in registers).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#include "quant_gemm.glsl"
