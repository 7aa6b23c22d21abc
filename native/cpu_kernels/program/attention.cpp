// Attention of few queries and keys, one head at a time: a loop of native programs.
//
//   scores = q @ k^T * scale -> mask, softmax -> weights @ v
//
// The keys of a head are transposed once, so that both products read contiguous rows. If a value of
// v is not finite, values of weight 0 are skipped. Examples:
// tests/ops/native/test_native_programs.py.
#include "cpu_kernels/operands.hpp"
#include "cpu_kernels/vectors.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#ifdef HAS_VECTOR_EXTENSIONS
namespace {

constexpr int64_t LANES = 8, VECTORS = 4, ROWS = 2;
typedef float F32x8 __attribute__((vector_size(4 * LANES)));
typedef float UnalignedF32x8 __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// The integer parameters, in their order. Strides are elements between batches, heads and rows;
// those of the mask between keys, too.
struct Sizes {
    int64_t batches, heads, kv_heads, queries, keys, qk_dim, v_dim, window_low, window_high,
        fully_masked_is_nan, has_mask;
    int64_t q[3], k[3], v[3], out[3], mask[4];
};

// row: stride between rows, in elements.
struct Matrix {
    const float* at;
    int64_t row;
};

// A tile of R rows and V vectors of a product, accumulated in registers.
template <int64_t R, int64_t V>
INLINED void gemm_tile(Matrix a, Matrix b, int64_t inner, float* out, int64_t out_row)
{
    F32x8 sums[R][V] = {};
    for (int64_t k = 0; k < inner; ++k) {
        F32x8 b_row_values[V];
#pragma GCC unroll 4
        for (int64_t i = 0; i < V; ++i)
            b_row_values[i] =
                *reinterpret_cast<const UnalignedF32x8*>(b.at + k * b.row + i * LANES);
#pragma GCC unroll 2
        for (int64_t row = 0; row < R; ++row)
#pragma GCC unroll 4
            for (int64_t i = 0; i < V; ++i)
                sums[row][i] += a.at[row * a.row + k] * b_row_values[i];
    }
    for (int64_t row = 0; row < R; ++row)
        for (int64_t i = 0; i < V; ++i)
            *reinterpret_cast<UnalignedF32x8*>(out + row * out_row + i * LANES) = sums[row][i];
}

template <int64_t R>
INLINED void gemm_rows(Matrix a, Matrix b, int64_t inner, int64_t columns, float* out,
                           int64_t out_row)
{
    int64_t at = 0;
    for (; at + VECTORS * LANES <= columns; at += VECTORS * LANES)
        gemm_tile<R, VECTORS>(a, {b.at + at, b.row}, inner, out + at, out_row);
    for (; at + LANES <= columns; at += LANES)
        gemm_tile<R, 1>(a, {b.at + at, b.row}, inner, out + at, out_row);
    for (; at < columns; ++at)
        for (int64_t row = 0; row < R; ++row) {
            float sum = 0;
            for (int64_t k = 0; k < inner; ++k)
                sum += a.at[row * a.row + k] * b.at[k * b.row + at];
            out[row * out_row + at] = sum;
        }
}

// out (rows, columns) = a (rows, inner) @ b (inner, columns)
INLINED void gemm(Matrix a, Matrix b, int64_t rows, int64_t inner, int64_t columns, float* out,
                      int64_t out_row)
{
    int64_t row = 0;
    for (; row + ROWS <= rows; row += ROWS)
        gemm_rows<ROWS>({a.at + row * a.row, a.row}, b, inner, columns, out + row * out_row,
                            out_row);
    for (; row < rows; ++row)
        gemm_rows<1>({a.at + row * a.row, a.row}, b, inner, columns, out + row * out_row,
                         out_row);
}

thread_local std::vector<float> transposed_keys, scores;

struct Attention {
    Sizes sizes;
    float scale;
    UnaryKernel exp_kernel;
};

// The operands and the result of one head.
struct Head {
    Matrix q, k, v;
    const float* mask; // null without a mask
    float* out;
};

// Turn a row of scores into attention weights, in place.
INLINED void softmax_row(const Attention& attention, const Head& head, int64_t query, float* row)
{
    constexpr float infinite = std::numeric_limits<float>::infinity();
    const Sizes& sizes = attention.sizes;
    const int64_t begin = std::clamp<int64_t>(query + sizes.window_low, 0, sizes.keys);
    const int64_t end = std::clamp<int64_t>(query + sizes.window_high + 1, begin, sizes.keys);
    std::fill(row, row + begin, 0.0f);
    std::fill(row + end, row + sizes.keys, 0.0f);
    for (int64_t key = begin; key < end; ++key)
        row[key] *= attention.scale;
    if (head.mask) {
        const float* mask = head.mask + query * sizes.mask[2];
        for (int64_t key = begin; key < end; ++key) {
            const float added = mask[key * sizes.mask[3]];
            row[key] = added == -infinite ? -infinite : row[key] + added;
        }
    }
    float largest = -infinite, sum = 0;
    for (int64_t key = begin; key < end; ++key)
        largest = row[key] > largest ? row[key] : largest;
    if (!(largest > -infinite))
        largest = 0;
#pragma GCC ivdep
    for (int64_t key = begin; key < end; ++key)
        row[key] -= largest;
    if (begin < end)
        attention.exp_kernel(row + begin, row + begin, end - begin);
    float sums[LANES] = {};
    int64_t key = begin;
    for (; key + LANES <= end; key += LANES)
        for (int64_t lane = 0; lane < LANES; ++lane)
            sums[lane] += row[key + lane];
    for (; key < end; ++key)
        sum += row[key];
    for (const float part : sums)
        sum += part;
    if (sum == 0 && sizes.fully_masked_is_nan)
        std::fill(row, row + sizes.keys, std::numeric_limits<float>::quiet_NaN());
    else if (sum != 0)
#pragma GCC ivdep
        for (key = begin; key < end; ++key)
            row[key] /= sum; // before the product: values may be close to the maximum of float32
}

// weights @ v over the keys of non-zero weight only.
INLINED void mix_finite(const Sizes& sizes, const Head& head, const float* weights)
{
    for (int64_t query = 0; query < sizes.queries; ++query, weights += sizes.keys) {
        float* out = head.out + query * sizes.out[2];
        std::fill_n(out, sizes.v_dim, 0.0f);
        for (int64_t key = 0; key < sizes.keys; ++key)
            for (int64_t i = 0; weights[key] != 0 && i < sizes.v_dim; ++i)
                out[i] += weights[key] * head.v.at[key * head.v.row + i];
    }
}

INLINED void attend(const Attention& attention, const Head& head)
{
    const Sizes& sizes = attention.sizes;
    float *keys = transposed_keys.data(), *weights = scores.data();
    for (int64_t key = 0; key < sizes.keys; ++key)
        for (int64_t i = 0; i < sizes.qk_dim; ++i)
            keys[i * sizes.keys + key] = head.k.at[key * head.k.row + i];
    gemm(head.q, {keys, sizes.keys}, sizes.queries, sizes.qk_dim, sizes.keys, weights, sizes.keys);
    for (int64_t query = 0; query < sizes.queries; ++query)
        softmax_row(attention, head, query, weights + query * sizes.keys);
    gemm({weights, sizes.keys}, head.v, sizes.queries, sizes.keys, sizes.v_dim, head.out,
             sizes.out[2]);
    float finite = 0;
    for (int64_t query = 0; query < sizes.queries; ++query)
        for (int64_t i = 0; i < sizes.v_dim; ++i)
            finite += head.out[query * sizes.out[2] + i] * 0.0f;
    if (finite != 0) // also if NaN
        mix_finite(sizes, head, weights);
}

INLINED void attend_heads_body(const Attention& attention, const Operands& operands, int64_t first,
                               int64_t end)
{
    const Sizes& sizes = attention.sizes;
    transposed_keys.resize(std::max<size_t>(transposed_keys.size(), sizes.keys * sizes.qk_dim));
    scores.resize(std::max<size_t>(scores.size(), sizes.queries * sizes.keys));
    for (int64_t number = first; number < end; ++number) {
        const int64_t batch = number / sizes.heads, head = number % sizes.heads;
        const int64_t kv_head = head / (sizes.heads / sizes.kv_heads);
        const auto at = [&](size_t operand, const int64_t* strides, int64_t head_index) {
            return operands.get<float>(operand) + batch * strides[0] + head_index * strides[1];
        };
        attend(attention, {{at(0, sizes.q, head), sizes.q[2]},
                     {at(1, sizes.k, kv_head), sizes.k[2]},
                     {at(2, sizes.v, kv_head), sizes.v[2]},
                     sizes.has_mask ? at(3, sizes.mask, head) : nullptr,
                     at(3 + sizes.has_mask, sizes.out, head)});
    }
}

void attend_heads(const Attention& attention, const Operands& operands, int64_t first, int64_t end)
{
    attend_heads_body(attention, operands, first, end);
}

#ifdef TARGET_AVX2
TARGET_AVX2 void attend_heads_avx2(const Attention& attention, const Operands& operands,
                                   int64_t first, int64_t end)
{
    attend_heads_body(attention, operands, first, end);
}
#else
constexpr auto attend_heads_avx2 = attend_heads;
#endif

// A piece is a range of the heads of all batches.
struct AttentionLoop : Loop {
    Attention attention;
    bool wide;
    int64_t pieces;

    void run(const Operands& operands, size_t piece) const override
    {
        const int64_t all = attention.sizes.batches * attention.sizes.heads, index = piece;
        (wide ? attend_heads_avx2 : attend_heads)(attention, operands, all * index / pieces,
                                           all * (index + 1) / pieces);
    }

    void add_extents(Extents& extents) const override
    {
        const Sizes& sizes = attention.sizes;
        const auto rows = [&](size_t slot, int64_t heads, int64_t rows, int64_t values,
                              const int64_t* strides) {
            extents.add(slot, 4,
                        {{sizes.batches, strides[0]},
                         {heads, strides[1]},
                         {rows, strides[2]},
                         {values, 1}});
        };
        rows(0, sizes.heads, sizes.queries, sizes.qk_dim, sizes.q);
        rows(1, sizes.kv_heads, sizes.keys, sizes.qk_dim, sizes.k);
        rows(2, sizes.kv_heads, sizes.keys, sizes.v_dim, sizes.v);
        if (sizes.has_mask)
            extents.add(3, 4, {{sizes.batches, sizes.mask[0]}, {sizes.heads, sizes.mask[1]},
                          {sizes.queries, sizes.mask[2]}, {sizes.keys, sizes.mask[3]}});
        rows(3 + sizes.has_mask, sizes.heads, sizes.queries, sizes.v_dim, sizes.out);
        constexpr int64_t limit = int64_t{1} << 40; // sums of indices do not overflow
        require(std::max(sizes.window_low, sizes.window_high) <= limit
                    && std::min(sizes.window_low, sizes.window_high) >= -limit,
                "expected an attention window below 2^40");
        extents.add_dense(
            2, 4, {sizes.v_dim > 0 ? sizes.keys : 0}); // bounds the scratch memory of a thread
    }
};

} // namespace

// int_params: the fields of Sizes, in their order. float_params: scale.
std::unique_ptr<Loop> attention_loop(const LoopParams& params)
{
    constexpr size_t count = sizeof(Sizes) / sizeof(int64_t);
    require(params.int_params.size() == count && params.float_params.size() == 1,
            "expected as many int_params and float_params as the loop has");
    auto loop = std::make_unique<AttentionLoop>();
    std::memcpy(&loop->attention.sizes, params.int_params.data(), sizeof(Sizes));
    const Sizes& sizes = loop->attention.sizes;
    require(sizes.kv_heads > 0 && sizes.heads % sizes.kv_heads == 0 && sizes.keys > 0
                && (sizes.has_mask == 0 || sizes.has_mask == 1)
                && params.slots == static_cast<size_t>(4 + sizes.has_mask),
            "expected a number of heads divisible by kv_heads, and a slot for each operand and the "
            "result");
    loop->attention.scale = params.float_params[0];
    loop->attention.exp_kernel = unary_kernel("exp", params.wide);
    loop->wide = params.wide && has_avx2();
    loop->pieces = params.pieces;
    return loop;
}
#else
std::unique_ptr<Loop> attention_loop(const LoopParams&) { throw KeyError("attention"); }
#endif
