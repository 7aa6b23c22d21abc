// The kernel of quant_gemm.comp. Steps of TILE_K are loaded while the one before is multiplied. Rows and columns of an invocation are
// apart, so that neighbouring invocations read neighbouring lines of shared memory, which start in different banks.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint TILE_M = 64;
layout(constant_id = 4) const uint TILE_N = 64;
layout(constant_id = 5) const uint DOWN = 4;
layout(constant_id = 6) const uint ACROSS = 4; // a multiple of four
#define NATIVE_FP16
#include "load_words.glsl"
#include "quant_formats.glsl"

layout(set = 0, binding = 0) readonly buffer A { vec4 a[]; };
layout(set = 0, binding = 1) readonly buffer B { LOAD_OF_B b[]; };
layout(set = 0, binding = 2) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 3) writeonly buffer Result { float result[]; };
layout(set = 0, binding = 4) readonly buffer Residual { uint residual[]; } residual_buffer;
VIEWS(1, b)
layout(push_constant) uniform Push {
    uint a_offset;
    uint b_offset;
    uint bias_offset;
    uint result_offset;
    uint residual_offset;
    uint m;
    uint n;
    uint k;
    uint b_column; // words of a row of the weight
    uint has_bias;
};
#include "epilogue.glsl"
#include "quant_block.glsl"
#include "quant_half_run.glsl"

const uint TILE_K = 32u;
const uint EIGHTS = TILE_K / 8u;
const uint LINE = EIGHTS + 1u;
const uint RUNS_OF_TILE = 8u;
const uint SIZE = gl_WorkGroupSize.x;
const uint ROW_STEP = TILE_M / DOWN; // between rows of an invocation
const uint COLUMN_STEP = TILE_N / ACROSS;
const uint A_IDS = TILE_M * EIGHTS;
const uint B_IDS = TILE_N * 2u;
const uint A_PASSES = A_IDS > SIZE ? A_IDS / SIZE : 1u;
const uint B_PASSES = B_IDS > SIZE ? B_IDS / SIZE : 1u;
const uint FOURS = ACROSS / 4u;
shared uvec4 a_tile[TILE_M * LINE];
shared uvec4 b_tile[TILE_N * LINE];
vec4 sums[DOWN * FOURS];
#ifdef FP16_SUMS
f16vec2 fp16_sums[DOWN * ACROSS];
#endif
vec4 a_read[A_PASSES * 2u];
HalfRun b_read[B_PASSES];
Head b_heads[B_PASSES];
uint a_at[A_PASSES]; // vec4s before those that an invocation loads
uint b_line[B_PASSES]; // the unit where a row of the weight starts
uint half_run; // the half that an invocation decodes

uint id_of(uint pass) { return gl_LocalInvocationID.x + pass * SIZE; }

void start(uint row, uint column) {
    [[unroll]] for (uint i = 0u; i < A_PASSES; ++i) {
        const uint id = id_of(i);
        a_at[i] = (min(row + id / EIGHTS % TILE_M, m - 1u) * (k / 8u) + id % EIGHTS) * 2u + a_offset / 4u;
    }
    half_run = id_of(0u) % 2u;
    [[unroll]] for (uint i = 0u; i < B_PASSES; ++i) {
        b_line[i] = (b_offset + min(column + id_of(i) / 2u % TILE_N, n - 1u) * b_column) / UNIT;
    }
}

void fetch(uint run, bool new_tile) {
    [[unroll]] for (uint i = 0u; i < A_PASSES; ++i) {
        const uint at = a_at[i] + run * (EIGHTS * 2u);
        a_read[2u * i] = a[at];
        a_read[2u * i + 1u] = a[at + 1u];
    }
    const uint tile = run / RUNS_OF_TILE, before = units_before(tile);
    [[unroll]] for (uint i = 0u; i < B_PASSES; ++i) {
        if (new_tile) b_heads[i] = head_of(b_line[i], tile, b_line[i] + before);
        b_read[i] = half_run_of(b_line[i], before, run % RUNS_OF_TILE, half_run);
    }
}

void put(uint run) {
    if (A_IDS >= SIZE || gl_LocalInvocationID.x < A_IDS) {
        [[unroll]] for (uint i = 0u; i < A_PASSES; ++i) {
            const vec4 x = a_read[2u * i], y = a_read[2u * i + 1u];
            a_tile[id_of(i) / EIGHTS * LINE + id_of(i) % EIGHTS] =
                uvec4(fp16_pair(x.xy), fp16_pair(x.zw), fp16_pair(y.xy), fp16_pair(y.zw));
        }
    }
    if (B_IDS >= SIZE || gl_LocalInvocationID.x < B_IDS) {
        [[unroll]] for (uint i = 0u; i < B_PASSES; ++i) {
            uvec4 first, second;
            const vec2 scale = scale_of_half(b_heads[i], run % RUNS_OF_TILE, half_run);
            decode_half_run(b_read[i], scale, half_run, first, second);
            const uint to = id_of(i) / 2u * LINE + half_run * 2u;
            b_tile[to] = first;
            b_tile[to + 1u] = second;
        }
    }
}

uvec2 own_place() { return uvec2(gl_LocalInvocationID.x / COLUMN_STEP, gl_LocalInvocationID.x % COLUMN_STEP); }

#ifdef DOT2
// sum + x.x * y.x + x.y * y.y, in float32.
spirv_instruction(extensions = ["SPV_VALVE_mixed_float_dot_product"], capabilities = [6912], id = 6916)
float dot2(f16vec2 x, f16vec2 y, float sum);
#elif !defined(FP16_SUMS)
float dot2(f16vec2 x, f16vec2 y, float sum) {
    const vec2 left = vec2(x), right = vec2(y);
    return fma(left.y, right.y, fma(left.x, right.x, sum));
}
#endif

// Adds the products of what shared memory holds.
void multiply() {
    const uvec2 own = own_place();
#ifdef FP16_SUMS
    [[unroll]] for (uint i = 0u; i < DOWN * ACROSS; ++i) fp16_sums[i] = f16vec2(0.0);
#endif
    [[dont_unroll]] for (uint eight = 0u; eight < EIGHTS; ++eight) {
        uvec4 left[DOWN];
        [[unroll]] for (uint i = 0u; i < DOWN; ++i) left[i] = a_tile[(own.x + i * ROW_STEP) * LINE + eight];
        [[unroll]] for (uint j = 0u; j < ACROSS; ++j) {
            const uvec4 right = b_tile[(own.y + j * COLUMN_STEP) * LINE + eight];
            [[unroll]] for (uint i = 0u; i < DOWN; ++i) {
                [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                    const f16vec2 x = unpackFloat2x16(left[i][c]), y = unpackFloat2x16(right[c]);
#ifdef FP16_SUMS
                    fp16_sums[i * ACROSS + j] = fma(x, y, fp16_sums[i * ACROSS + j]);
#else
                    sums[i * FOURS + j / 4u][j % 4u] = dot2(x, y, sums[i * FOURS + j / 4u][j % 4u]);
#endif
                }
            }
        }
    }
#ifdef FP16_SUMS
    [[unroll]] for (uint i = 0u; i < DOWN * ACROSS; ++i) {
        const vec2 both = vec2(fp16_sums[i]);
        sums[i / 4u][i % 4u] += both.x + both.y;
    }
#endif
}

// Stores four results of a row.
void store(uint row, uvec4 columns, vec4 values) {
    if (row >= m) return;
    const uvec4 own = min(columns, uvec4(n - 1u));
    if (has_bias != 0u) {
        const uvec4 at = bias_offset + own;
        values += vec4(bias[at.x], bias[at.y], bias[at.z], bias[at.w]);
    }
    const uvec4 to = result_offset + row * n + own;
    values = epilogue(values, to);
    [[unroll]] for (uint c = 0u; c < 4u; ++c) {
        if (columns[c] < n) result[to[c]] = values[c];
    }
}

void compute_tile(uint row, uint column) {
    [[unroll]] for (uint i = 0u; i < DOWN * FOURS; ++i) sums[i] = vec4(0.0);
    start(row, column);
    const uint end = k / TILE_K;
    fetch(0u, true);
    [[dont_unroll]] for (uint run = 0u; run < end; ++run) {
        barrier(); // the tiles of the step before have been read
        put(run);
        barrier();
        const uint next = min(run + 1u, end - 1u);
        fetch(next, next % RUNS_OF_TILE == 0u);
        multiply();
    }
    const uvec2 own = own_place();
    // in a loop that is not written out, as the epilogue is long
    [[dont_unroll]] for (uint part = 0u; part < DOWN * FOURS; ++part) {
        vec4 values = vec4(0.0);
        [[unroll]] for (uint i = 0u; i < DOWN * FOURS; ++i) {
            if (i == part) values = sums[i];
        }
        const uvec4 columns = column + own.y + (part % FOURS * 4u + uvec4(0u, 1u, 2u, 3u)) * COLUMN_STEP;
        store(row + own.x + part / FOURS * ROW_STEP, columns, values);
    }
}

void main() {
    const uint column = gl_WorkGroupID.y * TILE_N;
    for (uint row = gl_WorkGroupID.x * TILE_M; row < m; row += gl_NumWorkGroups.x * TILE_M) compute_tile(row, column);
}
