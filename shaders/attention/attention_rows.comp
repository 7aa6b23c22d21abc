#version 450
// result = softmax(q k^T * scale) v for every head, without the scores in memory.
// q: (batch, heads * queries, depth), k: (batch, keys, depth), v: (batch, keys, columns), result: as q with columns, or its parts.
// One invocation computes one row; for CPU drivers.
// Source: Dao et al., FlashAttention, 2022; Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.
#extension GL_GOOGLE_include_directive : require
#include "float_math.glsl"
layout(set = 0, binding = 0) readonly buffer Q { float q[]; };
layout(set = 0, binding = 1) readonly buffer K { float k[]; };
layout(set = 0, binding = 2) readonly buffer V { float v[]; };
layout(set = 0, binding = 3) buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint q_offset;
    uint k_offset;
    uint v_offset;
    uint result_offset;
    uint depth;
    uint heads; // of keys: batch = index of the batch axis * heads + head
#include "attention_push.glsl"
};
#include "attention_rows.glsl"
