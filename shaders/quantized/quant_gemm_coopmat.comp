#version 450
// result[m, n] = sum over k of x[m, k] * w[n, k] (+ bias) for many rows m: quantized weights become float16 in shared memory, products are
// of float16, sums in float32 (coopmat.glsl), or with FP16_SUMS in float16 for FP16_RUNS runs. x is float32, or float16 with FP16_X. Up to three weights w, whose results lie where the push block tells; or with a GATE two:
// activation(x W1) * (x W2), of as many columns as one of them, which FP16_RESULT stores as float16. A bias is for one weight.
// With ROTARY results lie by heads, (heads, m, head_size), and the first of them are rotated (rotary.glsl).
// One workgroup computes a tile of one weight, or with a GATE half a tile of both: the columns of a subgroup are half of each.
// Groups of neighbouring x share columns of weights. Each step of TILE_K is loaded while the one before is multiplied. Groups
// of other z take other runs of k, each SPLIT_RUNS, and write partial sums.
// Source: NVIDIA, CUTLASS: efficient GEMM in CUDA, 2017 (tiles of groups, of subgroups and of matrix instructions).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 10) const uint WEIGHTS = 1;
layout(constant_id = 11) const uint GATE = 0;
layout(constant_id = 12) const uint FP16_X = 0;
layout(constant_id = 13) const uint FP16_RESULT = 0;
layout(constant_id = 14) const uint ROTARY = 0; // 1: pairs are half a head's pairs apart; 2: they are neighbours
const uint SILU = 1u, GELU = 2u; // 3: GELU by tanh
#define NATIVE_FP16
#include "load_words.glsl"
#include "quant_formats.glsl"

layout(set = 0, binding = 0) readonly buffer A { uvec4 a[]; };
layout(set = 0, binding = 1) readonly buffer B { LOAD_OF_B b[]; };
layout(set = 0, binding = 2) readonly buffer Second { LOAD_OF_B second[]; };
layout(set = 0, binding = 3) readonly buffer Third { LOAD_OF_B third[]; };
layout(set = 0, binding = 4) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 5) writeonly buffer Result { uint result[]; };
layout(set = 0, binding = 6) readonly buffer Residual { uint residual[]; } residual_buffer;
#define OF_RESIDUAL 6 // no residual with ROTARY, and the cosines are in place of a bias
layout(set = 0, binding = OF_RESIDUAL) readonly buffer Sine { float sine[]; };
VIEWS(1, b)
VIEWS(2, second)
VIEWS(3, third)
layout(push_constant) uniform Push {
    uint a_offset;
    uint b_offset;
    uint second_offset;
    uint third_offset;
    uint bias_offset;
    uint result_offset;
    uint residual_offset;
    uint m;
    uint k;
    uint sizes[3]; // rows of each weight
    uint begins[3]; // where its results begin
    uint strides[3]; // from a row of them to the next
    uint b_column; // words of a row of a weight
    uint has_bias;
    uint split_runs;
    uint split_words; // from the partial sums of a split to those of the next
    uint rotations[3]; // columns of each weight with rotary embedding
    uint head_size;
    uint head_step; // from a head of results to the next
    uint rotary_pairs;
};
#ifdef Q5_1
#define LOADS_MUCH true // words of codes, of their highest bits, and of scales
#endif
#include "coopmat.glsl"
#include "epilogue.glsl"

uint weight; // the one that is read
uint rotated; // its columns with rotary embedding
#define INTERLEAVED (ROTARY - 1u)
#define cosine bias
#define cosine_offset bias_offset
#define sine_offset residual_offset
#include "rotary.glsl"

LOAD_OF_B unit_of_b(uint unit) {
    if (WEIGHTS > 1u && weight == 1u) return second[unit];
    if (WEIGHTS > 2u && weight == 2u) return third[unit];
    return b[unit];
}
#ifdef HAS_PAIRS
PAIR pair_of_b(uint pair) {
    if (WEIGHTS > 1u && weight == 1u) return second_pairs[pair];
    if (WEIGHTS > 2u && weight == 2u) return third_pairs[pair];
    return b_pairs[pair];
}
#endif
uint word_of_b(uint at) {
    if (WEIGHTS > 1u && weight == 1u) return second_words[at];
    if (WEIGHTS > 2u && weight == 2u) return third_words[at];
    return b_words[at];
}
#define UNIT_OF_B(unit) unit_of_b(unit)
#define PAIR_OF_B(pair) pair_of_b(pair)
#define WORD_OF_B(at) word_of_b(at)
#include "quant_block.glsl"
#include "quant_half_run.glsl"

const uint RUNS_OF_TILE = 8u;
const uint FP16_RUNS = 4u; // of FP16_SUMS
const uint PARTS_OF_TILE = GATE != 0u ? 2u : 1u; // weights whose columns a tile has
const uint A_IDS = TILE_M * EIGHTS;
const uint B_IDS = TILE_N * 2u;
const uint A_PASSES = A_IDS > SIZE ? A_IDS / SIZE : 1u;
const uint B_PASSES = B_IDS > SIZE ? B_IDS / SIZE : 1u;
const uint A_READS = FP16_X != 0u ? 1u : 2u; // of an eight
uvec4 a_read[A_PASSES * A_READS];
uint a_at[A_PASSES]; // uvec4s before those that an invocation loads
uint a_to; // where the first are put
HalfRun b_read[B_PASSES];
Head b_heads[B_PASSES];
uint b_line[B_PASSES]; // the unit where a row of a weight starts
uint b_weight[B_PASSES];
uint b_to[B_PASSES];

uint half_run; // the half that an invocation decodes

uint id_of(uint pass) { return gl_LocalInvocationID.x + pass * SIZE; }

// The row of a weight that a column of the tile has, from the first one, and with a GATE the weight.
uint row_of(uint column) {
    if (GATE == 0u) return column;
    return column / OWN_N * (OWN_N / 2u) + column % (OWN_N / 2u);
}

uint start_of(uint which) { return which == 0u ? b_offset : which == 1u ? second_offset : third_offset; }

void start(uint row, uint column) {
    [[unroll]] for (uint i = 0u; i < A_PASSES; ++i) {
        const uint id = id_of(i);
        a_at[i] = (min(row + id / EIGHTS % TILE_M, m - 1u) * (k / 8u) + id % EIGHTS) * A_READS + a_offset / 4u;
    }
    a_to = id_of(0u) / EIGHTS * LINE + id_of(0u) % EIGHTS;
    half_run = id_of(0u) % 2u;
    [[unroll]] for (uint i = 0u; i < B_PASSES; ++i) {
        const uint own = id_of(i) / 2u % TILE_N;
        b_to[i] = own * LINE + half_run * 2u;
        b_weight[i] = GATE != 0u ? own % OWN_N / (OWN_N / 2u) : weight;
        uint line = min(column + row_of(own), sizes[b_weight[i]] - 1u);
        if (ROTARY != 0u) line = rotary_column(line / 4u) + line % 4u;
        b_line[i] = (start_of(b_weight[i]) + line * b_column) / UNIT;
    }
}

void fetch(uint run, bool new_tile) {
    [[unroll]] for (uint i = 0u; i < A_PASSES; ++i) {
        const uint at = a_at[i] + run * (EIGHTS * A_READS);
        [[unroll]] for (uint j = 0u; j < A_READS; ++j) a_read[A_READS * i + j] = a[at + j];
    }
    const uint tile = run / RUNS_OF_TILE, before = units_before(tile);
    [[unroll]] for (uint i = 0u; i < B_PASSES; ++i) {
        weight = b_weight[i];
        if (new_tile) b_heads[i] = head_of(b_line[i], tile, b_line[i] + before);
        b_read[i] = half_run_of(b_line[i], before, run % RUNS_OF_TILE, half_run);
    }
}

void put(uint run) {
    if (A_IDS >= SIZE || gl_LocalInvocationID.x < A_IDS) {
        [[unroll]] for (uint i = 0u; i < A_PASSES; ++i) {
            uvec4 eight = a_read[A_READS * i];
            if (FP16_X == 0u) {
                const vec4 x = uintBitsToFloat(eight), y = uintBitsToFloat(a_read[A_READS * i + A_READS - 1u]);
                eight = uvec4(fp16_pair(x.xy), fp16_pair(x.zw), fp16_pair(y.xy), fp16_pair(y.zw));
            }
            a_tile[a_to + i * (SIZE / EIGHTS * LINE)] = eight;
        }
    }
    if (B_IDS >= SIZE || gl_LocalInvocationID.x < B_IDS) {
        [[unroll]] for (uint i = 0u; i < B_PASSES; ++i) {
            uvec4 first, second;
            const vec2 scale = scale_of_half(b_heads[i], run % RUNS_OF_TILE, half_run);
            decode_half_run(b_read[i], scale, half_run, first, second);
            b_tile[b_to[i]] = first;
            b_tile[b_to[i] + 1u] = second;
        }
    }
}

// Four results that lie by heads: `column` is their number in the order in which they are computed.
void store_of_head(uint which, uint row, uint column, vec4 values) {
    const uint to = column % MATRIX_N ^ 4u; // of the other values of their pairs, in the matrix that `done` holds
    const uint at = (gl_SubgroupID * MATRIX_M + row % MATRIX_M) * MATRIX_N + to;
    const vec4 partner = ROTARY == 1u ? vec4(done[at], done[at + 1u], done[at + 2u], done[at + 3u]) : vec4(0.0);
    const uint own = rotary_column(column / 4u);
    values = rotate(values, partner, row, own);
    const uint place = result_offset + begins[which] + own / head_size * head_step + row * head_size + own % head_size;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) result[place + i] = floatBitsToUint(values[i]);
}

// which: the weight whose results these are.
void store4(uint which, uint row, uint column, vec4 values) {
    const uint size = sizes[which];
    if (row >= m || column >= size) return;
    if (ROTARY != 0u) {
        store_of_head(which, row, column, values);
        return;
    }
    const uint start = result_offset + gl_WorkGroupID.z * split_words + begins[which] + row * strides[which];
    const uvec4 own = elements(column, size - 1u);
    if (has_bias != 0u) {
        const uvec4 at = bias_offset + own;
        values += vec4(bias[at.x], bias[at.y], bias[at.z], bias[at.w]);
    }
    values = epilogue(values, start + own);
    if (FP16_RESULT != 0u) { // of whole fours
        const uint to = result_offset + (row * size + column) / 2u;
        result[to] = fp16_pair(values.xy);
        result[to + 1u] = fp16_pair(values.zw);
        return;
    }
    const uint at = start + column;
    result[at] = floatBitsToUint(values.x);
    if (column + 1u < size) result[at + 1u] = floatBitsToUint(values.y);
    if (column + 2u < size) result[at + 2u] = floatBitsToUint(values.z);
    if (column + 3u < size) result[at + 3u] = floatBitsToUint(values.w);
}

shared float done_second[GATE != 0u ? SUBGROUPS * MATRIX_M * MATRIX_N : 1u];

float activation(float x) { return GATE == SILU ? x * sigmoid(x) : GATE == GELU ? gelu_erf(x) : gelu_tanh(x); }

// As store_sums, of the sums of both weights.
void store_gated(uint row, uint column) {
    const uvec2 own = own_place();
    const uint to = gl_SubgroupID * MATRIX_M * MATRIX_N, across = ACROSS / 2u;
    [[dont_unroll]] for (uint part = 0u; part < DOWN * across; ++part) {
        barrier(); // the one before has been read
        [[unroll]] for (uint i = 0u; i < DOWN * across; ++i) {
            const uint at = i / across * ACROSS + i % across;
            if (i == part) {
                coopMatStore(sums[at], done, to, MATRIX_N, gl_CooperativeMatrixLayoutRowMajor);
                coopMatStore(sums[at + across], done_second, to, MATRIX_N, gl_CooperativeMatrixLayoutRowMajor);
            }
        }
        barrier();
        const uint first_row = row + own.x + part / across * MATRIX_M;
        const uint first_column = column + own.y / 2u + part % across * MATRIX_N;
        for (uint i = gl_SubgroupInvocationID * 4u; i < MATRIX_M * MATRIX_N; i += SUBGROUP_SIZE * 4u) {
            vec4 values;
            [[unroll]] for (uint c = 0u; c < 4u; ++c) values[c] = activation(done[to + i + c]) * done_second[to + i + c];
            store4(0u, first_row + i / MATRIX_N, first_column + i % MATRIX_N, values);
        }
    }
}

void compute_tile(uint row, uint column) {
    clear_sums();
    start(row, column);
    const uint end = min((gl_WorkGroupID.z + 1u) * split_runs, k / TILE_K);
    uint run = gl_WorkGroupID.z * split_runs;
    fetch(run, true);
    [[dont_unroll]] for (; run < end; ++run) {
        barrier(); // the tiles of the step before have been read
        put(run);
        barrier();
        const uint next = min(run + 1u, end - 1u);
        fetch(next, next % RUNS_OF_TILE == 0u);
        multiply();
#ifdef FP16_SUMS
        if (run % FP16_RUNS == FP16_RUNS - 1u || run + 1u == end) add_fp16_sums();
#endif
    }
    if (GATE != 0u) store_gated(row, column);
    else store_sums(weight, row, column);
}

void main() {
    uint column = gl_WorkGroupID.y * (TILE_N / PARTS_OF_TILE);
    weight = 0u;
    if (GATE == 0u) {
        // the tiles of a weight are behind those of the weight before
        [[unroll]] for (uint i = 0u; i + 1u < WEIGHTS; ++i) {
            const uint tiles = (sizes[i] + TILE_N - 1u) / TILE_N * TILE_N;
            if (weight == i && column >= tiles) {
                column -= tiles;
                weight = i + 1u;
            }
        }
    }
    rotated = rotations[weight];
    for (uint row = gl_WorkGroupID.x * TILE_M; row < m; row += gl_NumWorkGroups.x * TILE_M) compute_tile(row, column);
}
