// The arithmetic of attention with a KV cache, row by row: a row is a query of a head.
//
//   scores of 8 keys at a time -> softcap, softmax -> sum of weighted values, in registers
//
// The bits of a row depend neither on the other rows of a piece nor on the blocks of keys: each sum
// adds its terms in an order of its own.
#pragma once

#include "cpu_kernels/operands.hpp"
#include "cpu_kernels/vectors.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#ifdef HAS_VECTOR_EXTENSIONS
namespace attention_rows {

constexpr int64_t LANES = 8;
constexpr int64_t KEYS = 8;        // keys whose scores are computed together
constexpr int64_t VALUE_KEYS = 32; // keys whose values are added together

typedef float F32x8 __attribute__((vector_size(4 * LANES)));

INLINED F32x8 load(const float* from)
{
    F32x8 values;
    std::memcpy(&values, from, sizeof values);
    return values;
}

INLINED void store(float* to, const F32x8& values) { std::memcpy(to, &values, sizeof values); }

INLINED float sum_lanes(const F32x8& x)
{
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

// Return the sums of the lanes of 8 vectors, each in the order of `sum_lanes`.
INLINED F32x8 sums_of_lanes(const F32x8 (&x)[KEYS])
{
    F32x8 pairs[4], fours[2];
#pragma GCC unroll 4
    for (int64_t i = 0; i < 4; ++i) {
        const F32x8 &a = x[2 * i], &b = x[2 * i + 1];
        pairs[i] = __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14)
                   + __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
    }
#pragma GCC unroll 2
    for (int64_t i = 0; i < 2; ++i) {
        const F32x8 &a = pairs[2 * i], &b = pairs[2 * i + 1];
        fours[i] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
                   + __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
    return __builtin_shufflevector(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11)
           + __builtin_shufflevector(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

// Return the scalar products of a query and KEYS keys.
INLINED F32x8 dot_keys(const float* query, const float* const (&keys)[KEYS], int64_t count)
{
    F32x8 sums[KEYS] = {};
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        const F32x8 values = load(query + at);
#pragma GCC unroll 8
        for (int64_t key = 0; key < KEYS; ++key)
            sums[key] += values * load(keys[key] + at);
    }
    F32x8 total = sums_of_lanes(sums);
    for (; at < count; ++at)
        for (int64_t key = 0; key < KEYS; ++key)
            total[key] += query[at] * keys[key][at];
    return total;
}

INLINED float largest_of(const float* x, int64_t count)
{
    constexpr float infinite = std::numeric_limits<float>::infinity();
    F32x8 lanes = F32x8{} - infinite;
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        const F32x8 values = load(x + at);
        lanes = values > lanes ? values : lanes; // never NaN
    }
    float largest = -infinite;
    for (int64_t lane = 0; lane < LANES; ++lane)
        largest = lanes[lane] > largest ? lanes[lane] : largest;
    for (; at < count; ++at)
        largest = x[at] > largest ? x[at] : largest;
    return largest;
}

INLINED float sum_of(const float* x, int64_t count)
{
    F32x8 lanes{};
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES)
        lanes += load(x + at);
    float sum = sum_lanes(lanes);
    for (; at < count; ++at)
        sum += x[at];
    return sum;
}

// Turn scores into attention weights, in place. Return false if all keys are masked and the result
// is NaN.
INLINED bool softmax(float* scores, int64_t count, float softcap, UnaryKernel exp_kernel,
                     bool fully_masked_is_nan)
{
    if (softcap != 0)
        for (int64_t key = 0; key < count; ++key)
            scores[key] = std::tanh(scores[key] / softcap) * softcap;
    float largest = largest_of(scores, count);
    if (!(largest > -std::numeric_limits<float>::infinity()))
        largest = 0;
#pragma GCC ivdep
    for (int64_t key = 0; key < count; ++key)
        scores[key] -= largest;
    if (count > 0)
        exp_kernel(scores, scores, count);
    float sum = sum_of(scores, count);
    if (sum == 0 && !fully_masked_is_nan)
        sum = 1;
#pragma GCC ivdep
    for (int64_t key = 0; key < count; ++key)
        scores[key] /= sum; // before the product: values may be close to the maximum of float32
    return sum != 0;
}

// Add the weighted values of some keys to VECTORS vectors of sums, one key after the other, as far
// as there are as many columns. Return the next column.
template <int64_t VECTORS>
INLINED int64_t add_columns(const float* const* values, const float* weights, int64_t keys,
                            int64_t at, int64_t count, float* sums)
{
    for (; at + VECTORS * LANES <= count; at += VECTORS * LANES) {
        F32x8 total[VECTORS];
#pragma GCC unroll 8
        for (int64_t i = 0; i < VECTORS; ++i)
            total[i] = load(sums + at + i * LANES);
        for (int64_t key = 0; key < keys; ++key) {
            const F32x8 weight = F32x8{} + weights[key];
            const float* from = values[key] + at;
#pragma GCC unroll 8
            for (int64_t i = 0; i < VECTORS; ++i)
                total[i] += weight * load(from + i * LANES);
        }
#pragma GCC unroll 8
        for (int64_t i = 0; i < VECTORS; ++i)
            store(sums + at + i * LANES, total[i]);
    }
    return at;
}

INLINED void add_values(const float* const* values, const float* weights, int64_t keys,
                        int64_t count, float* sums)
{
    int64_t at = add_columns<8>(values, weights, keys, 0, count, sums);
    at = add_columns<1>(values, weights, keys, at, count, sums);
    for (; at < count; ++at)
        for (int64_t key = 0; key < keys; ++key)
            sums[at] += weights[key] * values[key][at];
}

INLINED bool is_finite(const float* x, int64_t count)
{
    float zeros = 0;
    for (int64_t i = 0; i < count; ++i)
        zeros += x[i] * 0.0f;
    return zeros == 0;
}

} // namespace attention_rows
#endif
