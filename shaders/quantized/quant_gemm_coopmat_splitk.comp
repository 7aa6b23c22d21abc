#version 450
// result[m, n] = sum over k of x[m, k] * w[n, k] (+ bias) as quant_gemm_coopmat.comp has it, of few tiles: groups of other z compute the sums
// of other runs of k. The last group of a tile that arrives adds them in the order of k, whatever the order of arrival. x: (m, k) of float32,
// or of float16 with FP16_X, up to three weights w, partial: (tiles, parts, TILE_M, TILE_N), counters: (tiles), 0 before and after, result: (m, n).
// One workgroup computes a part of a tile of one weight. For GPUs with the Vulkan memory model at device scope.
// Source: Osama et al., Stream-K: work-centric parallel decomposition for GEMM, 2023 (its fixed-split way); the Vulkan specification, appendix Memory Model.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#pragma use_vulkan_memory_model
#include "quant_gemm_coopmat_constants.glsl"
#include "quant_gemm_operands.glsl"
layout(set = 0, binding = 4) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 5) devicecoherent buffer Partial { vec4 partial[]; };
layout(set = 0, binding = 6) devicecoherent buffer Counters { uint counters[]; };
layout(set = 0, binding = 7) writeonly buffer Result { float result[]; };
layout(set = 0, binding = 8) readonly buffer Residual { uint residual[]; } residual_buffer;
layout(push_constant) uniform Push {
    uint a_offset;
    uint b_offset;
    uint second_offset;
    uint third_offset;
    uint bias_offset;
    uint partial_offset;
    uint counters_offset;
    uint result_offset;
    uint residual_offset;
#include "quant_gemm_push.glsl"
    uint split_runs; // of a group: all, or those of a part of k
};
#include "quant_gemm_coopmat.glsl"

const uint FOURS = TILE_M * TILE_N / 4u; // of a tile
uint first_column; // of the tile
shared bool is_last;

uint line_of(uint column) { return column; }

uint tile_of(uint row) { return row / TILE_M * gl_NumWorkGroups.y + gl_WorkGroupID.y; }

// Where the sums of a part of a tile begin.
uint place_part(uint row, uint part) { return partial_offset / 4u + (tile_of(row) * gl_NumWorkGroups.z + part) * FOURS; }

void store4(uint first_row, uint row, uint column, vec4 values) {
    partial[place_part(first_row, gl_WorkGroupID.z) + ((row - first_row) * TILE_N + column - first_column) / 4u] = values;
}

void finish4(uint row, uint column, vec4 values) {
    const uint size = sizes[weight];
    if (row >= m || column >= size) return;
    const uint start = result_offset + begins[weight] + row * strides[weight];
    const uvec4 own = elements(column, size - 1u);
    if (has_bias != 0u) {
        const uvec4 at = bias_offset + own;
        values += vec4(bias[at.x], bias[at.y], bias[at.z], bias[at.w]);
    }
    values = epilogue(values, start + own);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        if (column + i < size) result[start + column + i] = values[i];
    }
}

void store_tile(uint row, uint column) {
    first_column = column;
    store_sums(row, row, column);
    // What all lanes have written comes before the release by lane 0; what the last group reads comes after its acquisition.
    const int memory = gl_StorageSemanticsBuffer | gl_StorageSemanticsShared;
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, memory, gl_SemanticsAcquireRelease);
    if (gl_LocalInvocationIndex == 0u) {
        const uint at = counters_offset + tile_of(row);
        const uint arrived = atomicAdd(counters[at], 1u, gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease) + 1u;
        is_last = arrived == gl_NumWorkGroups.z;
        if (arrived == gl_NumWorkGroups.z) atomicStore(counters[at], 0u, gl_ScopeDevice, 0, 0);
    }
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, memory, gl_SemanticsAcquireRelease);
    if (!is_last) return;
    [[dont_unroll]] for (uint four = gl_LocalInvocationIndex; four < FOURS; four += SIZE) {
        vec4 total = vec4(0.0);
        for (uint part = 0u; part < gl_NumWorkGroups.z; ++part) total += partial[place_part(row, part) + four];
        finish4(row + four * 4u / TILE_N, column + four * 4u % TILE_N, total);
    }
}
