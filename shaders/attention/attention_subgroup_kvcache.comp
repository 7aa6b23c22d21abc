#version 450
// result = softmax(q k^T * scale) v for every head, over the first kv_len[batch] keys, without the scores in memory.
// q: (batch, heads * queries, depth), k: (batch, keys, depth), v: (batch, keys, columns), kv_len: one number, (batch), or (batch, 2 or 3) with slots and past_len, result: as q with columns, or its parts.
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
#define KVCACHE
#ifdef Q8_0_KV
#define KEYS_LOADED uint
#elif !defined(FP16_KV)
#define KEYS_LOADED LOADED
#elif defined(WORDS_64)
#define KEYS_LOADED uint64_t
#else
#define KEYS_LOADED uvec2
#endif
#define SHAPED
layout(set = 0, binding = 0) readonly buffer Q { LOADED q[]; };
layout(set = 0, binding = 1) readonly buffer K { KEYS_LOADED k[]; };
layout(set = 0, binding = 2) readonly buffer V { KEYS_LOADED v[]; };
layout(set = 0, binding = 3) readonly buffer KvLen { int kv_len[]; };
layout(set = 0, binding = 4) writeonly buffer Result { vec4 result[]; };
layout(push_constant) uniform Push {
    uint q_offset;
    uint k_offset;
    uint v_offset;
    uint kv_len_offset;
    uint result_offset;
    uint kv_len_stride; // 0: one number for all examples; else a number, a slot if there are slots, and past_len if it varies
    uint slots; // of the cache
    uint own_parts; // of the keys in use, each with part_keys or more
    uint are_new; // 1: the keys are those behind the ones in use, and all count
    uint depth;
    uint heads; // of keys: batch = index of the batch axis * heads + head
#include "attention_push.glsl"
};
#include "attention_subgroup.glsl"
