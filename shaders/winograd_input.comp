#version 450
// values[i, j, channel, tile] = the transformed SIDE x SIDE values of x below a tile of results, 0 outside: winograd.glsl.
// x: (images, channels, height, width), values: (SIDE, SIDE, channels, row), of which the tiles of this pass are written.
// One invocation transforms one tile of one channel at a time; neighbours write neighbours.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "winograd.glsl"
#include "window.glsl"
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
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

uvec4 column_at;
bvec4 column_inside;
#if TILE == 4
uvec2 end_at;
bvec2 end_inside;
#endif

// Reads are within x, whatever is taken of them: nothing branches.
#define LOAD_LINE(i, number) \
    const uint y##i = from.x + number; \
    const bool inside##i = y##i < sizes[0]; \
    const uint line##i = plane + (inside##i ? y##i * sizes[1] : 0u); \
    vec4 v##i = vec4(x[line##i + column_at.x], x[line##i + column_at.y], \
                     x[line##i + column_at.z], x[line##i + column_at.w]); \
    v##i = mix(vec4(0.0), v##i, inside##i ? column_inside : bvec4(false));
#define LOAD_END(i, number) \
    vec2 e##i = vec2(x[line##i + end_at.x], x[line##i + end_at.y]); \
    e##i = mix(vec2(0.0), e##i, inside##i ? end_inside : bvec2(false));

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
    const uvec4 columns = from.y + uvec4(0u, 1u, 2u, 3u);
    column_inside = lessThan(columns, uvec4(sizes[1]));
    column_at = mix(uvec4(0u), columns, column_inside);
#if TILE == 4
    const uvec2 ends = from.y + uvec2(4u, 5u);
    end_inside = lessThan(ends, uvec2(sizes[1]));
    end_at = mix(uvec2(0u), ends, end_inside);
#endif
    FOR_EACH_LINE(LOAD_LINE)
#if TILE == 4
    FOR_EACH_LINE(LOAD_END)
    values_of(v0, v1, v2, v3, v4, v5);
    values_of(e0, e1, e2, e3, e4, e5);
#else
    values_of(v0, v1, v2, v3);
#endif
    const uint step = channels * row;
    const uint to = values_offset + channel * row + tile;
    FOR_EACH_LINE(STORE_LINE)
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
