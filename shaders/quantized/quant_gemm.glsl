// The kernel of quant_gemm.comp. Steps of TILE_K are loaded while the one before is multiplied. Rows and columns of an invocation are
// apart, so that neighbouring invocations read neighbouring lines of shared memory, which start in different banks.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint TILE_M = 64;
layout(constant_id = 4) const uint TILE_N = 64;
layout(constant_id = 5) const uint DOWN = 4;
layout(constant_id = 6) const uint ACROSS = 4; // a multiple of four
layout(constant_id = 7) const uint WEIGHTS = 1;
layout(constant_id = 8) const uint GATE = 0;
layout(constant_id = 9) const uint ROTARY = 0; // 1: pairs are half a head's pairs apart; 2: they are neighbours
#include "quant_gemm_operands.glsl"
layout(set = 0, binding = 4) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 5) writeonly buffer Result { float result[]; };
layout(set = 0, binding = 6) readonly buffer Residual { uint residual[]; } residual_buffer;
#define OF_RESIDUAL 6 // no residual with ROTARY, and the cosines are in place of a bias
layout(set = 0, binding = OF_RESIDUAL) readonly buffer Sine { float sine[]; };
layout(push_constant) uniform Push {
    uint a_offset;
    uint b_offset;
    uint second_offset;
    uint third_offset;
    uint bias_offset;
    uint result_offset;
    uint residual_offset;
#include "quant_gemm_push.glsl"
#include "quant_gemm_rotary_push.glsl"
};
#include "epilogue.glsl"
#include "quant_gemm_weights.glsl"
#include "quant_gemm_results.glsl"

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
uvec4 a_read[A_PASSES * 2u];
HalfRun b_read[B_PASSES];
Head b_heads[B_PASSES];
uint a_at[A_PASSES]; // uvec4s before those that an invocation loads
uint b_line[B_PASSES]; // the unit where a row of a weight starts
uint b_weight[B_PASSES];
uint half_run; // the half that an invocation decodes

uint id_of(uint pass) { return gl_LocalInvocationID.x + pass * SIZE; }

// The column of the place `j` of an invocation, from the first column of the tile on, in the order in which columns are computed. With a GATE
// places of odd j are of the second weight. Both values of a rotated pair are at places j and j ^ 1, fours of columns as rotary.glsl orders them.
uint column_of(uint own, uint j) {
    if (GATE != 0u) return own + j / 2u * COLUMN_STEP;
    if (ROTARY == 1u) return own / 4u * (4u * ACROSS) + j * 4u + own % 4u;
    if (ROTARY == 2u) return own * ACROSS + j;
    return own + j * COLUMN_STEP;
}

// The row of a weight that has a column.
uint line_of(uint column) { return ROTARY != 0u ? rotary_column(column / 4u) + column % 4u : column; }

void start(uint row, uint column) {
    [[unroll]] for (uint i = 0u; i < A_PASSES; ++i) {
        const uint id = id_of(i);
        a_at[i] = (min(row + id / EIGHTS % TILE_M, m - 1u) * (k / 8u) + id % EIGHTS) * 2u + a_offset / 4u;
    }
    half_run = id_of(0u) % 2u;
    [[unroll]] for (uint i = 0u; i < B_PASSES; ++i) {
        const uint place = id_of(i) / 2u % TILE_N;
        const uint j = place / COLUMN_STEP;
        b_weight[i] = GATE != 0u ? j % 2u : weight;
        const uint own = min(column + column_of(place % COLUMN_STEP, j), sizes[b_weight[i]] - 1u);
        b_line[i] = (start_of(b_weight[i]) + line_of(own) * b_column) / UNIT;
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
        weight = b_weight[i];
        if (new_tile) b_heads[i] = head_of(b_line[i], tile, b_line[i] + before);
        b_read[i] = half_run_of(b_line[i], before, run % RUNS_OF_TILE, half_run);
    }
}

void put(uint run) {
    if (A_IDS >= SIZE || gl_LocalInvocationID.x < A_IDS) {
        [[unroll]] for (uint i = 0u; i < A_PASSES; ++i) {
            const vec4 x = uintBitsToFloat(a_read[2u * i]), y = uintBitsToFloat(a_read[2u * i + 1u]);
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

// Two results of a GATE, of four sums.
void store_gated(uint row, uvec4 columns, vec4 values) {
    const uint start = result_offset + row * strides[0];
    const uvec2 own = min(columns.xz, uvec2(sizes[0] - 1u));
    values.xy = vec2(activation(values.x) * values.y, activation(values.z) * values.w);
    values = epilogue(values, start + own.xyxy);
    if (columns.x < sizes[0]) result[start + own.x] = values.x;
    if (columns.z < sizes[0]) result[start + own.y] = values.y;
}

// Four results that lie by heads.
void store_of_heads(uint row, uvec4 columns, vec4 values) {
    const vec4 partners = values.yxwz;
    [[unroll]] for (uint c = 0u; c < 4u; ++c) {
        const uint own = line_of(min(columns[c], sizes[weight] - 1u));
        float value = values[c];
        if (ROTARY == 1u) value = rotate(vec4(value), vec4(partners[c]), row, own).x;
        else value = rotate(values, vec4(0.0), row, own - c)[c];
        const uint place = result_offset + begins[weight] + own / head_size * head_step + row * head_size + own % head_size;
        if (columns[c] < sizes[weight]) result[place] = value;
    }
}

// Stores four results of a row.
void store(uint row, uvec4 columns, vec4 values) {
    if (row >= m) return;
    if (GATE != 0u) {
        store_gated(row, columns, values);
        return;
    }
    if (ROTARY != 0u) {
        store_of_heads(row, columns, values);
        return;
    }
    const uint size = sizes[weight];
    const uvec4 own = min(columns, uvec4(size - 1u));
    if (has_bias != 0u) {
        const uvec4 at = bias_offset + own;
        values += vec4(bias[at.x], bias[at.y], bias[at.z], bias[at.w]);
    }
    const uvec4 to = result_offset + begins[weight] + row * strides[weight] + own;
    values = epilogue(values, to);
    [[unroll]] for (uint c = 0u; c < 4u; ++c) {
        if (columns[c] < size) result[to[c]] = values[c];
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
        uvec4 columns;
        [[unroll]] for (uint c = 0u; c < 4u; ++c) columns[c] = column + column_of(own.y, part % FOURS * 4u + c);
        store(row + own.x + part / FOURS * ROW_STEP, columns, values);
    }
}

void main() {
    const uint column = find_weight(gl_WorkGroupID.y);
    for (uint row = gl_WorkGroupID.x * TILE_M; row < m; row += gl_NumWorkGroups.x * TILE_M) compute_tile(row, column);
}
