#version 450
// result = a chain of elementwise functions (include/chain.glsl) of 1 operand, with numpy broadcasting over RANK axes.
// a: contiguous or, along the axes that they lack, of stride 0; result: (count), contiguous. Axes are listed innermost first.
// One invocation computes four values (WIDE 1) or one, striding over them by the size of the whole dispatch.
// Source: none.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint RANK = 1;
layout(constant_id = 4) const uint VARIES = 0; // bit i: operand i goes on along the innermost axis
layout(constant_id = 5) const uint STEP_0 = 0;
layout(constant_id = 6) const uint STEP_1 = 3072;
layout(constant_id = 7) const uint STEP_2 = 3328;
layout(constant_id = 8) const uint STEP_3 = 3584;
layout(constant_id = 9) const uint STEP_4 = 3840;
layout(constant_id = 10) const uint STEP_5 = 4096;
layout(constant_id = 11) const uint STEP_6 = 4352;
layout(constant_id = 12) const uint STEP_7 = 4608;
layout(constant_id = 13) const uint WORD_0 = 0;
layout(constant_id = 14) const uint WORD_1 = 0;
layout(constant_id = 15) const uint WORD_2 = 0;
layout(constant_id = 16) const uint WORD_3 = 0;
layout(constant_id = 17) const uint WORD_4 = 0;
layout(constant_id = 18) const uint WORD_5 = 0;

layout(set = 0, binding = 0) readonly buffer A { T a[]; };
layout(set = 0, binding = 1) writeonly buffer Result { T result[]; };
layout(push_constant) uniform Push {
    uint a_offset;
    uint result_offset;
    uint count;
    uint sizes[3];
    uint a_strides[3];
};

#define OPERANDS(X) X(0, a, a_offset, a_strides)
#define VALUES va
#define CHAIN_INPUTS va, va, va, va, va, va
#include "chain_main.glsl"
