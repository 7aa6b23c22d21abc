#version 450
// TARGET of the state of queries, dq, dk and dv of result = softmax(s) v, s = q k^T * scale, without the scores in memory.
// own and other rows of q and g or of k and v: (batch, rows, depth or columns), state: (batch, rows, 4), result: own rows.
// One workgroup computes a tile of rows, by way of shared memory; for GPUs.
// Source: Dao, FlashAttention-2, 2023; Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.
#extension GL_GOOGLE_include_directive : require
#include "float_math.glsl"
layout(set = 0, binding = 0) readonly buffer OwnA { float own_a[]; };
layout(set = 0, binding = 1) readonly buffer OwnB { float own_b[]; };
layout(set = 0, binding = 2) readonly buffer OtherA { float other_a[]; };
layout(set = 0, binding = 3) readonly buffer OtherB { float other_b[]; };
layout(set = 0, binding = 4) readonly buffer State { float state[]; };
layout(set = 0, binding = 5) writeonly buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint own_a_offset;
    uint own_b_offset;
    uint other_a_offset;
    uint other_b_offset;
    uint state_offset;
    uint result_offset;
    uint first_tile;
    uint end_tile;
    uint rows; // of q in one batch: all heads that share keys, one behind the other
    uint queries;
    uint keys;
    uint depth;
    uint columns; // of v
    uint heads; // of keys: batch = index of the batch axis * heads + head
    uint first_column; // of other rows, that this dispatch works on; its result starts there
    uint width;
    uint result_step; // words from one batch to the next
    uint mask_strides[4];
    int first_visible; // query i sees the keys i + first_visible .. i + last_visible
    int last_visible;
    float scale;
    float softcap;
};
#include "attention_bwd.glsl"
