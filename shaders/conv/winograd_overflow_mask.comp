#version 450
// overflow_mask[tile] = 1 where rounding would show: the largest |x| below a tile is far above that of one of its windows, for which
// the sums at the tile's points would be too coarse, or so large that they might overflow. Also where x is not finite.
// absmax: (images, height * width up to vec4s), overflow_mask: (tiles, and 0 up to a multiple of 16). One invocation looks at one tile.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "winograd.glsl"
#include "window.glsl"
layout(set = 0, binding = 0) readonly buffer Absmax { uint absmax[]; };
layout(set = 0, binding = 1) writeonly buffer OverflowMask { uint overflow_mask[]; };
layout(push_constant) uniform Push {
    uint absmax_offset;
    uint overflow_mask_offset;
    uint sizes[2];
    uint result_sizes[2];
    uint begin[2];
    uint tiles[2];
    uint count;
    uint first_item;
    uint last_item;
};

const uint BEYOND = 0xffffffffu;
const float MOST_TIMES = 64.0;
const uint MOST = 0x60ad78ecu; // 1e20

#if TILE == 4
#define LINE uvec4
const LINE STEPS = uvec4(0u, 1u, 2u, 3u);
#else
#define LINE uvec2
const LINE STEPS = uvec2(0u, 1u);
#endif

// Of each window the largest of one line. A condition with computed sides would be a branch, over which CPU drivers' compilers
// take long.
#define FOUR(line) uvec4(absmax[line + near_at.x], absmax[line + near_at.y], absmax[line + near_at.z], absmax[line + near_at.w])
#define LOAD_NEAR(number) \
    const uint y = from.x + number; \
    const uint there = y < sizes[0] ? BEYOND : 0u; \
    const uint line = plane + (y & there) * sizes[1]; \
    const uvec4 near = FOUR(line) & near_inside & there;
#if TILE == 4
#define LOAD_LINE(i, number) \
    LINE v##i; { \
    LOAD_NEAR(number) \
    const uvec2 far = uvec2(absmax[line + far_at.x], absmax[line + far_at.y]) & far_inside & there; \
    v##i = max(max(near, uvec4(near.yzw, far.x)), uvec4(near.zw, far)); \
    largest = max(largest, max(v##i.x, v##i.w)); }
#else
#define LOAD_LINE(i, number) \
    LINE v##i; { \
    LOAD_NEAR(number) \
    v##i = max(max(near.xy, near.yz), near.zw); \
    largest = max(largest, max(v##i.x, v##i.y)); }
#endif
// Windows of results that there are not do not count.
#define LEAST_OF(number, a, b, c) \
    least = min(least, max(max(a, b), c) | beyond | (at.x + number < result_sizes[0] ? 0u : BEYOND));

void compute_item(uint item) {
    uint image;
    const uvec3 place = split_place(min(item, count - 1u), uvec3(1u, tiles[0], tiles[1]), image);
    const uvec2 at = place.yz * TILE;
    const uvec2 from = at - uvec2(begin[0], begin[1]);
    const uint plane = absmax_offset + image * ((sizes[0] * sizes[1] + 3u) / 4u * 4u);
    uvec4 near_at = from.y + uvec4(0u, 1u, 2u, 3u);
    const uvec4 near_inside = mix(uvec4(0u), uvec4(BEYOND), lessThan(near_at, uvec4(sizes[1])));
    near_at &= near_inside;
#if TILE == 4
    uvec2 far_at = from.y + uvec2(4u, 5u);
    const uvec2 far_inside = mix(uvec2(0u), uvec2(BEYOND), lessThan(far_at, uvec2(sizes[1])));
    far_at &= far_inside;
#endif
    uint largest = 0u;
    FOR_EACH_LINE(LOAD_LINE)
    LINE least = LINE(BEYOND);
    const LINE beyond = mix(least, LINE(0u), lessThan(at.y + STEPS, LINE(result_sizes[1])));
#if TILE == 4
    LEAST_OF(0u, v0, v1, v2)
    LEAST_OF(1u, v1, v2, v3)
    LEAST_OF(2u, v2, v3, v4)
    LEAST_OF(3u, v3, v4, v5)
    least.xy = min(least.xy, least.zw);
#else
    LEAST_OF(0u, v0, v1, v2)
    LEAST_OF(1u, v1, v2, v3)
#endif
    const float smallest = uintBitsToFloat(min(least.x, least.y));
    const uvec2 coarse = uvec2(largest >= MOST, uintBitsToFloat(largest) > MOST_TIMES * smallest);
    overflow_mask[overflow_mask_offset + item] = (coarse.x | coarse.y) & uint(item < count);
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
