// BATCH rows of x times quantized weights: buffers, sums over k, epilogue. A team of SPLITS subgroups computes ROWS rows of weights, lanes along
// k: a lane reads a run of 32 codes of each row, SPLITS * gl_SubgroupSize runs apart. Of two weights with a GATE, half of the rows are of the
// first and half of the second. With ROTARY, columns of heads stand in the order of their pairs, which are within a team.
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint ROWS = 2;
layout(constant_id = 4) const uint SPLITS = 1;
layout(constant_id = 5) const uint MAX_RUNS = 64; // in shared memory
layout(constant_id = 6) const uint NORMED = 0;
layout(constant_id = 7) const uint GATE = 0;
layout(constant_id = 8) const uint WEIGHTS = 1;
layout(constant_id = 9) const uint SUBGROUPS = 16; // of a workgroup
layout(constant_id = 10) const uint BATCH = 1;
layout(constant_id = 11) const uint STACKED = 0; // results of weights are matrices, one after another
const uint MOST_ROWS = 4u;
const uint SILU = 1u, GELU = 2u; // 3: GELU by tanh

#include "norm_range.glsl"
#include "epilogue.glsl"
#include "quant_runs.glsl"
const uint COLUMNS = GATE == 0u ? ROWS : ROWS / 2u; // of a team
const uint SUMS_OF_TEAM = ROWS * BATCH;
// The words of a run are loaded a round before, the first ones while x is staged. With more sums a round has instructions enough for other
// subgroups to hide the latency, and a second run of each row takes registers and copies.
const bool PREFETCH = SUMS_OF_TEAM <= 8u;
float sums[SUMS_OF_TEAM]; // of row r of weights and row i of x: sums[r * BATCH + i]
shared float sums_of[SUBGROUPS * SUMS_OF_TEAM];
#include "quant_row_fp16.glsl"
#ifdef ROTARY
#include "rotary_pairs.glsl"
#else
uint column_of(uint slot) { return slot; }
#endif

float activation(float x) { return GATE == SILU ? x * sigmoid(x) : GATE == GELU ? gelu_erf(x) : gelu_tanh(x); }

// Of the rows of a team: the weight that they are of, and where its rows start.
struct Rows {
    uint weight;
    uint starts[MOST_ROWS];
};

uint weight_of(uint slot) { return GATE != 0u || WEIGHTS == 1u || slot < ends[0] ? 0u : WEIGHTS == 2u || slot < ends[1] ? 1u : 2u; }
uint begin_of(uint weight) { return weight == 0u ? 0u : ends[weight - 1u]; }

Rows rows_from(uint slot) {
    Rows rows;
    rows.weight = weight_of(slot);
    const uint offset = rows.weight == 0u ? b_offset : rows.weight == 1u ? second_offset : third_offset;
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        const uint own = column_of(min(slot + r % COLUMNS, n - 1u)) - begin_of(rows.weight);
        rows.starts[r] = (GATE != 0u && r >= COLUMNS ? second_offset : offset) + own * b_column;
    }
    return rows;
}

#define LOAD_ROWS(WEIGHT_OF_ROW) [[unroll]] for (uint r = 0u; r < ROWS; ++r) { loaded[r] = load_run_##WEIGHT_OF_ROW(rows.starts[r], tile, in_tile); }

void load_rows(Rows rows, uint tile, uint in_tile, out Run loaded[MOST_ROWS]) {
    if (GATE != 0u) {
        [[unroll]] for (uint r = 0u; r < COLUMNS; ++r) loaded[r] = load_run_b(rows.starts[r], tile, in_tile);
        [[unroll]] for (uint r = COLUMNS; r < ROWS; ++r) loaded[r] = load_run_second(rows.starts[r], tile, in_tile);
    } else if (WEIGHTS > 1u && rows.weight == 1u) {
        LOAD_ROWS(second)
    } else if (WEIGHTS > 2u && rows.weight == 2u) {
        LOAD_ROWS(third)
    } else {
        LOAD_ROWS(b)
    }
}

// The sum of row r of weights of the team whose first subgroup this is, by row `row` of x.
float sum_of(uint r, uint row) {
    const uint at = gl_SubgroupID * SUMS_OF_TEAM + r * BATCH + row;
    float sum = sums_of[at];
    if (SPLITS > 1u) [[dont_unroll]] for (uint split = 1u; split < SPLITS; ++split) sum += sums_of[at + split * SUMS_OF_TEAM];
    return sum;
}

// factor: of sums.
void store_column(uint slot, uint r, uint row, float factor) {
    const uint column = column_of(slot), to_row = gl_WorkGroupID.y * BATCH + row;
    float value = sum_of(r, row) * factor;
    if (GATE != 0u) value = activation(value) * (sum_of(COLUMNS + r, row) * factor);
#ifdef ROTARY
    value = rotate_pair(value, sum_of(r ^ 1u, row) * factor, to_row, slot);
#else
    if (BIASED != 0u) value += bias[bias_offset + column];
#endif
    uint at = to_row * n + column;
    if (STACKED != 0u && WEIGHTS > 1u) {
        const uint weight = weight_of(slot), begin = begin_of(weight), end = weight + 1u == WEIGHTS ? n : ends[weight];
        at = begin * m + to_row * (end - begin) + column - begin;
    }
    at += result_offset;
    if (slot < n && (BATCH == 1u || to_row < m)) result[at] = epilogue(vec4(value), uvec4(at)).x;
}

void main() {
    const uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    const uint team = gl_SubgroupID / SPLITS, split = gl_SubgroupID % SPLITS;
    const uint slot = (gl_WorkGroupID.x * (SUBGROUPS / SPLITS) + team) * COLUMNS;
    const uint runs = k / RUN, step = SPLITS * gl_SubgroupSize;
    const uint staged = (MAX_RUNS + step - 1u) / step * step; // runs at a time
    const uint first = split * gl_SubgroupSize + gl_SubgroupInvocationID;
    const uint in_tile = min(first, runs - 1u) % 8u; // the same for all runs of a lane
    const uint last_tile = (runs - 1u - in_tile) / 8u;
    const Rows rows = rows_from(slot);
    Run next[MOST_ROWS];
    if (PREFETCH) load_rows(rows, min(first / 8u, last_tile), in_tile, next);
    [[unroll]] for (uint s = 0u; s < SUMS_OF_TEAM; ++s) sums[s] = 0.0;
    by = 1.0;
    rate = 1.0;
    power = 1.0;
    float back;
    fill_numbers();
    [[dont_unroll]] for (uint begin = 0u; begin < runs; begin += staged) {
        uint pass = begin == 0u ? MEASURE : STAGE;
        [[dont_unroll]] while (true) {
            if (begin > 0u || pass == MEASURE_AGAIN) barrier(); // all have read the previous values
            go_over_rows(lane, pass, begin);
            if (pass == STAGE) break;
            pass = pass_after(pass);
            if (pass == STAGE) back = finish_measuring();
        }
        const uint end = min(staged, runs - begin);
        uint tile = (begin + first) / 8u;
        [[dont_unroll]] for (uint run = first; run < end; run += step) {
            if (!PREFETCH) load_rows(rows, tile, in_tile, next);
            const Run own[MOST_ROWS] = next;
            tile += step / 8u;
            if (PREFETCH) load_rows(rows, min(tile, last_tile), in_tile, next);
            add_run(own, in_tile, run);
        }
    }
    [[unroll]] for (uint s = 0u; s < SUMS_OF_TEAM; ++s) sums[s] = subgroupAdd(sums[s]);
    if (subgroupElect()) [[unroll]] for (uint s = 0u; s < SUMS_OF_TEAM; ++s) sums_of[gl_SubgroupID * SUMS_OF_TEAM + s] = sums[s];
    if (SPLITS > 1u) barrier();
    else subgroupBarrier();
    if (split != 0u) return;
    const uint results = COLUMNS * BATCH;
    for (uint first = 0u; first < results; first += gl_SubgroupSize) { // a lane stores a result
        const uint own = first + gl_SubgroupInvocationID, row = min(own / COLUMNS, BATCH - 1u);
        const float factor = of_row(back, row);
        if (own < results) store_column(slot + own % COLUMNS, own % COLUMNS, row, factor);
        if (results <= 8u) break; // the smallest subgroup
    }
}
