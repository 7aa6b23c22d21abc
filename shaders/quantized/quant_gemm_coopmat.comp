#version 450
// result[m, n] = sum over k of x[m, k] * w[n, k] (+ bias) for many rows m: quantized weights become float16 in shared memory, products are
// of float16, sums in float32 (coopmat.glsl), or with FP16_SUMS in float16 for FP16_RUNS runs. x is float32, or float16 with FP16_X. Up to three weights w, whose results lie where the push block tells; or with a GATE two:
// activation(x W1) * (x W2), of as many columns as one of them, which FP16_RESULT stores as float16. A bias is for one weight.
// With ROTARY results lie by heads, (heads, m, head_size), and the first of them are rotated (rotary.glsl); FP16_RESULT stores these, too.
// One workgroup computes a tile of one weight, or with a GATE half a tile of both: the columns of a subgroup are half of each.
// Groups of neighbouring x share columns of weights. Each step of TILE_K is loaded while the one before is multiplied.
// Source: NVIDIA, CUTLASS: efficient GEMM in CUDA, 2017 (tiles of groups, of subgroups and of matrix instructions).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#include "quant_gemm_coopmat_constants.glsl"
#include "quant_gemm_operands.glsl"
layout(set = 0, binding = 4) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 5) writeonly buffer Result { uint result[]; };
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
    uint split_runs; // of a group: all, or those of a part of k
#include "quant_gemm_rotary_push.glsl"
};
#include "quant_gemm_coopmat.glsl"

#include "quant_gemm_results.glsl"

uint line_of(uint column) { return ROTARY != 0u ? rotary_column(column / 4u) + column % 4u : column; }

// Two float16, for a KV cache: values beyond the range are NaN, as infinite keys would silently weigh nothing.
uint cache_pair(vec2 values) {
    const uint pair = fp16_pair(values);
    const uint low = (pair & 0x7fffu) == 0x7c00u ? 0x0200u : 0u, high = (pair & 0x7fff0000u) == 0x7c000000u ? 0x02000000u : 0u;
    return pair | low | high;
}

// Four results that lie by heads: `column` is their number in the order in which they are computed.
void store_of_head(uint which, uint row, uint column, vec4 values) {
    const uint to = column % MATRIX_N ^ 4u; // of the other values of their pairs, in the matrix that `done` holds
    const uint at = (gl_SubgroupID * MATRIX_M + row % MATRIX_M) * MATRIX_N + to;
    const vec4 partner = ROTARY == 1u ? vec4(done[at], done[at + 1u], done[at + 2u], done[at + 3u]) : vec4(0.0);
    const uint own = rotary_column(column / 4u);
    values = rotate(values, partner, row, own);
    const uint place = result_offset + begins[which] + own / head_size * head_step + row * head_size + own % head_size;
    if (FP16_RESULT != 0u) { // heads are of whole eights
        const uint to = result_offset + (place - result_offset) / 2u;
        result[to] = cache_pair(values.xy);
        result[to + 1u] = cache_pair(values.zw);
        return;
    }
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
    const uint start = result_offset + begins[which] + row * strides[which];
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

void store_tile(uint row, uint column) {
    if (GATE != 0u) store_gated(row, column);
    else store_sums(weight, row, column);
}
