#version 450
// result[n, c, p] = sum over taps of weight * x[n, c, tap], the taps around the point p of the grid.
// x: (batch, channels, depth, height, width), grid: (batch, points, DIMS), innermost axis first, result: (batch, channels, points).
// One workgroup strides over the elements start..end by the size of the whole dispatch.
// Source: ONNX GridSample; Keys, Cubic convolution interpolation for digital image processing, 1981.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint MODE = 1;
layout(constant_id = 4) const uint DIMS = 2;
#include "float_math.glsl"
const uint NEAREST = 0u;
const uint CUBIC = 2u;
const uint ZEROS = 0u;
const uint BORDER = 1u;
const uint REFLECTION = 2u;

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) readonly buffer Grid { float grid[]; };
layout(set = 0, binding = 2) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint grid_offset;
    uint result_offset;
    uint start;
    uint end;
    uint channels;
    uint points;
    uint depth;
    uint height;
    uint width;
    uint padding;
    uint align_corners;
    uint undefined;
};

// Between the borders of an axis, reflected at them as often as it takes.
float fold(float at, float size) {
    const float low = align_corners != 0u ? 0.0 : -0.5;
    const float high = size - 1.0 - low;
    if (high <= low) return 0.0;
    const float range = high - low;
    const float times = floor((at - low) / range);
    const bool odd = times - 2.0 * floor(times * 0.5) == 1.0;
    precise const float folded = odd ? 2.0 * low + (times + 1.0) * range - at : at - times * range;
    return clamp(folded, low, high);
}

// The place on an axis of a coordinate in -1..1, moved by the padding where it is outside. As the nearest element may
// change with the last bit, every step rounds as in the reference.
float find_place(float given, float size) {
    precise float at = align_corners != 0u ? (given + 1.0) * 0.5 * (size - 1.0) : ((given + 1.0) * size - 1.0) * 0.5;
    if (is_nan(given) || is_nan(at)) return NOT_A_NUMBER;
    if (MODE == NEAREST && !is_inf(at)) at = roundEven(at);
    const float low = align_corners != 0u ? 0.0 : -0.5;
    if (at >= low && at <= size - 1.0 - low) return at;
    if (padding == BORDER) return clamp(at, 0.0, size - 1.0);
    if (padding == ZEROS) return clamp(at, -3.0, size + 2.0); // all taps outside
    return is_inf(at) ? NOT_A_NUMBER : fold(at, size);
}

// The index of a whole place, or -1 where nothing is read.
int find_tap(float at, float size) {
    const bool outside = at < 0.0 || at > size - 1.0;
    if (outside && padding == ZEROS) return -1;
    if (outside && padding == REFLECTION) at = roundEven(fold(at, size));
    return int(clamp(at, 0.0, size - 1.0));
}

float near(float d) { return (1.25 * d - 2.25) * d * d + 1.0; }

float far(float d) { return ((-0.75 * d + 3.75) * d - 6.0) * d + 3.0; }

float find_weight(uint tap, float fraction) {
    if (MODE == NEAREST) return 1.0;
    if (MODE == CUBIC) {
        if (tap == 0u) return far(fraction + 1.0);
        if (tap == 1u) return near(fraction);
        return tap == 2u ? near(1.0 - fraction) : far(2.0 - fraction);
    }
    return tap == 0u ? 1.0 - fraction : fraction;
}

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    const uint taps = MODE == CUBIC ? 4u : MODE + 1u;
    const uint taps_in_depth = DIMS == 3u ? taps : 1u;
    const float first = MODE == CUBIC ? 1.0 : 0.0;
    for (uint i = start + gl_GlobalInvocationID.x; i < end; i += stride) {
        const uint image = i / points;
        const uint at = grid_offset + (image / channels * points + (i - image * points)) * DIMS;
        const uint from = x_offset + image * depth * height * width;
        const float column = find_place(grid[at], float(width));
        const float row = find_place(grid[at + 1u], float(height));
        const float layer = DIMS == 3u ? find_place(grid[at + DIMS - 1u], float(depth)) : 0.0;
        if (is_nan(column) || is_nan(row) || is_nan(layer)) {
            result[result_offset + i] = undefined;
            continue;
        }
        const vec3 base = floor(vec3(column, row, layer));
        const vec3 fraction = vec3(column, row, layer) - base;
        float sum = 0.0;
        uint nearest = 0u;
        for (uint z = 0u; z < taps_in_depth; ++z) {
            const int index_z = DIMS == 3u ? find_tap(base.z + float(z) - first, float(depth)) : 0;
            const float weight_z = DIMS == 3u ? find_weight(z, fraction.z) : 1.0;
            for (uint y = 0u; y < taps; ++y) {
                const int index_y = find_tap(base.y + float(y) - first, float(height));
                const float weight_y = weight_z * find_weight(y, fraction.y);
                for (uint t = 0u; t < taps; ++t) {
                    const int index_x = find_tap(base.x + float(t) - first, float(width));
                    const float weight = weight_y * find_weight(t, fraction.x);
                    if (min(index_x, min(index_y, index_z)) < 0 || weight == 0.0) continue;
                    const uint word = x[from + (uint(index_z) * height + uint(index_y)) * width + uint(index_x)];
                    if (MODE == NEAREST) nearest = word;
                    else sum += weight * uintBitsToFloat(word);
                }
            }
        }
        result[result_offset + i] = MODE == NEAREST ? nearest : floatBitsToUint(sum);
    }
}
