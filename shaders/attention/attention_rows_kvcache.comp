#version 450
// result = softmax(q k^T * scale) v for every head, over the first kv_len[batch] keys, without the scores in memory.
// q: (batch, heads * queries, depth), k: (batch, keys, depth), v: (batch, keys, columns), kv_len: one number, (batch), or (batch, 2 or 3) with slots and past_len, result: as q with columns, or its parts.
// One invocation computes one row; for CPU drivers.
// Source: Dao et al., FlashAttention, 2022; Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.
#extension GL_GOOGLE_include_directive : require
#include "float_math.glsl"
#define KVCACHE
#if defined(FP16_KV) || defined(Q8_0_KV)
#define KEY_WORD uint
#else
#define KEY_WORD float
#endif
layout(set = 0, binding = 0) readonly buffer Q { float q[]; };
layout(set = 0, binding = 1) readonly buffer K { KEY_WORD k[]; };
layout(set = 0, binding = 2) readonly buffer V { KEY_WORD v[]; };
layout(set = 0, binding = 3) readonly buffer KvLen { int kv_len[]; };
layout(set = 0, binding = 4) buffer Result { float result[]; };
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
#include "attention_rows.glsl"
