#version 450
// points[i, j, item] = the transformed 3 x 3 weights of each row and channel: winograd.glsl.
// w: (rows * channels, 3, 3), points: (SIDE, SIDE, rows * channels). One invocation transforms those of one row and channel.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "winograd.glsl"
#include "window.glsl"
layout(set = 0, binding = 0) readonly buffer W { float w[]; };
layout(set = 0, binding = 1) writeonly buffer Points { float points[]; };
layout(push_constant) uniform Push {
    uint w_offset;
    uint points_offset;
    uint step;
    uint first_item;
    uint last_item;
};

POINTS_OF(vec3)
POINTS_OF(float)

#if TILE == 4
#define STORE_LINE(i, number) { \
    float d0 = v##i.x, d1 = v##i.y, d2 = v##i.z, d3, d4, d5; \
    points_of(d0, d1, d2, d3, d4, d5); \
    STORE(number * SIDE, d0) STORE(number * SIDE + 1u, d1) STORE(number * SIDE + 2u, d2) \
    STORE(number * SIDE + 3u, d3) STORE(number * SIDE + 4u, d4) STORE(number * SIDE + 5u, d5) }
#else
#define STORE_LINE(i, number) { \
    float d0 = v##i.x, d1 = v##i.y, d2 = v##i.z, d3; \
    points_of(d0, d1, d2, d3); \
    STORE(number * SIDE, d0) STORE(number * SIDE + 1u, d1) \
    STORE(number * SIDE + 2u, d2) STORE(number * SIDE + 3u, d3) }
#endif
#define STORE(point, value) points[to + (point) * step] = value;

void compute_item(uint item) {
    const uint from = w_offset + item * 9u;
    const uint to = points_offset + item;
    vec3 v0 = vec3(w[from], w[from + 1u], w[from + 2u]);
    vec3 v1 = vec3(w[from + 3u], w[from + 4u], w[from + 5u]);
    vec3 v2 = vec3(w[from + 6u], w[from + 7u], w[from + 8u]);
    vec3 v3;
#if TILE == 4
    vec3 v4, v5;
    points_of(v0, v1, v2, v3, v4, v5);
#else
    points_of(v0, v1, v2, v3);
#endif
    FOR_EACH_LINE(STORE_LINE)
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
