#version 450
// result[r, c] = scale * code + shift: the values of quantized weights (quant_block.glsl).
// b: matrices of (rows, row_words) that start `apart` words from each other, result: (matrices, rows, columns), columns a multiple
// of 32; groups with other y take other matrices.
// One workgroup takes a run of neighbouring steps, each of EACH vec4s of results (vec4.glsl): 1, or all 8 of a run of the weight, so
// that CPU drivers read its scales once.
// Source: ggml's ggml-quants.c.
#extension GL_GOOGLE_include_directive : require
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint EACH = 1;
#include "vec4.glsl"
#include "quant_formats.glsl"

layout(set = 0, binding = 0) readonly buffer B { LOAD_OF_B b[]; };
VIEWS(0, b)
layout(set = 0, binding = 1) writeonly buffer Result { WORDS result[]; };
layout(push_constant) uniform Push {
    uint b_offset;
    uint result_offset;
    uint rows;
    uint columns;
    uint row_words;
    uint matrices;
    uint apart;
};
#include "quant_block.glsl"

void main() {
    const uint width = columns / 4u;
    const uint steps = rows * width / EACH;
    const uint run = run_of_group(steps);
    const uint end = end_of_run(steps, run);
    for (uint matrix = gl_WorkGroupID.y; matrix < matrices; matrix += gl_NumWorkGroups.y) {
        const uint from = b_offset + matrix * apart;
        const uint to = result_offset / 4u + matrix * rows * width;
        for (uint step = first_of_run(run); step < end; step += gl_WorkGroupSize.x) {
            const uint vec4_index = step * EACH;
            const uint row = vec4_index / width;
            const uint along = vec4_index - row * width;
            const uint number = along / 8u;
            const uint start = (from + row * row_words) / UNIT;
            const uint at = start + units_before(number / 8u);
            const Head head = head_of(start, number / 8u, at);
            const Scales scales = scales_of(head, spot_of(number % 8u));
            const Run own = run_of(head, at, number % 8u);
            for (uint i = 0u; i < EACH; ++i) {
                result[to + vec4_index + i] = stored(floatBitsToUint(values_of(own, scales, along % 8u + i)));
            }
        }
    }
}
