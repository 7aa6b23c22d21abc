#version 450
// values[i, j, channel, tile] = the transformed SIDE x SIDE values of x below a tile of results, 0 outside: winograd.glsl.
// x: (images, channels, height, width), values: (SIDE, SIDE, channels, row), of which the tiles of this pass are written.
// One invocation transforms one tile of one channel at a time; neighbours write neighbours.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint IN_VEC4 = 0; // lines of x are whole vec4s, and begin is 1
#include "winograd.glsl"
#include "window.glsl"
layout(set = 0, binding = 0) readonly buffer X { vec4 x[]; };
layout(set = 0, binding = 1) writeonly buffer Values { float values[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint values_offset;
    uint channels;
    uint sizes[2];
    uint begin[2];
    uint tiles[2];
    uint first_tile;
    uint pass_tiles;
    uint row;
    uint first_item;
    uint last_item;
};

VALUES_OF(vec4)
#if TILE == 4
VALUES_OF(vec2)
#endif
VALUES_OF(float)

#define WORD(at) x[(at) / 4u][(at) % 4u]

// Reads are within x, whatever is taken of them: nothing branches. before, near and after: the first value of a line, the next
// four and the last.
#if TILE == 4
#define LOAD_LINE(i, number) \
    vec4 v##i; \
    vec2 e##i; { \
    const uint y = from.x + number; \
    const bool inside = y < sizes[0]; \
    const uint line = plane + (inside ? y * sizes[1] : 0u); \
    float before = WORD(line + before_at); \
    before = inside && before_inside ? before : 0.0; \
    vec4 near; \
    if (IN_VEC4 != 0u) near = x[(line + near_at.x) / 4u]; \
    else near = vec4(WORD(line + near_at.x), WORD(line + near_at.y), WORD(line + near_at.z), WORD(line + near_at.w)); \
    near = mix(vec4(0.0), near, inside ? near_inside : bvec4(false)); \
    float after = WORD(line + after_at); \
    after = inside && after_inside ? after : 0.0; \
    v##i = vec4(before, near.xyz); \
    e##i = vec2(near.w, after); }
#else
#define LOAD_LINE(i, number) \
    vec4 v##i; { \
    const uint y = from.x + number; \
    const bool inside = y < sizes[0]; \
    const uint line = plane + (inside ? y * sizes[1] : 0u); \
    v##i = vec4(WORD(line + column_at.x), WORD(line + column_at.y), WORD(line + column_at.z), WORD(line + column_at.w)); \
    v##i = mix(vec4(0.0), v##i, inside ? column_inside : bvec4(false)); }
#endif

#if TILE == 4
#define STORE_LINE(i, number) { \
    float d0 = v##i.x, d1 = v##i.y, d2 = v##i.z, d3 = v##i.w, d4 = e##i.x, d5 = e##i.y; \
    values_of(d0, d1, d2, d3, d4, d5); \
    STORE(number * SIDE, d0) STORE(number * SIDE + 1u, d1) STORE(number * SIDE + 2u, d2) \
    STORE(number * SIDE + 3u, d3) STORE(number * SIDE + 4u, d4) STORE(number * SIDE + 5u, d5) }
#else
#define STORE_LINE(i, number) { \
    float d0 = v##i.x, d1 = v##i.y, d2 = v##i.z, d3 = v##i.w; \
    values_of(d0, d1, d2, d3); \
    STORE(number * SIDE, d0) STORE(number * SIDE + 1u, d1) \
    STORE(number * SIDE + 2u, d2) STORE(number * SIDE + 3u, d3) }
#endif
#define STORE(point, value) values[to + (point) * step] = value;

void compute_item(uint item) {
    const uint channel = item / pass_tiles;
    const uint tile = item - channel * pass_tiles;
    uint image;
    const uvec3 place = split_place(first_tile + tile, uvec3(1u, tiles[0], tiles[1]), image);
    const uvec2 from = place.yz * TILE - uvec2(begin[0], begin[1]);
    const uint plane = x_offset + (image * channels + channel) * sizes[0] * sizes[1];
#if TILE == 4
    const bool before_inside = from.y < sizes[1];
    const uint before_at = before_inside ? from.y : 0u;
    uvec4 near_at = from.y + uvec4(1u, 2u, 3u, 4u);
    const bvec4 near_inside = lessThan(near_at, uvec4(sizes[1]));
    near_at = mix(uvec4(0u), near_at, near_inside);
    const bool after_inside = from.y + 5u < sizes[1];
    const uint after_at = after_inside ? from.y + 5u : 0u;
    FOR_EACH_LINE(LOAD_LINE)
    values_of(v0, v1, v2, v3, v4, v5);
    values_of(e0, e1, e2, e3, e4, e5);
#else
    uvec4 column_at = from.y + uvec4(0u, 1u, 2u, 3u);
    const bvec4 column_inside = lessThan(column_at, uvec4(sizes[1]));
    column_at = mix(uvec4(0u), column_at, column_inside);
    FOR_EACH_LINE(LOAD_LINE)
    values_of(v0, v1, v2, v3);
#endif
    const uint step = channels * row;
    const uint to = values_offset + channel * row + tile;
    FOR_EACH_LINE(STORE_LINE)
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
