#version 450
// One step of a recurrent layer, whose product of the states and the weights is made; h and c go to the next one.
// gates: (directions, steps, batch, GATES * hidden), extra: own (directions, GATES * hidden) and lengths (batch), work: the
// product (directions, batch, GATES * hidden), h and of a gru reset * h (directions, batch, hidden) each, result: (steps +
// states, directions, batch, hidden).
// An invocation makes one state of a sequence at a time. PART of a gru: 1 up to what the weights of its last gate multiply, 2
// what follows; all else has one part, 0.
// Source: as rnn_scan.comp.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 9) const uint PART = 0;

layout(set = 0, binding = 0) readonly buffer Gates { float gates[]; };
layout(set = 0, binding = 1) readonly buffer Extra { uint extra[]; };
layout(set = 0, binding = 2) buffer Work { float work[]; };
layout(set = 0, binding = 3) buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint gates_offset;
    uint extra_offset;
    uint work_offset;
    uint result_offset;
    uint steps;
    uint step;
    uint directions;
    uint batch;
    uint hidden;
    uint backwards;
    uint lengths_at;
    uint h_at;
    uint reset_at;
    float clip;
};

uint direction, time_now;
#include "rnn_scan.glsl"

// line: a direction and a sequence.
uint at_result(uint row, uint line, uint unit) { return result_offset + (row * directions * batch + line) * hidden + unit; }

void make(uint line, uint unit) {
    direction = line / batch;
    const uint sequence = line - direction * batch;
    time_now = ((backwards >> direction) & 1u) != 0u ? steps - 1u - step : step;
    const uint product = work_offset + line * GATES * hidden + unit;
    const uint from = gates_offset + ((direction * steps + time_now) * batch + sequence) * GATES * hidden + unit;
    const uint state = line * hidden + unit;
    const float h = work[work_offset + h_at + state];
    const bool alive = is_alive(sequence);
#if GATES == 1
    const float made = activate(0u, gates[from] + work[product]);
#elif GATES == 3
    float update, inner;
    if (PART == 2u) {
        update = result[at_result(steps, line, unit)];
        inner = work[product + 2u * hidden];
    } else {
        update = activate(0u, gates[from] + work[product]);
        const float reset = activate(0u, gates[from + hidden] + work[product + hidden]);
        if (PART == 1u) {
            result[at_result(steps, line, unit)] = update;
            work[work_offset + reset_at + state] = reset * h;
            return;
        }
        inner = reset * (work[product + 2u * hidden] + own_of(2u, unit));
    }
    const float last = activate(1u, gates[from + 2u * hidden] + inner);
    const float made = last + update * (h - last);
#else
    vec4 given;
    for (uint g = 0u; g < GATES; ++g) given[g] = gates[from + g * hidden] + work[product + g * hidden];
    const float before = result[at_result(steps + 1u, line, unit)];
    float c = before;
    const float made = lstm_of(given, own_of_gates(unit), c);
    result[at_result(steps + 1u, line, unit)] = mix(before, c, alive);
#endif
    const float next = mix(h, made, alive);
    work[work_offset + h_at + state] = next;
    result[at_result(steps, line, unit)] = next;
    result[at_result(time_now, line, unit)] = mix(0.0, made, alive);
}

void main() {
    const uint lines = directions * batch;
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < lines * hidden; i += stride) {
        const uint line = i / hidden;
        make(line, i - line * hidden);
    }
}
