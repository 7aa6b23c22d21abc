// The kernel of quant_gemm_coopmat.comp and quant_gemm_coopmat_splitk.comp: sums of a tile.
#ifdef Q5_1
#define LOADS_MUCH true // words of codes, of their highest bits, and of scales
#endif
#include "coopmat.glsl"
#include "epilogue.glsl"

#include "quant_gemm_weights.glsl"

const uint RUNS_OF_TILE = 8u;
const uint FP16_RUNS = 4u; // of FP16_SUMS
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

// The row of a weight with the column that is computed `column`-th.
uint line_of(uint column);

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
        b_line[i] = (start_of(b_weight[i]) + line_of(line) * b_column) / UNIT;
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

// Store the sums of a tile of `weight` that begins at `row` and `column`.
void store_tile(uint row, uint column);

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
    store_tile(row, column);
}

void main() {
    const uint column = find_weight(gl_WorkGroupID.y);
    for (uint row = gl_WorkGroupID.x * TILE_M; row < m; row += gl_NumWorkGroups.x * TILE_M) compute_tile(row, column);
}
