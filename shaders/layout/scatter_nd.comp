#version 450
// result[indices[r, 0], ..., indices[r, DEPTH - 1], i] = OP(itself, updates[r, i]) for every row r, in order.
// indices: (rows, DEPTH) ints, updates: (rows, inner), result: (*sizes, inner), contiguous.
// One invocation takes positions i within the slices, one after the other: rows start..end, so the last update stays.
// Source: ONNX ScatterND. An index outside its axis sets bit 0 of the status word and is left out.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint DEPTH = 1;
layout(constant_id = 4) const uint OP = 0;

layout(set = 0, binding = 0) readonly buffer Indices { int indices[]; };
layout(set = 0, binding = 1) readonly buffer Updates { uint updates[]; };
layout(set = 0, binding = 2) buffer Result { uint result[]; };
layout(set = 0, binding = 3) buffer Status { uint status[]; };
layout(push_constant) uniform Push {
    uint indices_offset;
    uint updates_offset;
    uint result_offset;
    uint status_offset;
    uint inner;
    uint start;
    uint end;
    uint sizes[8];
};
#include "checked_tuple.glsl"
#include "scatter.glsl"

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < inner; i += stride) {
        for (uint row = start; row < end; ++row) {
            const uint slice = checked_tuple(indices_offset + row * DEPTH);
            if (slice != OUT_OF_RANGE) {
                const uint at = result_offset + slice * inner + i;
                result[at] = combine(result[at], updates[updates_offset + row * inner + i]);
            }
        }
    }
}
