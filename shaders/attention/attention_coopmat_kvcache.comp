#version 450
// result = softmax(q k^T * scale) v for every head, over the first kv_len[batch] keys and the new ones behind them, without the scores in memory.
// q: (batch, heads * queries, depth), k: (batch, keys, depth), v: (batch, keys, columns), kv_len: one number, (batch), or (batch, 2 or 3) with slots and past_len, k_new, v_new: (batch, new_keys, ..), result: as q with columns, or its parts.
// One workgroup computes a tile of rows, by way of shared memory; for devices with cooperative matrices.
// Source: Dao et al., FlashAttention, 2022; Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#include "float_math.glsl"
#define KVCACHE
#define NEW_KEYS
#if defined(FP16_KV) || defined(Q8_0_KV)
#define KEY_WORD uint
#else
#define KEY_WORD float
#endif
#ifdef FP16_ROWS
#define ROW_WORD uint
#else
#define ROW_WORD float
#endif
layout(set = 0, binding = 0) readonly buffer Q { ROW_WORD q[]; };
layout(set = 0, binding = 1) readonly buffer K { KEY_WORD k[]; };
layout(set = 0, binding = 2) readonly buffer V { KEY_WORD v[]; };
layout(set = 0, binding = 3) readonly buffer KvLen { int kv_len[]; };
layout(set = 0, binding = 4) readonly buffer KNew { ROW_WORD k_new[]; };
layout(set = 0, binding = 5) readonly buffer VNew { ROW_WORD v_new[]; };
layout(set = 0, binding = 6) buffer Result { float result[]; };
#ifdef FP16_ROWS
#define OF_RESULT 6 // a whole result, which has no sums
layout(set = 0, binding = OF_RESULT) buffer ResultWords { uint result_words[]; };
#endif
layout(push_constant) uniform Push {
    uint q_offset;
    uint k_offset;
    uint v_offset;
    uint kv_len_offset;
    uint k_new_offset;
    uint v_new_offset;
    uint result_offset;
    uint kv_len_stride; // 0: one number for all examples; else a number, a slot if there are slots, and past_len if it varies
    uint slots; // of the cache
    uint new_keys;
#include "attention_push.glsl"
};
// Constants, as the push block is full.
layout(constant_id = 15) const uint DEPTH = 64;
layout(constant_id = 16) const uint HEADS = 1; // of keys: batch = index of the batch axis * heads + head
layout(constant_id = 17) const uint V_SIZE = 64; // values of a row of v
#define depth DEPTH
#define heads HEADS
#include "attention_coopmat.glsl"
