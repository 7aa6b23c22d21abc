// Attention for CPU drivers where attention_subgroup.glsl does not fit: no subgroups, or sizes that are no multiple of four.
// An invocation works on one row of q.
#include "attention_cpu.glsl"

#include "attention_row.glsl"

#ifdef FALLBACK
// Whether a row is to be computed again, with care for what has weight 0: its result, or a part of it, is not finite.
bool is_wanted(uint at) {
    uint exponents = 0u;
    for (uint c = 0u; c < columns; ++c) exponents = max(exponents, floatBitsToUint(result[at + c]) & 0x7f800000u);
    return exponents == 0x7f800000u;
}
#else
bool is_wanted(uint at) { return true; }
#endif

void attend(uint batch, uint first, uint part) {
    const uvec2 seen = visible_keys(batch, first, gl_WorkGroupSize.x, part);
    const uint row = first + gl_LocalInvocationIndex;
    if (row >= rows) return;
    const uint at = place_result(batch, row, part);
    if (is_wanted(at)) attend_row(batch, row, at, seen);
}

void main() {
    const uint tiles = tiles_of(gl_WorkGroupSize.x);
    for (uint part = gl_WorkGroupID.y; part < count_parts(); part += gl_NumWorkGroups.y) {
        for (uint tile = first_tile + gl_WorkGroupID.x; tile < end_tile; tile += gl_NumWorkGroups.x) {
            attend(tile / tiles, tile % tiles * gl_WorkGroupSize.x, part);
        }
    }
}
