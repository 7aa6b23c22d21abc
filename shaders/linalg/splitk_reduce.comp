#version 450
// result[i] = the sum of x[p, i] over all p, in order, + bias, and the epilogue of that.
// x: (parts, count), result: (count), in lines of n. bias, by has_bias: 1: (n), one value per column; 2: (bias_rows), one per line,
// in turn. With IN_VEC4 an item is four values, else one: x[p] starts at a multiple of four then.
// One invocation sums up one item at a time, striding over them by the size of the whole dispatch.
// Source: NVIDIA, CUTLASS: efficient GEMM in CUDA, 2017 (split-k; here with partial sums in memory, in an order that never changes).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#ifdef IN_VEC4
#define ITEM vec4
const uint PER_ITEM = 4u;
#else
#define ITEM float
const uint PER_ITEM = 1u;
#endif

layout(set = 0, binding = 0) readonly buffer X { ITEM x[]; };
layout(set = 0, binding = 1) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 2) writeonly buffer Result { float result[]; };
layout(set = 0, binding = 3) readonly buffer Residual { uint residual[]; } residual_buffer;
layout(push_constant) uniform Push {
    uint x_offset;
    uint bias_offset;
    uint result_offset;
    uint residual_offset;
    uint parts;
    uint count;
    uint n;
    uint has_bias;
    uint bias_rows;
    uint first;
    uint last;
};
#include "epilogue.glsl"

float bias_of(uint i) {
    return bias[bias_offset + (has_bias == 1u ? i % n : i / n % bias_rows)];
}

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint item = first + gl_GlobalInvocationID.x; item < last; item += stride) {
        ITEM total = ITEM(0.0);
        for (uint part = 0u; part < parts; ++part) total += x[(x_offset + part * count) / PER_ITEM + item];
        const uint i = item * PER_ITEM;
        vec4 values = vec4(0.0);
        [[unroll]] for (uint j = 0u; j < PER_ITEM; ++j) {
#ifdef IN_VEC4
            values[j] = total[j];
#else
            values[j] = total;
#endif
            if (has_bias != 0u) values[j] += bias_of(i + j);
        }
        values = epilogue(values, result_offset + elements(i, i + PER_ITEM - 1u));
        [[unroll]] for (uint j = 0u; j < PER_ITEM; ++j) result[result_offset + i + j] = values[j];
    }
}
