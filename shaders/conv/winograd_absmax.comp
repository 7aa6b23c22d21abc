#version 450
// absmax[image, place] = the bits of the largest |x| of all channels at a place; those of NaN are above all others.
// x: (images, channels, area), absmax: (images, area up to vec4s). One invocation takes four neighbours at a time.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint IN_VEC4 = 0; // planes of x are whole vec4s
#include "window.glsl"
layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) writeonly buffer Absmax { uvec4 absmax[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint absmax_offset;
    uint channels;
    uint area;
    uint first_item;
    uint last_item;
};

const uint MAGNITUDE = 0x7fffffffu;
#define WORD(at) x[(at) / 4u][(at) % 4u]

void compute_item(uint item) {
    const uint fours = (area + 3u) / 4u;
    const uint image = item / fours;
    const uvec4 place = min((item - image * fours) * 4u + uvec4(0u, 1u, 2u, 3u), uvec4(area - 1u));
    uvec4 largest = uvec4(0u);
    uvec4 at = x_offset + image * channels * area + place;
    for (uint channel = 0u; channel < channels; ++channel) {
        uvec4 bits;
        if (IN_VEC4 != 0u) bits = x[at.x / 4u];
        else bits = uvec4(WORD(at.x), WORD(at.y), WORD(at.z), WORD(at.w));
        largest = max(largest, bits & MAGNITUDE);
        at += area;
    }
    absmax[absmax_offset / 4u + item] = largest;
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
