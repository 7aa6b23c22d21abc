#version 450
// result[i, c] = sum over parts of partial[i, part, c] * w[part] / sum of total[part] * w[part], w = exp(largest[part] - largest).
// partial: (rows, parts, row + 4), behind each row its largest score and the total of its weights; result: (batch, heads, queries, row), by strides.
// FP16_RESULT: the result is float16, two in a word, of rows of an even number of values.
// One workgroup strides over the elements by the size of the whole dispatch.
// Source: Dao et al., Flash-Decoding for long-context inference, 2023.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint FULLY_MASKED = 0; // the bits of the result of a query that sees no key
#include "float_math.glsl"
#ifdef FP16_RESULT
#include "fp16.glsl"
#endif

layout(set = 0, binding = 0) readonly buffer Partial { float partial[]; };
#ifdef FP16_RESULT
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
const uint NEIGHBOURS = 2u; // of a word
#else
layout(set = 0, binding = 1) writeonly buffer Result { float result[]; };
const uint NEIGHBOURS = 1u;
#endif
layout(push_constant) uniform Push {
    uint partial_offset;
    uint result_offset;
    uint count;
    uint row;
    uint parts;
    uint queries;
    uint heads;
    uint result_row; // values from one query to the next, and from one head to the next
    uint result_head;
};

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x * NEIGHBOURS; i < count; i += stride * NEIGHBOURS) {
        const uint first = partial_offset + i / row * parts * (row + 4u);
        float largest = -INFINITY;
        for (uint part = 0u; part < parts; ++part) {
            largest = max(largest, partial[first + part * (row + 4u) + row]); // never NaN
        }
        vec2 sum = vec2(0.0);
        float total = 0.0;
        for (uint part = 0u; part < parts; ++part) {
            const uint at = first + part * (row + 4u);
            const float here = partial[at + row];
            const float weight = here == largest ? 1.0 : safe_exp(here - largest);
            total += partial[at + row + 1u] * weight;
            if (weight != 0.0) sum += vec2(partial[at + i % row], NEIGHBOURS > 1u ? partial[at + i % row + 1u] : 0.0) * weight;
        }
        const uint query = i / row % queries;
        const uint head = i / (row * queries) % heads;
        const uint batch = i / (row * queries * heads);
        const uint at = batch * (row * queries * heads) + head * result_head + query * result_row + i % row;
        const vec2 values = total == 0.0 ? vec2(uintBitsToFloat(FULLY_MASKED)) : sum / total;
#ifdef FP16_RESULT
        result[result_offset + at / 2u] = float_to_fp16(values.x) | float_to_fp16(values.y) << 16;
#else
        result[result_offset + at] = values.x;
#endif
    }
}
