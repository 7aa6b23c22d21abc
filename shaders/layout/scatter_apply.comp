#version 450
// MARK: latest[targets[r]] = max(itself, r + 1). WRITE: result[targets[r], i] = updates[r, i] where latest is r + 1.
// ADD, MAX, MIN: result[targets[r], i] = OP(itself, updates[r, i]), on integers only, where no order changes the result.
// targets: (count / inner) slice numbers, updates: (count / inner, inner), latest: (slices), result: (slices, inner).
// All updates at once, for few lines with many of them; a group strides over them by the size of the whole dispatch.
// Source: none. A target of 2^32 - 1 is left out.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint STEP = 0;
const uint MARK = 0u;
const uint WRITE = 1u;
const uint ADD = 2u;
const uint MAX = 3u;

layout(set = 0, binding = 0) readonly buffer Targets { uint targets[]; };
layout(set = 0, binding = 1) readonly buffer Updates { T updates[]; };
layout(set = 0, binding = 2) buffer Latest { uint latest[]; };
layout(set = 0, binding = 3) buffer Result { T result[]; };
layout(push_constant) uniform Push {
    uint targets_offset;
    uint updates_offset;
    uint latest_offset;
    uint result_offset;
    uint count;
    uint inner;
};

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        const uint row = i / inner;
        const uint slice = targets[targets_offset + row];
        if (slice == 0xffffffffu) continue;
        const uint at = result_offset + slice * inner + (i - row * inner);
        if (STEP == MARK) {
            atomicMax(latest[latest_offset + slice], row + 1u);
        } else if (STEP == WRITE) {
            if (latest[latest_offset + slice] == row + 1u) result[at] = updates[updates_offset + i];
        } else if (STEP == ADD) {
            atomicAdd(result[at], updates[updates_offset + i]);
        } else if (STEP == MAX) {
            atomicMax(result[at], updates[updates_offset + i]);
        } else {
            atomicMin(result[at], updates[updates_offset + i]);
        }
    }
}
