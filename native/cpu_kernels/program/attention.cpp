// Attention of few queries to few keys, head after head: a step of programs.
//
//   scores = q @ k^T * scale -> mask, softmax -> weights @ v
//
// Keys are turned once for a head, so both products go along rows that stay in registers. Where a
// value of v is not finite, what has weight 0 is left out. Examples: tests/ops/native/test_native_programs.py.
#include "cpu_kernels/operands.hpp"
#include "cpu_kernels/vectors.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#ifdef HAS_VECTORS
namespace {

constexpr int64_t LANES = 8, VECTORS = 4, ROWS = 2;
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef float Loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// Steps are elements between batches, heads and rows; of a mask between keys, too.
struct Sizes {
    int64_t batches, heads, shared, queries, keys, depth, columns, low, high, nan_of_none, masked;
    int64_t q[3], k[3], v[3], out[3], mask[4];
};

// row: elements from one to the next.
struct Lines {
    const float* at;
    int64_t row;
};

// R rows and V vectors of a product, which stay in registers.
template <int64_t R, int64_t V>
INLINED void multiply_tile(Lines a, Lines b, int64_t inner, float* out, int64_t out_row)
{
    Floats sums[R][V] = {};
    for (int64_t k = 0; k < inner; ++k) {
        Floats own[V];
#pragma GCC unroll 4
        for (int64_t i = 0; i < V; ++i)
            own[i] = *reinterpret_cast<const Loose*>(b.at + k * b.row + i * LANES);
#pragma GCC unroll 2
        for (int64_t row = 0; row < R; ++row)
#pragma GCC unroll 4
            for (int64_t i = 0; i < V; ++i)
                sums[row][i] += a.at[row * a.row + k] * own[i];
    }
    for (int64_t row = 0; row < R; ++row)
        for (int64_t i = 0; i < V; ++i)
            *reinterpret_cast<Loose*>(out + row * out_row + i * LANES) = sums[row][i];
}

template <int64_t R>
INLINED void multiply_rows(Lines a, Lines b, int64_t inner, int64_t columns, float* out,
                           int64_t out_row)
{
    int64_t at = 0;
    for (; at + VECTORS * LANES <= columns; at += VECTORS * LANES)
        multiply_tile<R, VECTORS>(a, {b.at + at, b.row}, inner, out + at, out_row);
    for (; at + LANES <= columns; at += LANES)
        multiply_tile<R, 1>(a, {b.at + at, b.row}, inner, out + at, out_row);
    for (; at < columns; ++at)
        for (int64_t row = 0; row < R; ++row) {
            float sum = 0;
            for (int64_t k = 0; k < inner; ++k)
                sum += a.at[row * a.row + k] * b.at[k * b.row + at];
            out[row * out_row + at] = sum;
        }
}

// out (rows, columns) = a (rows, inner) @ b (inner, columns)
INLINED void multiply(Lines a, Lines b, int64_t rows, int64_t inner, int64_t columns, float* out,
                      int64_t out_row)
{
    int64_t row = 0;
    for (; row + ROWS <= rows; row += ROWS)
        multiply_rows<ROWS>({a.at + row * a.row, a.row}, b, inner, columns, out + row * out_row,
                            out_row);
    for (; row < rows; ++row)
        multiply_rows<1>({a.at + row * a.row, a.row}, b, inner, columns, out + row * out_row,
                         out_row);
}

thread_local std::vector<float> turned, scores;

struct Attention {
    Sizes told;
    float scale;
    ValueLoop exponentials;
};

// What one head reads and writes.
struct Head {
    Lines q, k, v;
    const float* mask; // null without
    float* out;
};

// Makes weights of the scores of a query.
INLINED void to_weights(const Attention& way, const Head& head, int64_t query, float* row)
{
    constexpr float infinite = std::numeric_limits<float>::infinity();
    const Sizes& told = way.told;
    const int64_t begin = std::clamp<int64_t>(query + told.low, 0, told.keys);
    const int64_t end = std::clamp<int64_t>(query + told.high + 1, begin, told.keys);
    std::fill(row, row + begin, 0.0f);
    std::fill(row + end, row + told.keys, 0.0f);
    for (int64_t key = begin; key < end; ++key)
        row[key] *= way.scale;
    if (head.mask) {
        const float* mask = head.mask + query * told.mask[2];
        for (int64_t key = begin; key < end; ++key) {
            const float added = mask[key * told.mask[3]];
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
        way.exponentials(row + begin, row + begin, end - begin);
    float sums[LANES] = {};
    int64_t key = begin;
    for (; key + LANES <= end; key += LANES)
        for (int64_t lane = 0; lane < LANES; ++lane)
            sums[lane] += row[key + lane];
    for (; key < end; ++key)
        sum += row[key];
    for (const float part : sums)
        sum += part;
    if (sum == 0 && told.nan_of_none)
        std::fill(row, row + told.keys, std::numeric_limits<float>::quiet_NaN());
    else if (sum != 0)
#pragma GCC ivdep
        for (key = begin; key < end; ++key)
            row[key] /= sum; // before values, which may be as large as float32 holds
}

// weights @ v by keys that have any weight.
INLINED void mix_apart(const Sizes& told, const Head& head, const float* weights)
{
    for (int64_t query = 0; query < told.queries; ++query, weights += told.keys) {
        float* out = head.out + query * told.out[2];
        std::fill_n(out, told.columns, 0.0f);
        for (int64_t key = 0; key < told.keys; ++key)
            for (int64_t i = 0; weights[key] != 0 && i < told.columns; ++i)
                out[i] += weights[key] * head.v.at[key * head.v.row + i];
    }
}

INLINED void attend(const Attention& way, const Head& head)
{
    const Sizes& told = way.told;
    float *keys = turned.data(), *weights = scores.data();
    for (int64_t key = 0; key < told.keys; ++key)
        for (int64_t i = 0; i < told.depth; ++i)
            keys[i * told.keys + key] = head.k.at[key * head.k.row + i];
    multiply(head.q, {keys, told.keys}, told.queries, told.depth, told.keys, weights, told.keys);
    for (int64_t query = 0; query < told.queries; ++query)
        to_weights(way, head, query, weights + query * told.keys);
    multiply({weights, told.keys}, head.v, told.queries, told.keys, told.columns, head.out,
             told.out[2]);
    float finite = 0;
    for (int64_t query = 0; query < told.queries; ++query)
        for (int64_t i = 0; i < told.columns; ++i)
            finite += head.out[query * told.out[2] + i] * 0.0f;
    if (finite != 0) // NaN too
        mix_apart(told, head, weights);
}

INLINED void attend_all(const Attention& way, const Operands& given, int64_t first, int64_t end)
{
    const Sizes& told = way.told;
    turned.resize(std::max<size_t>(turned.size(), told.keys * told.depth));
    scores.resize(std::max<size_t>(scores.size(), told.queries * told.keys));
    for (int64_t number = first; number < end; ++number) {
        const int64_t batch = number / told.heads, own = number % told.heads;
        const int64_t kept = own / (told.heads / told.shared);
        const auto at = [&](size_t operand, const int64_t* steps, int64_t head) {
            return given.get<float>(operand) + batch * steps[0] + head * steps[1];
        };
        attend(way, {{at(0, told.q, own), told.q[2]},
                     {at(1, told.k, kept), told.k[2]},
                     {at(2, told.v, kept), told.v[2]},
                     told.masked ? at(3, told.mask, own) : nullptr,
                     at(3 + told.masked, told.out, own)});
    }
}

void attend_some(const Attention& way, const Operands& given, int64_t first, int64_t end)
{
    attend_all(way, given, first, end);
}

#ifdef WIDE
WIDE void attend_wide(const Attention& way, const Operands& given, int64_t first, int64_t end)
{
    attend_all(way, given, first, end);
}
#else
constexpr auto attend_wide = attend_some;
#endif

// A piece: some heads, of all batches.
struct AttentionLoop : Loop {
    Attention way;
    bool wide;
    int64_t pieces;

    void run(const Operands& given, size_t piece) const override
    {
        const int64_t all = way.told.batches * way.told.heads, own = piece;
        (wide ? attend_wide : attend_some)(way, given, all * own / pieces,
                                           all * (own + 1) / pieces);
    }

    void reach(Extents& to) const override
    {
        const Sizes& told = way.told;
        const auto rows = [&](size_t slot, int64_t heads, int64_t many, int64_t values,
                              const int64_t* steps) {
            to.add(slot, 4, {{told.batches, steps[0]}, {heads, steps[1]}, {many, steps[2]},
                             {values, 1}});
        };
        rows(0, told.heads, told.queries, told.depth, told.q);
        rows(1, told.shared, told.keys, told.depth, told.k);
        rows(2, told.shared, told.keys, told.columns, told.v);
        if (told.masked)
            to.add(3, 4, {{told.batches, told.mask[0]}, {told.heads, told.mask[1]},
                          {told.queries, told.mask[2]}, {told.keys, told.mask[3]}});
        rows(3 + told.masked, told.heads, told.queries, told.columns, told.out);
        constexpr int64_t far = int64_t{1} << 40; // so that sums of it are numbers
        require(std::max(told.low, told.high) <= far && std::min(told.low, told.high) >= -far,
                "expected a window of keys that there are");
        to.all(2, 4, {told.columns > 0 ? told.keys : 0}); // which bound what a thread keeps
    }
};

} // namespace

// numbers: those of Sizes, in their order. reals: scale.
std::unique_ptr<Loop> attention_loop(const Told& told)
{
    constexpr size_t count = sizeof(Sizes) / sizeof(int64_t);
    require(told.numbers.size() == count && told.reals.size() == 1,
            "expected as many numbers and reals as the loop has");
    auto made = std::make_unique<AttentionLoop>();
    std::memcpy(&made->way.told, told.numbers.data(), sizeof(Sizes));
    const Sizes& sizes = made->way.told;
    require(sizes.shared > 0 && sizes.heads % sizes.shared == 0 && sizes.keys > 0
                && (sizes.masked == 0 || sizes.masked == 1)
                && told.slots == static_cast<size_t>(4 + sizes.masked),
            "expected heads that share keys evenly, and a slot for each operand and the result");
    made->way.scale = told.reals[0];
    made->way.exponentials = value_loop("exp", told.wide);
    made->wide = told.wide && has_wide();
    made->pieces = told.pieces;
    return made;
}
#else
std::unique_ptr<Loop> attention_loop(const Told&) { throw KeyError("attention"); }
#endif
