// Rows that LANES_PER_ROW invocations of a subgroup, side by side, hold in registers: each value is read once. Vec4s of a row go
// round the lanes, VEC4S_PER_LANE of them for each; where they do not come out even, the last one stands in, and counts for nothing.
layout(constant_id = 3) const uint LANES_PER_ROW = 8; // a power of two, at most the subgroup's size
layout(constant_id = 4) const uint VEC4S_PER_LANE = 1;

uint lane() { return gl_LocalInvocationIndex % LANES_PER_ROW; }
uint own_vec4(uint k) { return k * LANES_PER_ROW + lane(); }

// A group takes a run of rows.
uint rows_of_group() { return gl_WorkGroupSize.x / LANES_PER_ROW; }
uint run_of_rows(uint rows) {
    const uint each = (rows + gl_NumWorkGroups.x - 1u) / gl_NumWorkGroups.x;
    return (each + rows_of_group() - 1u) / rows_of_group() * rows_of_group();
}

float sum_of_lanes(float value) {
    for (uint reach = LANES_PER_ROW / 2u; reach > 0u; reach /= 2u) value += subgroupShuffleXor(value, reach);
    return value;
}
float largest_of_lanes(float value) {
    for (uint reach = LANES_PER_ROW / 2u; reach > 0u; reach /= 2u) value = max(value, subgroupShuffleXor(value, reach));
    return value;
}
