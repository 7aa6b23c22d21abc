#version 450
// result = the TILE x TILE results of each tile, made of the sums over channels at its SIDE x SIDE points: winograd.glsl.
// sums: (SIDE, SIDE, rows, tiles of this pass) or (SIDE, SIDE, tiles, rows), by steps; bias: (rows), result: (images, rows, height, width).
// One invocation makes one tile of one row at a time.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint HAS_BIAS = 0;
layout(constant_id = 4) const uint IN_VEC4 = 0; // lines of the result are whole vec4s
#include "winograd.glsl"
#include "window.glsl"
layout(set = 0, binding = 0) readonly buffer Sums { float sums[]; };
layout(set = 0, binding = 1) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 2) writeonly buffer Result { vec4 result[]; };
layout(set = 0, binding = 3) readonly buffer Residual { uint residual[]; } residual_buffer;
layout(push_constant) uniform Push {
    uint sums_offset;
    uint bias_offset;
    uint result_offset;
    uint residual_offset;
    uint rows;
    uint sizes[2];
    uint tiles[2];
    uint first_tile;
    uint pass_tiles;
    uint step;
    uint row_step;
    uint tile_step;
    uint first_item;
    uint last_item;
};
#include "epilogue.glsl"

RESULTS_OF(vec4)
#if TILE == 4
RESULTS_OF(vec2)
#endif
RESULTS_OF(float)

// Of a line of results, of which what is over the edge of the image is not stored.
#define FINISH(values) epilogue(values + of_row, elements(line_to, line_to - at.y + sizes[1] - 1u))

#define LOAD(point) sums[from + (point) * step]
#define LOAD_LINE(i, number) \
    vec4 v##i = vec4(LOAD(number * SIDE), LOAD(number * SIDE + 1u), LOAD(number * SIDE + 2u), LOAD(number * SIDE + 3u));
#define LOAD_END(i, number) vec2 e##i = vec2(LOAD(number * SIDE + 4u), LOAD(number * SIDE + 5u));

#if TILE == 4
#define STORE_LINE(i, number) { \
    float d0 = v##i.x, d1 = v##i.y, d2 = v##i.z, d3 = v##i.w, d4 = e##i.x, d5 = e##i.y; \
    results_of(d0, d1, d2, d3, d4, d5); \
    if (at.x + number < sizes[0]) { \
        const uint line_to = to + number * sizes[1]; \
        const vec4 done = FINISH(vec4(d0, d1, d2, d3)); \
        if (IN_VEC4 != 0u) { \
            result[line_to / 4u] = done; \
        } else { \
            STORE(0u, done.x) STORE(1u, done.y) STORE(2u, done.z) STORE(3u, done.w) \
        } } }
#else
#define STORE_LINE(i, number) { \
    float d0 = v##i.x, d1 = v##i.y, d2 = v##i.z, d3 = v##i.w; \
    results_of(d0, d1, d2, d3); \
    if (at.x + number < sizes[0]) { \
        const uint line_to = to + number * sizes[1]; \
        const vec4 done = FINISH(vec4(d0, d1, d1, d1)); \
        STORE(0u, done.x) STORE(1u, done.y) } }
#endif
#define STORE(along, value) \
    if (at.y + along < sizes[1]) result[(line_to + along) / 4u][(line_to + along) % 4u] = value;

void compute_item(uint item) {
    const uint own_row = item / pass_tiles;
    const uint tile = item - own_row * pass_tiles;
    uint image;
    const uvec3 place = split_place(first_tile + tile, uvec3(1u, tiles[0], tiles[1]), image);
    const uvec2 at = place.yz * TILE;
    const uint from = sums_offset + own_row * row_step + tile * tile_step;
    FOR_EACH_LINE(LOAD_LINE)
#if TILE == 4
    FOR_EACH_LINE(LOAD_END)
    results_of(v0, v1, v2, v3, v4, v5);
    results_of(e0, e1, e2, e3, e4, e5);
#else
    results_of(v0, v1, v2, v3);
#endif
    const uint to = result_offset + ((image * rows + own_row) * sizes[0] + at.x) * sizes[1] + at.y;
    const float of_row = HAS_BIAS != 0u ? bias[bias_offset + own_row] : 0.0;
    FOR_EACH_RESULT(STORE_LINE)
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
