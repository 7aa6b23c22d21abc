#version 450
// result = softmax(q k^T * scale) v for every head, without the scores in memory.
// q: (batch, heads * queries, depth), k: (batch, keys, depth), v: (batch, keys, columns), result: as q with columns, or its parts.
// One subgroup computes ROWS rows; for CPU drivers, and sizes that are multiples of four.
// Source: Dao et al., FlashAttention, 2022; Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
#include "float_math.glsl"
#include "load_vec4.glsl"
layout(set = 0, binding = 0) readonly buffer Q { LOADED q[]; };
layout(set = 0, binding = 1) readonly buffer K { LOADED k[]; };
layout(set = 0, binding = 2) readonly buffer V { LOADED v[]; };
layout(set = 0, binding = 3) writeonly buffer Result { vec4 result[]; };
layout(push_constant) uniform Push {
    uint q_offset;
    uint k_offset;
    uint v_offset;
    uint result_offset;
    uint depth;
    uint heads; // of keys: batch = index of the batch axis * heads + head
#include "attention_push.glsl"
};
#include "attention_subgroup.glsl"
