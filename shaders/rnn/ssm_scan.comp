#version 450
// state <- exp(dt a) state + dt b x, y = sum of c state, for the time steps first..last-1; the states end in the last rows.
// x: (batch, steps, heads, size), dt: (batch, steps, heads), a: (heads, states) or (heads, 1), b, c: (batch, steps, groups,
// states), state: (batch, states, heads, size), result: (batch, steps + states, heads, size).
// An invocation computes one channel, BLOCK states at a time in registers; groups stride over the channels start..end-1.
// Source: https://arxiv.org/abs/2312.00752, https://arxiv.org/abs/2405.21060
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint PER_HEAD = 0; // a has one value per head, not one per state

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer Dt { float dt[]; };
layout(set = 0, binding = 2) readonly buffer A { float a[]; };
layout(set = 0, binding = 3) readonly buffer B { float b[]; };
layout(set = 0, binding = 4) readonly buffer C { float c[]; };
layout(set = 0, binding = 5) readonly buffer State { float state[]; };
layout(set = 0, binding = 6) buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint dt_offset;
    uint a_offset;
    uint b_offset;
    uint c_offset;
    uint state_offset;
    uint result_offset;
    uint start;
    uint end;
    uint steps;
    uint first;
    uint last;
    uint heads;
    uint size;
    uint groups;
    uint states;
    uint state_rows; // rows of the state operand from one sequence to the next
};

#include "exp_math.glsl"

const uint BLOCK = 8u;

void scan_channel(uint batch, uint channel) {
    const uint channels = heads * size;
    const uint head = channel / size;
    const uint group = head / (heads / groups);
    const uint state_at = state_offset + batch * state_rows * channels + channel;
    const uint result_at = result_offset + batch * (steps + states) * channels + channel;
    for (uint s = 0u; s < states; s += BLOCK) {
        const uint count = min(BLOCK, states - s);
        float block[BLOCK], rate[BLOCK];
        for (uint k = 0u; k < BLOCK; ++k) {
            const uint at = s + min(k, count - 1u);
            block[k] = state[state_at + at * channels];
            rate[k] = PER_HEAD != 0u ? a[a_offset + head] : a[a_offset + head * states + at];
        }
        for (uint t = first; t < last; ++t) {
            const uint row = batch * steps + t;
            const float step = dt[dt_offset + row * heads + head];
            const float entering = step * x[x_offset + row * channels + channel];
            const uint at = (row * groups + group) * states + s;
            float decay = fine_exp(step * rate[0]);
            float y = s == 0u ? 0.0 : result[result_at + t * channels];
            for (uint k = 0u; k < BLOCK; ++k) {
                if (k < count) {
                    if (PER_HEAD == 0u && k > 0u) decay = fine_exp(step * rate[k]);
                    block[k] = decay * block[k] + b[b_offset + at + k] * entering;
                    y += c[c_offset + at + k] * block[k];
                }
            }
            result[result_at + t * channels] = y;
        }
        for (uint k = 0u; k < BLOCK; ++k) {
            if (k < count) result[result_at + (steps + s + k) * channels] = block[k];
        }
    }
}

void main() {
    const uint channels = heads * size;
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = start + gl_GlobalInvocationID.x; i < end; i += stride) scan_channel(i / channels, i % channels);
}
