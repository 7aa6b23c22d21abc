// Merged products of ROWS rows at a time, behind the buffers and the push block of the shader: INT8, or in float32. With ROTARY the shader has tables of
// cosines and sines, for rotary.glsl.
#include "norm_range.glsl"
#include "epilogue.glsl"

#include "merged_weights.glsl"

#ifdef ROTARY
#include "rotary.glsl"
#endif
#ifdef INT8
#include "merged_dot_q8.glsl"
#else
#include "merged_dot.glsl"
#endif

float activation(float x) { return GATE == SILU ? x * sigmoid(x) : GATE == GELU ? gelu_erf(x) : gelu_tanh(x); }

void main() {
    const uint own = gl_LocalInvocationID.y, slice = gl_LocalInvocationID.x;
    for (uint row = gl_WorkGroupID.y * ROWS; row < m; row += gl_NumWorkGroups.y * ROWS) {
        begin_rows(row);
        for (uint first = gl_WorkGroupID.x * VEC4S_PER_GROUP; first * 4u < n; first += gl_NumWorkGroups.x * VEC4S_PER_GROUP) {
#ifdef ROTARY
            const uint column = rotary_column(first + own);
#else
            const uint column = (first + own) * 4u;
#endif
            vec4 fours[ROWS];
            uint begin = 0u, end = n; // columns of the weight
            if (GATE != 0u) {
                vec4 gates[ROWS];
                weight = 0u;
                dot_vec4s(b_offset, column, n - 1u, own, slice, gates);
                weight = 1u;
                dot_vec4s(second_offset, column, n - 1u, own, slice, fours);
                for (uint i = 0u; i < ROWS; ++i) {
                    const vec4 gate = gates[i];
                    fours[i] *= vec4(activation(gate.x), activation(gate.y), activation(gate.z), activation(gate.w));
                }
            } else {
                weight = WEIGHTS == 1u || first * 4u < ends[0] ? 0u : WEIGHTS == 2u || first * 4u < ends[1] ? 1u : 2u;
                const uint from = weight == 0u ? b_offset : weight == 1u ? second_offset : third_offset;
                begin = weight == 0u ? 0u : ends[weight - 1u];
                end = weight + 1u == WEIGHTS ? n : ends[weight];
                dot_vec4s(from, column - begin, end - begin - 1u, own, slice, fours);
            }
            for (uint i = 0u; i < ROWS; ++i) {
                vec4 four = fours[i];
#ifdef ROTARY
                barrier(); // all have read the previous values
                if (slice == 0u) slices[own] = four;
                barrier();
                four = rotate(four, slices[own ^ 1u], row + i, column);
#endif
                if (slice == 0u && column < n && row + i < m) {
                    const uint place = STACKED == 0u ? (row + i) * n + column : begin * m + (row + i) * (end - begin) + column - begin;
                    const uvec4 at = result_offset + place + uvec4(0u, 1u, 2u, 3u);
                    four = epilogue(four, at);
                    result[at.x] = four.x;
                    result[at.y] = four.y;
                    result[at.z] = four.z;
                    result[at.w] = four.w;
                }
            }
        }
    }
}
