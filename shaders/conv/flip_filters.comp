#version 450
// result[g, c, r, taps - 1 - k] = w[g, r, c, k]: the weights of the convolution that goes back, as words.
// w: (groups * rows, channels, taps), result: (groups * channels, rows, taps).
// One invocation copies the window of one row and channel; a group takes a square of them, whose lines are whole in both.
// Source: none.
layout(local_size_x = 8, local_size_y = 8, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint TAPS = 1; // a loop of a known length has no price on CPU drivers

layout(set = 0, binding = 0) readonly buffer W { uint w[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint w_offset;
    uint result_offset;
    uint rows;
    uint channels;
    uint first_tile;
    uint last_tile;
};

void main() {
    const uint across = (channels + gl_WorkGroupSize.x - 1u) / gl_WorkGroupSize.x;
    const uint down = (rows + gl_WorkGroupSize.y - 1u) / gl_WorkGroupSize.y;
    for (uint tile = first_tile + gl_WorkGroupID.x; tile < last_tile; tile += gl_NumWorkGroups.x) {
        const uint line = tile / across;
        const uint group = line / down;
        const uint channel = (tile - line * across) * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
        const uint row = (line - group * down) * gl_WorkGroupSize.y + gl_LocalInvocationID.y;
        if (channel < channels && row < rows) {
            const uint from = w_offset + ((group * rows + row) * channels + channel) * TAPS;
            const uint to = result_offset + ((group * channels + channel) * rows + row) * TAPS + TAPS - 1u;
            for (uint tap = 0u; tap < TAPS; ++tap) result[to - tap] = w[from + tap];
        }
    }
}
