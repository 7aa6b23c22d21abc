// Shared by the convolution kernels: buffers, push block, the stored value. T is the element type, T4 four of them.
// LOAD_OF_W: what one access of w reads, where that is not T.
// x: (images, groups * channels, x_sizes), w: weights, bias: (groups * rows), result: (images, groups * rows,
// result_sizes). A long sum is done in parts, one dispatch after the other: channels start..end of each group; all parts
// but the first have ADDS 1 and add to the result.
#include "window.glsl"
#ifndef LOAD_OF_W
#define LOAD_OF_W T
#endif
layout(set = 0, binding = 0) readonly buffer X { T x[]; };
layout(set = 0, binding = 1) readonly buffer W { LOAD_OF_W w[]; };
layout(set = 0, binding = 2) readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 3) buffer Result { T result[]; };
layout(set = 0, binding = 4) readonly buffer Residual { uint residual[]; } residual_buffer;
layout(push_constant) uniform Push {
    uint x_offset;
    uint w_offset;
    uint bias_offset;
    uint result_offset;
    uint residual_offset;
    uint x_sizes[3];
    uint result_sizes[3];
    uint kernel[3];
    uint stride[3];
    uint dilation[3];
    uint begin[3];
    uint images;
    uint conv_groups;
    uint channels;
    uint rows;
    uint start;
    uint end;
    uint first_item;
    uint last_item;
};
#include "epilogue.glsl"

// Stores the first `count` of four values. row: theirs, of all rows of all groups and images; place: in the spatial axes.
void store(uint count, uvec4 row, uvec4 place, T4 values) {
    const uvec4 at = result_offset + row * (result_sizes[0] * result_sizes[1] * result_sizes[2]) + place;
    if (HAS_BIAS != 0u) {
        const uvec4 own = bias_offset + row % (conv_groups * rows);
        values += T4(bias[own.x], bias[own.y], bias[own.z], bias[own.w]);
    }
    if (ADDS != 0u) values += T4(result[at.x], result[at.y], result[at.z], result[at.w]);
    values = epilogue(values, at);
    for (uint i = 0u; i < 4u; ++i) {
        if (i < count) result[at[i]] = values[i];
    }
}
