// A row times quantized weights: buffers, sums over k, epilogue. A team of SPLITS subgroups computes ROWS rows of weights, lanes along k:
// a lane reads a run of 32 codes of each row, SPLITS * gl_SubgroupSize runs apart. Of two weights with a GATE, half of the rows are of the
// first and half of the second.
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint ROWS = 2;
layout(constant_id = 4) const uint SPLITS = 1;
layout(constant_id = 5) const uint MAX_RUNS = 64; // in shared memory
layout(constant_id = 6) const uint NORMED = 0;
layout(constant_id = 7) const uint GATE = 0;
layout(constant_id = 8) const uint WEIGHTS = 1;
layout(constant_id = 9) const uint BIASED = 0;
layout(constant_id = 10) const uint SUBGROUPS = 16; // of a workgroup
const uint MOST_ROWS = 4u;
const uint SILU = 1u, GELU = 2u; // 3: GELU by tanh
#include "load_words.glsl"
#include "quant_formats.glsl"

layout(set = 0, binding = 0) readonly buffer A { vec4 a[]; };
layout(set = 0, binding = 1) readonly buffer Scale { vec4 scale[]; };
layout(set = 0, binding = 2) readonly buffer B { LOAD_OF_B b[]; };
layout(set = 0, binding = 3) readonly buffer Second { LOAD_OF_B second[]; };
layout(set = 0, binding = 4) readonly buffer Third { LOAD_OF_B third[]; };
layout(set = 0, binding = 5) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 6) writeonly buffer Result { float result[]; };
layout(set = 0, binding = 7) readonly buffer Residual { uint residual[]; } residual_buffer;
VIEWS(2, b)
VIEWS(3, second)
VIEWS(4, third)
layout(push_constant) uniform Push {
    uint a_offset;
    uint scale_offset;
    uint b_offset;
    uint second_offset;
    uint third_offset;
    uint bias_offset;
    uint result_offset;
    uint residual_offset;
    uint n;
    uint k;
    uint ends[2]; // the columns where the first and the second weight end, without a gate
    uint b_column; // words of a row of a weight
    float eps;
};
#include "norm_range.glsl"
#include "epilogue.glsl"
#include "quant_runs.glsl"
#include "quant_row_fp16.glsl"

const uint COLUMNS = GATE == 0u ? ROWS : ROWS / 2u; // results of a team
shared float sums_of[SUBGROUPS * ROWS];

float activation(float x) { return GATE == SILU ? x * sigmoid(x) : GATE == GELU ? gelu_erf(x) : gelu_tanh(x); }

// Of the rows of a team: the weight that they are of, and where its rows start.
struct Rows {
    uint weight;
    uint starts[MOST_ROWS];
};

Rows rows_from(uint column) {
    Rows rows;
    rows.weight = GATE != 0u || WEIGHTS == 1u || column < ends[0] ? 0u : WEIGHTS == 2u || column < ends[1] ? 1u : 2u;
    const uint begin = rows.weight == 0u ? 0u : ends[rows.weight - 1u];
    const uint offset = rows.weight == 0u ? b_offset : rows.weight == 1u ? second_offset : third_offset;
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        const uint own = min(column + r % COLUMNS, n - 1u) - begin;
        rows.starts[r] = (GATE != 0u && r >= COLUMNS ? second_offset : offset) + own * b_column;
    }
    return rows;
}

#define LOAD_ROWS(WEIGHT_OF_ROW) [[unroll]] for (uint r = 0u; r < ROWS; ++r) { loaded[r] = load_run_##WEIGHT_OF_ROW(rows.starts[r], run); }

void load_rows(Rows rows, uint run, out Run loaded[MOST_ROWS]) {
    if (GATE != 0u) {
        [[unroll]] for (uint r = 0u; r < COLUMNS; ++r) loaded[r] = load_run_b(rows.starts[r], run);
        [[unroll]] for (uint r = COLUMNS; r < ROWS; ++r) loaded[r] = load_run_second(rows.starts[r], run);
    } else if (WEIGHTS > 1u && rows.weight == 1u) {
        LOAD_ROWS(second)
    } else if (WEIGHTS > 2u && rows.weight == 2u) {
        LOAD_ROWS(third)
    } else {
        LOAD_ROWS(b)
    }
}

// The value of column `own` of a team. back: what sums are multiplied by.
float result_of(float sums[MOST_ROWS], uint own, float back) {
    float value = sums[0], up = sums[COLUMNS % ROWS];
    [[unroll]] for (uint r = 1u; r < COLUMNS; ++r) {
        value = own == r ? sums[r] : value;
        if (GATE != 0u) up = own == r ? sums[(COLUMNS + r) % ROWS] : up;
    }
    value *= back;
    return GATE == 0u ? value : activation(value) * (up * back);
}

void store_column(uint column, float value) {
    if (BIASED != 0u) value += bias[bias_offset + column];
    const uint at = result_offset + column;
    result[at] = epilogue(vec4(value), uvec4(at)).x;
}

void main() {
    const uint team = gl_SubgroupID / SPLITS, split = gl_SubgroupID % SPLITS;
    const uint column = (gl_WorkGroupID.x * (SUBGROUPS / SPLITS) + team) * COLUMNS;
    const uint runs = k / RUN, step = SPLITS * gl_SubgroupSize;
    const Rows rows = rows_from(column);
    const uint first = split * gl_SubgroupSize + gl_SubgroupInvocationID;
    Run next[MOST_ROWS]; // words are read a round before, at first while x is staged
    load_rows(rows, min(first, runs - 1u), next);
    const float back = stage_row();
    float sums[MOST_ROWS] = float[](0.0, 0.0, 0.0, 0.0);
    const uint number = first % 8u;
    [[dont_unroll]] for (uint run = first; run < runs; run += step) {
        const Run own[MOST_ROWS] = next;
        load_rows(rows, min(run + step, runs - 1u), next);
        add_run(own, run, number, sums);
    }
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) sums[r] = subgroupAdd(sums[r]);
    if (SPLITS > 1u) {
        if (subgroupElect()) [[unroll]] for (uint r = 0u; r < ROWS; ++r) sums_of[gl_SubgroupID * ROWS + r] = sums[r];
        barrier();
        if (split == 0u) {
            for (uint other = 1u; other < SPLITS; ++other) {
                [[unroll]] for (uint r = 0u; r < ROWS; ++r) sums[r] += sums_of[(gl_SubgroupID + other) * ROWS + r];
            }
        }
    }
    const uint own = gl_SubgroupInvocationID; // a lane stores a column
    if (split == 0u && own < COLUMNS && column + own < n) store_column(column + own, result_of(sums, own, back));
}
