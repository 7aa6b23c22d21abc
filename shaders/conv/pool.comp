#version 450
// result[o] = max, mean or p-norm of x[o * stride + k * dilation - begin] over the k inside x; INDEX: where in x the max is.
// x: (planes, x_sizes), result: (planes, result_sizes). One invocation computes one result at a time.
// ADAPTIVE 1: window o is floor(o * x / result) .. ceil((o + 1) * x / result) - 1 along each axis. COUNT_PADDING 1: the mean
// counts places in the padding as zeros. Source: ONNX operators MaxPool, AveragePool, LpPool.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint ADAPTIVE = 0;
layout(constant_id = 4) const uint COUNT_PADDING = 0;
layout(constant_id = 5) const uint WHOLE_P = 0; // p where it is 1 or 2
#include "float_math.glsl"
#include "window.glsl"
layout(set = 0, binding = 0) readonly buffer X { T x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { RESULT result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint x_sizes[3];
    uint result_sizes[3];
    uint kernel[3];
    uint stride[3];
    uint dilation[3];
    uint begin[3];
    uint end[3];
    uint first_item;
    uint last_item;
    float p;
};

// A window along one axis: where it starts, and which of its steps lie inside x, and inside x with its padding.
struct Span {
    int start;
    int dilation;
    int first;
    int last;
    int counted;
};

// Steps of a window at start, of size steps, from the first at low to before high.
ivec2 steps_within(int start, int size, int step, int low, int high) {
    const int first = start >= low ? 0 : (low - start + step - 1) / step;
    const int last = start >= high ? 0 : min(size, (high - start + step - 1) / step);
    return ivec2(first, max(first, last));
}

Span span_of(uint axis, uint at) {
    const int size = int(x_sizes[axis]);
    if (ADAPTIVE != 0u) {
        const uint windows = result_sizes[axis];
        const int start = int(at * x_sizes[axis] / windows);
        const int last = int(((at + 1u) * x_sizes[axis] + windows - 1u) / windows);
        return Span(start, 1, 0, last - start, last - start);
    }
    const int start = int(at * stride[axis]) - int(begin[axis]);
    const int step = int(dilation[axis]);
    const ivec2 inside = steps_within(start, int(kernel[axis]), step, 0, size);
    const ivec2 padded = steps_within(start, int(kernel[axis]), step, -int(begin[axis]), size + int(end[axis]));
    const ivec2 counted = COUNT_PADDING != 0u ? padded : inside;
    return Span(start, step, inside.x, inside.y, counted.y - counted.x);
}

#if MAX
#if FLOAT
#define LEAST -INFINITY
bool wins(T value, T best) { return !is_nan(best) && (is_nan(value) || value > best); }
#else
#define LEAST int(0x80000000u)
bool wins(T value, T best) { return value > best; }
#endif
#endif

void compute_item(uint item) {
    uint plane;
    const uvec3 to = split_place(item, AXES(result_sizes), plane);
    const Span over_z = span_of(0u, to.x);
    const Span over_y = span_of(1u, to.y);
    const Span over_x = span_of(2u, to.z);
    const uint plane_first = plane * x_sizes[0] * x_sizes[1] * x_sizes[2];
#if MAX
    T total = LEAST;
    uint best = 0xffffffffu;
#else
    T total = T(0);
#endif
    for (int kz = over_z.first; kz < over_z.last; ++kz) {
        const uint z = uint(over_z.start + kz * over_z.dilation);
        for (int ky = over_y.first; ky < over_y.last; ++ky) {
            const uint y = uint(over_y.start + ky * over_y.dilation);
            const uint line = plane_first + (z * x_sizes[1] + y) * x_sizes[2];
            for (int kx = over_x.first; kx < over_x.last; ++kx) {
                const uint at = line + uint(over_x.start + kx * over_x.dilation);
                const T value = x[x_offset + at];
#if MAX
                if (best == 0xffffffffu || wins(value, total)) {
                    best = at;
                    total = value;
                }
#elif AVERAGE
                total += value;
#else
                total += WHOLE_P == 1u ? abs(value) : WHOLE_P == 2u ? value * value : safe_pow(abs(value), p);
#endif
            }
        }
    }
#if INDEX
    result[result_offset + item] = int(best);
#elif MAX
    result[result_offset + item] = total;
#elif AVERAGE
    result[result_offset + item] = total / float(max(over_z.counted * over_y.counted * over_x.counted, 1));
#else
    result[result_offset + item] = WHOLE_P == 1u ? total : WHOLE_P == 2u ? safe_sqrt(total) : safe_pow(total, 1.0 / p);
#endif
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
