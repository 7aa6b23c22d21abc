#version 450
// As quant_gemv_mixed.comp, without a GATE; the first `rotated` columns get a rotary embedding (rotary_pairs.glsl).
// Source: Su et al., RoFormer: enhanced transformer with rotary position embedding, 2021.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "gemv_mixed_rope_buffers.glsl"
#include "quant_gemv_mixed.glsl"
