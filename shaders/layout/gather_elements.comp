#version 450
// result[p] = table[p with indices[p] at the axis] for every position p of indices; negative indices count from the end.
// table: strided by RANK axes of indices, innermost first, 0 at the axis; indices, result: (count), contiguous.
// One workgroup takes a run of neighbouring elements (RUNS), or strides over them by the size of the whole dispatch.
// Source: ONNX GatherElements. An index outside the axis sets bit 0 of the status word and writes all bits of a NaN.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint RANK = 1;
layout(constant_id = 4) const uint RUNS = 0;
#include "vec4.glsl"

layout(set = 0, binding = 0) readonly buffer Table { uint table[]; };
layout(set = 0, binding = 1) readonly buffer Indices { int indices[]; };
layout(set = 0, binding = 2) writeonly buffer Result { uint result[]; };
layout(set = 0, binding = 3) buffer Status { uint status[]; };
layout(push_constant) uniform Push {
    uint table_offset;
    uint indices_offset;
    uint result_offset;
    uint status_offset;
    uint count;
    uint axis_size;
    uint axis_stride;
    uint sizes[7];
    uint table_strides[8];
};
#include "checked_index.glsl"

void main() {
    const uint run = run_of_group(count);
    const uint first = RUNS != 0u ? first_of_run(run) : gl_GlobalInvocationID.x;
    const uint end = RUNS != 0u ? end_of_run(count, run) : count;
    const uint step = RUNS != 0u ? gl_WorkGroupSize.x : gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = first; i < end; i += step) {
        uint rest = i;
        uint from = table_offset;
        for (uint axis = 0u; axis + 1u < RANK; ++axis) {
            const uint next = rest / sizes[axis];
            from += (rest - next * sizes[axis]) * table_strides[axis];
            rest = next;
        }
        from += rest * table_strides[RANK - 1u];
        const uint index = checked_index(indices[indices_offset + i], axis_size);
        if (index == OUT_OF_RANGE) {
            result[result_offset + i] = NAN_WORD;
        } else {
            result[result_offset + i] = table[from + index * axis_stride];
        }
    }
}
