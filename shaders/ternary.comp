#version 450
// result[i] = OP(x[i], a[i], b[i]) with numpy broadcasting over RANK axes: where(x, a, b) or x + scale * a * b.
// x, a, b: strided, stride 0 along broadcast axes; result: (count), contiguous. Axes are listed innermost first.
// One group strides over the elements by the size of the whole dispatch.
// Source: none.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint RANK = 1;

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) readonly buffer A { uint a[]; };
layout(set = 0, binding = 2) readonly buffer B { uint b[]; };
layout(set = 0, binding = 3) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint a_offset;
    uint b_offset;
    uint result_offset;
    uint count;
    float scale;
    uint sizes[5];
    uint x_strides[6];
    uint a_strides[6];
    uint b_strides[6];
};

uint apply_ternary(uint x_word, uint a_word, uint b_word) {
#if defined(WHERE)
    return x_word != 0u ? a_word : b_word;
#elif defined(ADDCMUL_FLOAT32)
    return floatBitsToUint(uintBitsToFloat(x_word) + scale * uintBitsToFloat(a_word) * uintBitsToFloat(b_word));
#endif
}

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        uint rest = i;
        uint at_x = x_offset;
        uint at_a = a_offset;
        uint at_b = b_offset;
        for (uint axis = 0u; axis < RANK; ++axis) {
            const bool last = axis + 1u == RANK;
            const uint next = last ? 0u : rest / sizes[min(axis, 4u)];
            const uint index = last ? rest : rest - next * sizes[min(axis, 4u)];
            at_x += index * x_strides[axis];
            at_a += index * a_strides[axis];
            at_b += index * b_strides[axis];
            rest = next;
        }
        result[result_offset + i] = apply_ternary(x[at_x], a[at_a], b[at_b]);
    }
}
