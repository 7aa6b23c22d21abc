#version 450
// result = clip(round(x / scale) + other, low, high), other being a zero point; with SUMS, of int32, clip(round((x + other) * scale) +
// zero, low, high), other being a bias. One scale and other for all, or for each channel; NaN as low.
// x, result: (count), element i has channel i / inner % channels.
// One invocation makes a code; a group strides over codes by the size of the whole dispatch.
// Source: ONNX QuantizeLinear, QLinearConv.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "float_math.glsl"
#ifndef SUMS
#include "quotient.glsl"
#endif

#ifdef SUMS
layout(set = 0, binding = 0) readonly buffer X { int x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
#endif
layout(set = 0, binding = 1) readonly buffer Scale { float scale[]; };
layout(set = 0, binding = 2) readonly buffer Other { int other[]; };
layout(set = 0, binding = 3) writeonly buffer Result { int result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint scale_offset;
    uint other_offset;
    uint result_offset;
    uint count;
    uint inner;
    uint channels;
    uint scale_step;
    uint other_step;
    int low;
    int high;
    int zero;
};

int code_of(uint i) {
    const uint channel = i / inner % channels;
    const float factor = scale[scale_offset + channel * scale_step];
    const int own = other[other_offset + channel * other_step];
#ifdef SUMS
    const int shift = zero;
    const float value = float(x[x_offset + i] + own) * factor;
#else
    const int shift = own;
    const float value = rounded_quotient(x[x_offset + i], factor);
#endif
    if (is_nan(value)) return low;
    return int(clamp(roundEven(value), float(low - shift), float(high - shift))) + shift;
}

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) result[result_offset + i] = code_of(i);
}
