#version 450
// result[o] = sum over channels and k of x[o + k - begin] * w[k] (+ bias), for each result of a overflow_mask tile, whose points are too
// coarse: winograd_overflow_mask.comp. x: (images, channels, sizes), points: (SIDE, SIDE, rows, channels), the transformed weights, from
// which the weights follow; bias: (rows), overflow_mask: (tiles up to a multiple of 16), result: (images, rows, result_sizes).
// One invocation sums up one line of the overflow_mask tiles among `each`, of one row; its neighbours take the same line of the next rows.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint HAS_BIAS = 0;
#include "winograd.glsl"
#include "window.glsl"
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer Points { float points[]; };
layout(set = 0, binding = 2) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 3) readonly buffer OverflowMask { uvec4 overflow_mask[]; };
layout(set = 0, binding = 4) writeonly buffer Result { float result[]; };
layout(set = 0, binding = 5) readonly buffer Residual { uint residual[]; } residual_buffer;
layout(push_constant) uniform Push {
    uint x_offset;
    uint points_offset;
    uint bias_offset;
    uint overflow_mask_offset;
    uint result_offset;
    uint residual_offset;
    uint channels;
    uint rows;
    uint sizes[2];
    uint result_sizes[2];
    uint begin[2];
    uint tiles[2];
    uint each;
    uint first_item;
    uint last_item;
};
#include "epilogue.glsl"

#if TILE == 4
const float FIRST = 4.0, MIDDLE = 3.0;
#define LINE vec4
#define FOUR(line) line
#else
const float FIRST = 1.0, MIDDLE = -1.0;
#define LINE vec2
#define FOUR(line) vec4(line, line)
#endif

// The three weights that the points of a line are made of.
#define WEIGHTS_OF(at, next) \
    vec3(FIRST * points[at], MIDDLE * (points[(at) + 2u * (next)] - points[(at) + (next)]), points[(at) + (SIDE - 1u) * (next)])

// 0 outside is a value: times infinity it is NaN.
#if TILE == 4
#define ADD_LINE(number, weights) { \
    const bool there = y + number < sizes[0]; \
    const uint line_at = plane + uint(there) * (y + number) * sizes[1]; \
    vec4 near = vec4(x[line_at + near_at.x], x[line_at + near_at.y], x[line_at + near_at.z], x[line_at + near_at.w]); \
    vec2 far = vec2(x[line_at + far_at.x], x[line_at + far_at.y]); \
    near = mix(vec4(0.0), near, there ? near_inside : bvec4(false)); \
    far = mix(vec2(0.0), far, there ? far_inside : bvec2(false)); \
    total += near * weights.x + vec4(near.yzw, far.x) * weights.y + vec4(near.zw, far) * weights.z; }
#else
#define ADD_LINE(number, weights) { \
    const bool there = y + number < sizes[0]; \
    const uint line_at = plane + uint(there) * (y + number) * sizes[1]; \
    vec4 near = vec4(x[line_at + near_at.x], x[line_at + near_at.y], x[line_at + near_at.z], x[line_at + near_at.w]); \
    near = mix(vec4(0.0), near, there ? near_inside : bvec4(false)); \
    total += near.xy * weights.x + near.yz * weights.y + near.zw * weights.z; }
#endif

void sum_directly(uint tile, uint own_row, uint number) {
    uint image;
    const uvec3 place = split_place(tile, uvec3(1u, tiles[0], tiles[1]), image);
    const uvec2 at = place.yz * TILE + uvec2(number, 0u);
    const uint y = at.x - begin[0];
    uvec4 near_at = at.y - begin[1] + uvec4(0u, 1u, 2u, 3u);
    const bvec4 near_inside = lessThan(near_at, uvec4(sizes[1]));
    near_at = mix(uvec4(0u), near_at, near_inside);
    uvec2 far_at = at.y - begin[1] + uvec2(4u, 5u);
    const bvec2 far_inside = lessThan(far_at, uvec2(sizes[1]));
    far_at = mix(uvec2(0u), far_at, far_inside);
    const uint step = rows * channels;
    const uint line = SIDE * step;
    const uint volume = sizes[0] * sizes[1];
    uint plane = x_offset + image * channels * volume;
    uint own = points_offset + own_row * channels;
    LINE total = LINE(0.0);
    for (uint channel = 0u; channel < channels; ++channel) {
        const vec3 first = FIRST * WEIGHTS_OF(own, step);
        const vec3 middle = MIDDLE * (WEIGHTS_OF(own + 2u * line, step) - WEIGHTS_OF(own + line, step));
        const vec3 last = WEIGHTS_OF(own + (SIDE - 1u) * line, step);
        ADD_LINE(0u, first)
        ADD_LINE(1u, middle)
        ADD_LINE(2u, last)
        plane += volume;
        ++own;
    }
    total += HAS_BIAS != 0u ? bias[bias_offset + own_row] : 0.0;
    const uint to = result_offset + ((image * rows + own_row) * result_sizes[0] + at.x) * result_sizes[1] + at.y;
    const uint there = at.x < result_sizes[0] ? min(TILE, result_sizes[1] - at.y) : 0u;
    const uint safe = there > 0u ? to : result_offset;
    const vec4 done = epilogue(FOUR(total), elements(safe, safe + max(there, 1u) - 1u));
    for (uint i = 0u; i < there; ++i) result[to + i] = done[i];
}

void compute_item(uint item) {
    const uint line = item / rows;
    const uint own_row = item - line * rows;
    const uint first = line / TILE * each;
    uvec4 found = uvec4(0u);
    for (uint i = 0u; i < each; i += 4u) found |= overflow_mask[(overflow_mask_offset + first + i) / 4u];
    if (any(notEqual(found, uvec4(0u)))) {
        for (uint i = 0u; i < each; ++i) {
            const uint tile = overflow_mask_offset + first + i;
            if (overflow_mask[tile / 4u][tile % 4u] != 0u) sum_directly(first + i, own_row, line % TILE);
        }
    }
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
