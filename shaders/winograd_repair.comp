#version 450
// result[o] = sum over channels and k of x[o + k - begin] * w[k] (+ bias), for each result that is not finite: the sums of a
// tile spread an infinity or NaN of x, and what overflows, over all of it. x: (images, channels, sizes), points: (SIDE, SIDE,
// rows, channels), the transformed weights, from which the weights follow; bias: (rows), result: (images, rows, result_sizes).
// One invocation looks at four neighbours at a time.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint HAS_BIAS = 0;
#include "winograd.glsl"
#include "window.glsl"
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer Points { float points[]; };
layout(set = 0, binding = 2) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 3) buffer Result { vec4 result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint points_offset;
    uint bias_offset;
    uint result_offset;
    uint channels;
    uint rows;
    uint sizes[2];
    uint result_sizes[2];
    uint begin[2];
    uint count;
    uint first_item;
    uint last_item;
};

const uint EXPONENT = 0x7f800000u; // all of its bits are set in an infinity and in NaN

#if TILE == 4
const float FIRST = 4.0, MIDDLE = 3.0;
#else
const float FIRST = 1.0, MIDDLE = -1.0;
#endif

// The three weights that the points of a line are made of.
#define WEIGHTS_OF(at, next) \
    vec3(FIRST * points[at], MIDDLE * (points[(at) + 2u * (next)] - points[(at) + (next)]), points[(at) + (SIDE - 1u) * (next)])

float value_at(uint plane, uvec2 place) {
    const bool inside = place.x < sizes[0] && place.y < sizes[1];
    const float value = x[plane + (inside ? place.x * sizes[1] + place.y : 0u)];
    return inside ? value : 0.0; // 0 is a value: times infinity it is NaN
}

float sum_of_line(uint plane, uvec2 place, vec3 weights) {
    return value_at(plane, place) * weights.x + value_at(plane, place + uvec2(0u, 1u)) * weights.y
        + value_at(plane, place + uvec2(0u, 2u)) * weights.z;
}

float sum_directly(uint index) {
    uint plane;
    const uvec3 at = split_place(index, uvec3(1u, result_sizes[0], result_sizes[1]), plane);
    const uint own_row = plane % rows;
    const uvec2 from = at.yz - uvec2(begin[0], begin[1]);
    const uint step = rows * channels;
    const uint line = SIDE * step;
    float total = 0.0;
    for (uint channel = 0u; channel < channels; ++channel) {
        const uint own = points_offset + own_row * channels + channel;
        const uint x_plane = x_offset + (plane / rows * channels + channel) * sizes[0] * sizes[1];
        const vec3 first = FIRST * WEIGHTS_OF(own, step);
        const vec3 middle = MIDDLE * (WEIGHTS_OF(own + 2u * line, step) - WEIGHTS_OF(own + line, step));
        const vec3 last = WEIGHTS_OF(own + (SIDE - 1u) * line, step);
        total += sum_of_line(x_plane, from, first) + sum_of_line(x_plane, from + uvec2(1u, 0u), middle)
            + sum_of_line(x_plane, from + uvec2(2u, 0u), last);
    }
    return HAS_BIAS != 0u ? total + bias[bias_offset + own_row] : total;
}

void compute_item(uint item) {
    const uint at = result_offset / 4u + item;
    const vec4 made = result[at];
    const bvec4 wrong = equal(floatBitsToUint(made) & EXPONENT, uvec4(EXPONENT));
    if (!any(wrong)) return;
    for (uint i = 0u; i < 4u && item * 4u + i < count; ++i) {
        if (wrong[i]) result[at][i] = sum_directly(item * 4u + i);
    }
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
