#version 450
// result[o] = sum over k of x[o * STRIDE + k - begin] * w[k] (+ bias), x being 0 outside: one channel per group, two axes.
// x: (images * channels, sizes), w: (rows, 3, 3), rows being those of all groups, bias: (rows), result: (images, rows,
// result_sizes). One invocation computes four neighbours in each of LINES lines of one row; each value of x is read once for
// all of them. Source: Chollet, Xception: deep learning with depthwise separable convolutions, 2017.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint HAS_BIAS = 0;
layout(constant_id = 4) const uint X_IN_VEC4 = 0; // lines of x are whole vec4s, and begin is 1
layout(constant_id = 5) const uint RESULT_IN_VEC4 = 0;
#include "window.glsl"
layout(set = 0, binding = 0) readonly buffer X { vec4 x[]; };
layout(set = 0, binding = 1) readonly buffer W { float w[]; };
layout(set = 0, binding = 2) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 3) writeonly buffer Result { vec4 result[]; };
layout(set = 0, binding = 4) readonly buffer Residual { uint residual[]; } residual_buffer;
layout(push_constant) uniform Push {
    uint x_offset;
    uint w_offset;
    uint bias_offset;
    uint result_offset;
    uint residual_offset;
    uint sizes[2];
    uint result_sizes[2];
    uint begin[2];
    uint rows;
    uint rows_per_channel;
    uint first_item;
    uint last_item;
};
#include "epilogue.glsl"

const uint LINES = 4u / STRIDE;

#define WORD(at) x[(at) / 4u][(at) % 4u]
#define FOUR_WORDS(at, i) vec4(WORD(at + i.x), WORD(at + i.y), WORD(at + i.z), WORD(at + i.w))

// The values that four neighbours read at each of the three steps of the window along a line of x. Reads are within x, whatever is taken
// of them: nothing branches. All of it is written out, as functions and arrays here cost SwiftShader's compiler minutes.
#define LOAD_LINE(number) { \
    const uint y = from.x + number; \
    const bool inside = y < sizes[0]; \
    const uint line = plane + (inside ? y * sizes[1] : 0u); \
    float before = WORD(line + before_at); \
    before = inside && before_inside ? before : 0.0; \
    vec4 near = X_IN_VEC4 != 0u ? x[(line + near_at.x) / 4u] : FOUR_WORDS(line, near_at); \
    near = mix(vec4(0.0), near, inside ? near_inside : bvec4(false)); \
    TAKE_LINE }
#if STRIDE == 1
#define TAKE_LINE \
    float after = WORD(line + after_at); \
    after = inside && after_inside ? after : 0.0; \
    first = vec4(before, near.xyz); \
    second = near; \
    third = vec4(near.yzw, after);
#else
#define TAKE_LINE \
    vec4 far = X_IN_VEC4 != 0u ? x[(line + far_at.x) / 4u] : FOUR_WORDS(line, far_at); \
    far = mix(vec4(0.0), far, inside ? far_inside : bvec4(false)); \
    first = vec4(before, near.yw, far.y); \
    second = vec4(near.xz, far.xz); \
    third = vec4(near.yw, far.yw);
#endif
#define ADD_LINE(sums, weights) sums += first * weights.x + second * weights.y + third * weights.z;

#define STORE_LINE(number, values) \
    if (at.x + number < result_sizes[0]) { \
        const uint to = result_at + number * result_sizes[1]; \
        const vec4 done = epilogue(values, elements(to, to - at.y + result_sizes[1] - 1u)); \
        if (RESULT_IN_VEC4 != 0u) { \
            result[to / 4u] = done; \
        } else { \
            STORE(to, 0u, done.x) STORE(to, 1u, done.y) STORE(to, 2u, done.z) STORE(to, 3u, done.w) \
        } \
    }
#define STORE(to, i, value) if (at.y + i < result_sizes[1]) result[(to + i) / 4u][(to + i) % 4u] = value;

void compute_item(uint item) {
    const uvec2 blocks = (uvec2(result_sizes[0], result_sizes[1]) + uvec2(LINES, 4u) - 1u) / uvec2(LINES, 4u);
    uint row; // of all images
    const uvec3 place = split_place(item, uvec3(1u, blocks), row);
    const uvec2 at = place.yz * uvec2(LINES, 4u);
    const uvec2 from = at * STRIDE - uvec2(begin[0], begin[1]);
    const uint plane = x_offset + row / rows_per_channel * sizes[0] * sizes[1];
    const uint own = row % rows;
    const uint w_at = w_offset + own * 9u;
    const vec3 w0 = vec3(w[w_at], w[w_at + 1u], w[w_at + 2u]);
    const vec3 w1 = vec3(w[w_at + 3u], w[w_at + 4u], w[w_at + 5u]);
    const vec3 w2 = vec3(w[w_at + 6u], w[w_at + 7u], w[w_at + 8u]);

    const bool before_inside = from.y < sizes[1];
    const uint before_at = before_inside ? from.y : 0u;
    uvec4 near_at = from.y + uvec4(1u, 2u, 3u, 4u);
    const bvec4 near_inside = lessThan(near_at, uvec4(sizes[1]));
    near_at = mix(uvec4(0u), near_at, near_inside);
#if STRIDE == 1
    const bool after_inside = from.y + 5u < sizes[1];
    const uint after_at = after_inside ? from.y + 5u : 0u;
#else
    uvec4 far_at = from.y + uvec4(5u, 6u, 7u, 8u);
    const bvec4 far_inside = lessThan(far_at, uvec4(sizes[1]));
    far_at = mix(uvec4(0u), far_at, far_inside);
#endif

    vec4 first, second, third;
    vec4 s0 = vec4(0.0);
    vec4 s1 = vec4(0.0);
    LOAD_LINE(0u)
    ADD_LINE(s0, w0)
    LOAD_LINE(1u)
    ADD_LINE(s0, w1)
#if STRIDE == 1
    vec4 s2 = vec4(0.0);
    vec4 s3 = vec4(0.0);
    ADD_LINE(s1, w0)
    LOAD_LINE(2u)
    ADD_LINE(s0, w2)
    ADD_LINE(s1, w1)
    ADD_LINE(s2, w0)
    LOAD_LINE(3u)
    ADD_LINE(s1, w2)
    ADD_LINE(s2, w1)
    ADD_LINE(s3, w0)
    LOAD_LINE(4u)
    ADD_LINE(s2, w2)
    ADD_LINE(s3, w1)
    LOAD_LINE(5u)
    ADD_LINE(s3, w2)
#else
    LOAD_LINE(2u)
    ADD_LINE(s0, w2)
    ADD_LINE(s1, w0)
    LOAD_LINE(3u)
    ADD_LINE(s1, w1)
    LOAD_LINE(4u)
    ADD_LINE(s1, w2)
#endif
    const vec4 of_row = vec4(HAS_BIAS != 0u ? bias[bias_offset + own] : 0.0);
    const uint result_at = result_offset + (row * result_sizes[0] + at.x) * result_sizes[1] + at.y;
    STORE_LINE(0u, (s0 + of_row))
    STORE_LINE(1u, (s1 + of_row))
#if STRIDE == 1
    STORE_LINE(2u, (s2 + of_row))
    STORE_LINE(3u, (s3 + of_row))
#endif
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
