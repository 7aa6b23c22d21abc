#version 450
// result = a fused program of elementwise functions (fused.glsl) of 1 operand, with numpy broadcasting over RANK axes.
// a: contiguous or, along the axes that they lack, of stride 0; result: (count), contiguous. Axes are listed innermost first.
// One invocation computes four values (VEC4 1) or one, striding over them by the size of the whole dispatch.
// Source: none.
#extension GL_GOOGLE_include_directive : require
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint RANK = 1;
layout(constant_id = 4) const uint VARIES = 0; // bit i: operand i goes on along the innermost axis
#include "vec4.glsl"

layout(set = 0, binding = 0) readonly buffer A { LOADED a[]; };
SINGLE_WORDS(0, readonly, a)
layout(set = 0, binding = 1) writeonly buffer Result { LOADED result[]; };
SINGLE_WORDS(1, writeonly, result)
layout(push_constant) uniform Push {
    uint a_offset;
    uint result_offset;
    uint count;
    uint sizes[3];
    uint a_strides[3];
};

#define OPERANDS(X) X(0, a, a_offset, a_strides)
#define VALUES va
#define FUSED_INPUTS va, va, va, va, va, va
#include "fused_main.glsl"
