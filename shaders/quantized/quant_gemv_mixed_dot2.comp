#version 450
// As quant_gemv_mixed.comp, by dot products of two halves with a sum of float32 (VK_VALVE_shader_mixed_float_dot_product).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_spirv_intrinsics : require
#define DOT2
#include "gemv_mixed_buffers.glsl"
#include "quant_gemv_mixed.glsl"
