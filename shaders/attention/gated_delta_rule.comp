#version 450
// S = exp(g) S; S += k (beta (v - S^T k))^T; o = S^T q, for tokens first..end-1 of all sequences, one after the other.
// q, k: (batch, tokens, key_heads, SIZE), v: (batch, tokens, heads, columns), g, beta: (batch, tokens, heads),
// state: (batch, SIZE, heads, columns), result: (batch, tokens + SIZE, heads, columns), o and then S.
// An invocation has one column of S of a head at a time. Source: Yang et al., Gated Delta Networks, 2024.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint SIZE = 4;

layout(set = 0, binding = 0) readonly buffer Q { float q[]; };
layout(set = 0, binding = 1) readonly buffer K { float k[]; };
layout(set = 0, binding = 2) readonly buffer V { float v[]; };
layout(set = 0, binding = 3) readonly buffer G { float g[]; };
layout(set = 0, binding = 4) readonly buffer Beta { float beta[]; };
layout(set = 0, binding = 5) readonly buffer State { float state[]; };
layout(set = 0, binding = 6) buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint q_offset;
    uint k_offset;
    uint v_offset;
    uint g_offset;
    uint beta_offset;
    uint state_offset;
    uint result_offset;
    uint count;
    uint first;
    uint end;
    uint tokens;
    uint key_heads;
    uint heads;
    uint columns;
};

float s[SIZE];

void run(uint at) {
    const uint row = heads * columns, head_at = at / columns;
    const uint batch = head_at / heads, head = head_at - batch * heads, column = at - head_at * columns;
    const uint key_head = head / (heads / key_heads);
    const uint own = head * columns + column;
    const uint result_at = result_offset + batch * (tokens + SIZE) * row + own;
    const uint last_at = result_at + tokens * row;
    if (first == 0u) {
        const uint state_at = state_offset + batch * SIZE * row + own;
        for (uint i = 0u; i < SIZE; ++i) s[i] = state[state_at + i * row];
    } else {
        for (uint i = 0u; i < SIZE; ++i) s[i] = result[last_at + i * row];
    }
    for (uint token = first; token < end; ++token) {
        const uint place = batch * tokens + token;
        const uint key_at = (place * key_heads + key_head) * SIZE;
        const uint gate = place * heads + head;
        const float decay = exp(g[g_offset + gate]);
        float seen = 0.0;
        for (uint i = 0u; i < SIZE; ++i) {
            s[i] *= decay;
            seen += s[i] * k[k_offset + key_at + i];
        }
        const float delta = beta[beta_offset + gate] * (v[v_offset + place * row + own] - seen);
        float o = 0.0;
        for (uint i = 0u; i < SIZE; ++i) {
            s[i] += k[k_offset + key_at + i] * delta;
            o += s[i] * q[q_offset + key_at + i];
        }
        result[result_at + token * row] = o;
    }
    for (uint i = 0u; i < SIZE; ++i) result[last_at + i * row] = s[i];
}

void main() {
    for (uint at = gl_GlobalInvocationID.x; at < count; at += gl_NumWorkGroups.x * gl_WorkGroupSize.x) run(at);
}
