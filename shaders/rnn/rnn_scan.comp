#version 450
// All steps first..end-1 of a recurrent layer; h and c go from step to step, at last to the rows behind those of all steps.
// gates: (directions, steps, batch, GATES * hidden), r: (directions, hidden, GATES * hidden), extra: own (directions, GATES *
// hidden) and lengths (batch), result: (steps + states, directions, batch, hidden).
// One workgroup goes through all steps of SEQUENCES sequences of one direction; an invocation makes every so many of their states.
// Source: Hochreiter and Schmidhuber, Long short-term memory, 1997; Cho et al., 2014; ONNX, operators RNN, GRU and LSTM.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 9) const uint ROOM = 64; // for the values of a state
layout(constant_id = 10) const uint SEQUENCES = 1;

layout(set = 0, binding = 0) readonly buffer Gates { float gates[]; };
layout(set = 0, binding = 1) readonly buffer R { float r[]; };
layout(set = 0, binding = 2) readonly buffer Extra { uint extra[]; };
layout(set = 0, binding = 3) buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint gates_offset;
    uint r_offset;
    uint extra_offset;
    uint result_offset;
    uint steps;
    uint first;
    uint end;
    uint directions;
    uint batch;
    uint hidden;
    uint backwards;
    uint lengths_at;
    float clip;
};

const uint STEPS = 4u; // along the state, of which the weights are read together
// Areas of shared memory: h before and after a step, by steps; what the last gate of a gru multiplies; its update gate, or c.
const uint RESET = 2u, KEPT = 3u, AREAS = 4u;
shared float states[AREAS * SEQUENCES * ROOM];
float sums[GATES * SEQUENCES]; // of an invocation: what goes into the gates of a state
uint direction, first_sequence, time_now; // of a group

uint place(uint area, uint s, uint unit) { return (area * SEQUENCES + s) * ROOM + unit; }

uint sequence_of(uint s) { return min(first_sequence + s, batch - 1u); }

uint row(uint step, uint s) { return result_offset + ((step * directions + direction) * batch + sequence_of(s)) * hidden; }

float gate_of(uint s, uint gate, uint unit) {
    const uint at = (direction * steps + time_now) * batch + sequence_of(s);
    return gates[gates_offset + (at * GATES + gate) * hidden + unit];
}

#include "rnn_scan.glsl"

void add_step(uint area, uint from, uint to, uint k, float weight[STEPS * GATES], uint rounds) {
    for (uint s = 0u; s < SEQUENCES; ++s) {
        for (uint i = 0u; i < rounds; ++i) {
            const float h = states[place(area, s, k + i)];
            for (uint g = from; g < to; ++g) sums[g * SEQUENCES + s] += h * weight[i * GATES + g];
        }
    }
}

// Adds the products of an area with the weights of some gates, from..to-1, of a state.
void add_products(uint area, uint from, uint to, uint unit) {
    const uint columns = GATES * hidden;
    uint at = r_offset + direction * hidden * columns + unit;
    uint k = 0u;
    float weight[STEPS * GATES];
    for (; k + STEPS <= hidden; k += STEPS) {
        for (uint i = 0u; i < STEPS; ++i) {
            for (uint g = from; g < to; ++g) weight[i * GATES + g] = r[at + i * columns + g * hidden];
        }
        add_step(area, from, to, k, weight, STEPS);
        at += STEPS * columns;
    }
    for (; k < hidden; ++k) {
        for (uint g = from; g < to; ++g) weight[g] = r[at + g * hidden];
        add_step(area, from, to, k, weight, 1u);
        at += columns;
    }
}

void begin(uint gate, uint unit) {
    for (uint s = 0u; s < SEQUENCES; ++s) sums[gate * SEQUENCES + s] = gate_of(s, gate, unit);
}

// A state after this step.
void finish(uint now, uint s, uint unit, float made) {
    const bool alive = is_alive(sequence_of(s));
    states[place(1u - now, s, unit)] = mix(states[place(now, s, unit)], made, alive);
    if (first_sequence + s < batch) result[row(time_now, s) + unit] = mix(0.0, made, alive);
}

#if GATES == 1
void step_of(uint now) {
    for (uint unit = gl_LocalInvocationIndex; unit < hidden; unit += gl_WorkGroupSize.x) {
        begin(0u, unit);
        add_products(now, 0u, 1u, unit);
        for (uint s = 0u; s < SEQUENCES; ++s) finish(now, s, unit, activate(0u, sums[s]));
    }
}
#elif GATES == 3
void hidden_of(uint now, uint s, uint unit, float update, float inner) {
    const float hidden = activate(1u, gate_of(s, 2u, unit) + inner);
    finish(now, s, unit, hidden + update * (states[place(now, s, unit)] - hidden));
}

void step_of(uint now) {
    for (uint unit = gl_LocalInvocationIndex; unit < hidden; unit += gl_WorkGroupSize.x) {
        begin(0u, unit);
        begin(1u, unit);
        const float own = own_of(2u, unit);
        for (uint s = 0u; s < SEQUENCES; ++s) sums[2u * SEQUENCES + s] = own;
        if (LINEAR != 0u) {
            add_products(now, 0u, 3u, unit);
        } else {
            add_products(now, 0u, 2u, unit);
        }
        for (uint s = 0u; s < SEQUENCES; ++s) {
            const float update = activate(0u, sums[s]);
            const float reset = activate(0u, sums[SEQUENCES + s]);
            if (LINEAR != 0u) {
                hidden_of(now, s, unit, update, reset * sums[2u * SEQUENCES + s]);
            } else {
                states[place(KEPT, s, unit)] = update;
                states[place(RESET, s, unit)] = reset * states[place(now, s, unit)];
            }
        }
    }
    if (LINEAR == 0u) {
        barrier();
        for (uint unit = gl_LocalInvocationIndex; unit < hidden; unit += gl_WorkGroupSize.x) {
            for (uint s = 0u; s < SEQUENCES; ++s) sums[2u * SEQUENCES + s] = 0.0;
            add_products(RESET, 2u, 3u, unit);
            for (uint s = 0u; s < SEQUENCES; ++s) {
                hidden_of(now, s, unit, states[place(KEPT, s, unit)], sums[2u * SEQUENCES + s]);
            }
        }
    }
}
#else
void step_of(uint now) {
    for (uint unit = gl_LocalInvocationIndex; unit < hidden; unit += gl_WorkGroupSize.x) {
        for (uint g = 0u; g < GATES; ++g) begin(g, unit);
        add_products(now, 0u, GATES, unit);
        const vec3 own = own_of_gates(unit);
        for (uint s = 0u; s < SEQUENCES; ++s) {
            const float before = states[place(KEPT, s, unit)];
            const vec4 given = vec4(sums[s], sums[SEQUENCES + s], sums[2u * SEQUENCES + s], sums[3u * SEQUENCES + s]);
            float c = before;
            const float h = lstm_of(given, own, c);
            states[place(KEPT, s, unit)] = mix(before, c, is_alive(sequence_of(s)));
            finish(now, s, unit, h);
        }
    }
}
#endif

void run() {
    const uint lane = gl_LocalInvocationIndex;
    for (uint i = lane; i < SEQUENCES * hidden; i += gl_WorkGroupSize.x) {
        const uint s = i / hidden, unit = i - s * hidden;
        states[place(first & 1u, s, unit)] = result[row(steps, s) + unit];
        if (GATES == 4u) states[place(KEPT, s, unit)] = result[row(steps + 1u, s) + unit];
    }
    barrier();
    for (uint step = first; step < end; ++step) {
        time_now = ((backwards >> direction) & 1u) != 0u ? steps - 1u - step : step;
        step_of(step & 1u);
        barrier();
    }
    for (uint i = lane; i < SEQUENCES * hidden; i += gl_WorkGroupSize.x) {
        const uint s = i / hidden, unit = i - s * hidden;
        if (first_sequence + s >= batch) continue;
        result[row(steps, s) + unit] = states[place(end & 1u, s, unit)];
        if (GATES == 4u) result[row(steps + 1u, s) + unit] = states[place(KEPT, s, unit)];
    }
}

void main() {
    const uint blocks = (batch + SEQUENCES - 1u) / SEQUENCES;
    for (uint group = gl_WorkGroupID.x; group < directions * blocks; group += gl_NumWorkGroups.x) {
        direction = group / blocks;
        first_sequence = (group - direction * blocks) * SEQUENCES;
        run();
        barrier(); // the states have been read
    }
}
