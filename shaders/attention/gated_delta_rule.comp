#version 450
// S = exp(g) S; S += k (beta (v - S^T k))^T; o = S^T q, for tokens first..end-1 of all sequences, one after the other.
// q, k: (batch, tokens, key_heads, SIZE), v: (batch, tokens, heads, columns), g, beta: (batch, tokens, heads),
// state: (batch, SIZE, heads, columns), result: (batch, tokens + SIZE, heads, columns), o and then S.
// PARTS invocations share a column of S of a head, each has ROWS of its values in registers. A token needs one exchange of their sums,
// as o = (exp(g) S)^T q + (k^T q) beta (v - exp(g) S^T k); a column of one invocation needs none.
// Source: Yang et al., Gated Delta Networks, 2024.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint SIZE = 4;
layout(constant_id = 4) const uint PARTS = 1; // divides the local size

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

const uint ROWS = (SIZE + PARTS - 1u) / PARTS;
const bool WHOLE = PARTS * ROWS == SIZE; // every part has ROWS values
const uint COLUMNS = gl_WorkGroupSize.x / PARTS; // of a workgroup at a time
const uint SUMS = PARTS > 1u ? gl_WorkGroupSize.x : 1u;

float s[ROWS];
shared vec4 sums[2u * SUMS]; // S^T k, S^T q and k^T q of a part; tokens use the halves by turns
uint half_at = 0u;

// The sums of all parts of a column, in their order.
vec3 add_parts(uint lane, vec3 own) {
    if (PARTS == 1u) return own;
    half_at = SUMS - half_at;
    sums[half_at + gl_LocalInvocationIndex] = vec4(own, 0.0);
    barrier(); // the other half has been read
    vec3 total = sums[half_at + lane].xyz;
    for (uint part = 1u; part < PARTS; ++part) total += sums[half_at + part * COLUMNS + lane].xyz;
    return total;
}

// Columns from `start` on, one for each lane of a part.
void run(uint start) {
    const uint lane = gl_LocalInvocationIndex % COLUMNS, part = gl_LocalInvocationIndex / COLUMNS;
    const bool is_column = start + lane < count;
    const uint at = min(start + lane, count - 1u);
    const uint row = heads * columns, head_at = at / columns;
    const uint batch = head_at / heads, head = head_at - batch * heads, column = at - head_at * columns;
    const uint key_head = head / (heads / key_heads);
    const uint own = head * columns + column;
    const uint first_row = part * ROWS;
    const uint own_rows = is_column ? min(ROWS, SIZE - min(first_row, SIZE)) : 0u;
    const uint result_at = result_offset + batch * (tokens + SIZE) * row + own;
    const uint last_at = result_at + (tokens + first_row) * row;
    const uint state_at = state_offset + (batch * SIZE + first_row) * row + own;
    for (uint i = 0u; i < ROWS; ++i) {
        s[i] = 0.0;
        if (i < own_rows) {
            if (first == 0u) s[i] = state[state_at + i * row];
            else s[i] = result[last_at + i * row];
        }
    }
    for (uint token = first; token < end; ++token) {
        const uint place = batch * tokens + token;
        const uint key_at = (place * key_heads + key_head) * SIZE + first_row;
        const uint gate = place * heads + head;
        const float decay = exp(g[g_offset + gate]);
        float s_k = 0.0, s_q = 0.0, k_q = 0.0;
        for (uint i = 0u; i < ROWS; ++i) {
            if (WHOLE || i < own_rows) {
                const float key = k[k_offset + key_at + i];
                s[i] *= decay;
                s_k += s[i] * key;
                if (PARTS > 1u) {
                    const float query = q[q_offset + key_at + i];
                    s_q += s[i] * query;
                    k_q += key * query;
                }
            }
        }
        const vec3 seen = add_parts(lane, vec3(s_k, s_q, k_q));
        const float delta = beta[beta_offset + gate] * (v[v_offset + place * row + own] - seen.x);
        float o = PARTS > 1u ? seen.y + seen.z * delta : 0.0;
        for (uint i = 0u; i < ROWS; ++i) {
            if (WHOLE || i < own_rows) {
                s[i] += k[k_offset + key_at + i] * delta;
                if (PARTS == 1u) o += s[i] * q[q_offset + key_at + i];
            }
        }
        if (is_column && part == 0u) result[result_at + token * row] = o;
    }
    for (uint i = 0u; i < ROWS; ++i) {
        if (i < own_rows) result[last_at + i * row] = s[i];
    }
}

void main() {
    const uint step = gl_NumWorkGroups.x * COLUMNS;
    for (uint at = gl_WorkGroupID.x * COLUMNS; at < count; at += step) run(at);
}
