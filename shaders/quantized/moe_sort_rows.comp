#version 450
// Brings rows that chose the same matrix into tiles of `height` rows, so that each tile is multiplied by one matrix. Rows of a
// group keep their order; a tile that is not full ends with row 0, whose results nobody reads.
// expert_ids: (count) ints. plan: what moe_count found, (matrices) uints, then, each from a word of its own on,
//   numbers (tiles) floats: the matrix of each tile, -1 of tiles without rows; sources (tiles * height) uints: rows of x, of which
//   `share` neighbours of expert_ids are one; places (count) uints: where the row of each of expert_ids is among these.
// status: error bits. One invocation fills the tiles of a group, the last one what is left. Source: none.
// A number outside 0..matrices-1, or -matrices..-1 from the end, sets bit 0 of the status word.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) readonly buffer ExpertIds { int expert_ids[]; };
layout(set = 0, binding = 1) buffer Plan { uint plan[]; };
layout(set = 0, binding = 2) buffer Status { uint status[]; };
layout(push_constant) uniform Push {
    uint expert_ids_offset;
    uint plan_offset;
    uint status_offset;
    uint count;
    uint matrices;
    uint tiles;
    uint height;
    uint share;
    uint numbers;
    uint sources;
    uint places;
};
#include "checked_index.glsl"

void fill_tiles(uint group, uint first, uint end) {
    uint at = first * height;
    for (uint i = 0u; i < count; ++i) {
        const int number = expert_ids[expert_ids_offset + i];
        if (number == int(group) || number == int(group) - int(matrices)) {
            plan[plan_offset + sources + at] = i / share;
            plan[plan_offset + places + i] = at;
            ++at;
        }
    }
    for (; at < end * height; ++at) plan[plan_offset + sources + at] = 0u;
    for (uint tile = first; tile < end; ++tile) plan[plan_offset + numbers + tile] = floatBitsToUint(float(group));
}

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint group = gl_GlobalInvocationID.x; group <= matrices; group += stride) {
        uint first = 0u;
        for (uint before = 0u; before < group; ++before) first += (plan[plan_offset + before] + height - 1u) / height;
        if (group < matrices) {
            fill_tiles(group, first, first + (plan[plan_offset + group] + height - 1u) / height);
        } else {
            for (uint tile = first; tile < tiles; ++tile) plan[plan_offset + numbers + tile] = floatBitsToUint(-1.0);
            for (uint at = first * height; at < tiles * height; ++at) plan[plan_offset + sources + at] = 0u;
        }
    }
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        if (checked_index(expert_ids[expert_ids_offset + i], matrices) == OUT_OF_RANGE) plan[plan_offset + places + i] = 0u;
    }
}
