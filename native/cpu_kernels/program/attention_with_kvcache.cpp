// Attention of few queries to the rows of a cache and new ones: a step of programs.
// Examples: tests/ops/native/test_native_programs.py.
#include "cpu_kernels/param_loop.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace {

using CachedLoop = ToldLoop<ValueLoop>;

// What numbers say. Steps are elements between batches, heads and rows; of words in words.
struct Attention {
    int64_t batches, heads, shared, queries, depth, columns, kept, fresh;
    int64_t together;  // heads of a piece
    int64_t kind;      // of kept rows: 0 float32, 1 float16, 2 q8_0
    int64_t is_long, per_batch; // the numbers of keys in use
    int64_t low, high, nan_of_none;
    int64_t q[3], k[3], v[3], new_k[3], new_v[3], out[3];
};

INLINED float of_half(uint32_t half)
{
    const uint32_t size = half & 0x7fffu;
    const float scaled = bits_as<float>(size << 13) * 0x1p112f; // 0 and subnormals too
    const uint32_t special = size >= 0x7c00u ? 0x7f800000u : 0u;
    return bits_as<float>(bits_as<uint32_t>(scaled) | special | (half & 0x8000u) << 16);
}

// Values of a row: where it lies, or in `made`. Of q8_0 as vksched/ops/attention/kv_q8_0.py says.
INLINED const float* row_values(const char* base, int64_t offset, int64_t kind, int64_t count,
                                float* made)
{
    if (kind == 0)
        return reinterpret_cast<const float*>(base) + offset;
    if (kind == 1) {
        const uint16_t* halves = reinterpret_cast<const uint16_t*>(base) + offset;
#pragma GCC ivdep
        for (int64_t i = 0; i < count; ++i)
            made[i] = of_half(halves[i]);
        return made;
    }
    const uint32_t* tile = reinterpret_cast<const uint32_t*>(base) + offset;
    for (int64_t start = 0; start < count; start += 64, tile += 17) {
        const int64_t many = std::min<int64_t>(64, count - start);
        const int8_t* codes = reinterpret_cast<const int8_t*>(tile + 1);
        const float scales[2] = {of_half(*tile & 0xffffu), of_half(*tile >> 16)};
        for (int64_t run = 0; run < 2; ++run) {
            const int64_t end = std::min<int64_t>(32 * (run + 1), many);
#pragma GCC ivdep
            for (int64_t i = 32 * run; i < end; ++i)
                made[start + i] = codes[i] * scales[run];
        }
    }
    return made;
}

// A query of a piece: the keys that it sees, from `begin` to `end`, their scores and its result.
struct Row {
    const float* query;
    int64_t begin, end;
    float *scores, *sums, *out;
};

thread_local std::vector<float> scratch;
thread_local std::vector<Row> scratch_rows;

// Returns whether there is any weight.
INLINED bool to_weights(const CachedLoop& step, const Row& row, bool nan_of_none)
{
    float* scores = row.scores;
    const int64_t begin = row.begin, end = row.end;
    float largest = -std::numeric_limits<float>::infinity(), sum = 0;
    if (step.reals[1] != 0)
        for (int64_t key = begin; key < end; ++key)
            scores[key] = std::tanh(scores[key] / step.reals[1]) * step.reals[1];
    for (int64_t key = begin; key < end; ++key)
        largest = scores[key] > largest ? scores[key] : largest;
    if (!(largest > -std::numeric_limits<float>::infinity()))
        largest = 0;
#pragma GCC ivdep
    for (int64_t key = begin; key < end; ++key)
        scores[key] -= largest;
    if (begin < end)
        step.called(scores + begin, scores + begin, end - begin);
    for (int64_t key = begin; key < end; ++key)
        sum += scores[key];
    if (sum == 0 && !nan_of_none)
        sum = 1;
#pragma GCC ivdep
    for (int64_t key = begin; key < end; ++key)
        scores[key] /= sum; // before values, which may be as large as float32 holds
    return sum != 0;
}

// A piece: some heads that share keys, all their queries, which are its rows.
INLINED void attention_body(const CachedLoop& step, const Operands& given, size_t piece)
{
    const Attention& told = *reinterpret_cast<const Attention*>(step.numbers.data());
    const int64_t groups = told.heads / told.together, depth = told.depth, columns = told.columns;
    const int64_t batch = static_cast<int64_t>(piece) / groups;
    const int64_t first = static_cast<int64_t>(piece) % groups * told.together;
    const int64_t head = first / (told.heads / told.shared);
    const int64_t used = whole_number(given.get<char>(3), told.per_batch ? batch : 0,
                                      told.is_long != 0);
    const int64_t count = std::clamp<int64_t>(used, 0, told.kept), total = count + told.fresh;
    const int64_t many = told.together * told.queries;
    const size_t needed = many * (total + columns) + std::max(depth, columns);
    if (scratch.size() < needed)
        scratch.resize(needed);
    scratch_rows.resize(many);
    Row* const rows = scratch_rows.data();
    float* free = scratch.data();
    for (int64_t number = 0; number < many; ++number) {
        const int64_t own = first + number / told.queries, query = number % told.queries;
        Row& row = rows[number];
        row.query = given.get<float>(0) + batch * told.q[0] + own * told.q[1]
            + query * told.q[2];
        row.begin = std::clamp<int64_t>(count + query + told.low, 0, total);
        row.end = std::clamp<int64_t>(count + query + told.high + 1, 0, total);
        row.scores = free;
        row.sums = free + total;
        row.out = step.result(given) + batch * told.out[0] + own * told.out[1] + query * told.out[2];
        free += total + columns;
        std::fill_n(row.sums, columns, 0.0f);
    }
    float* const one = free;
    const int64_t begin = rows[0].begin, end = rows[many - 1].end; // all rows together
    const auto line = [&](int64_t key, size_t old, size_t fresh, const int64_t* steps,
                          const int64_t* new_steps, int64_t values) {
        return key < count ? row_values(given.get<char>(old),
                                        batch * steps[0] + head * steps[1] + key * steps[2],
                                        told.kind, values, one)
                           : given.get<float>(fresh) + batch * new_steps[0]
                + head * new_steps[1] + (key - count) * new_steps[2];
    };
    for (int64_t key = begin; key < end; ++key) {
        const float* own = line(key, 1, 4, told.k, told.new_k, depth);
        for (int64_t number = 0; number < many; ++number) {
            const Row& row = rows[number];
            if (row.begin <= key && key < row.end)
                row.scores[key] = dot(row.query, own, depth) * step.reals[0];
        }
    }
    for (int64_t number = 0; number < many; ++number)
        if (!to_weights(step, rows[number], told.nan_of_none != 0))
            std::fill_n(rows[number].sums, columns, std::numeric_limits<float>::quiet_NaN());
    for (int64_t key = begin; key < end; ++key) {
        const float* own = line(key, 2, 5, told.v, told.new_v, columns);
        for (int64_t number = 0; number < many; ++number) {
            const Row& row = rows[number];
            // what has weight 0 is not there, even where it is NaN or infinite
            if (key < row.begin || row.end <= key || row.scores[key] == 0)
                continue;
            const float weight = row.scores[key];
            float* sums = row.sums;
#pragma GCC ivdep
            for (int64_t i = 0; i < columns; ++i)
                sums[i] += weight * own[i];
        }
    }
    for (int64_t number = 0; number < many; ++number)
        std::copy_n(rows[number].sums, columns, rows[number].out);
}

void attention_reach(const CachedLoop& step, Extents& to)
{
    const Attention& told = *reinterpret_cast<const Attention*>(step.numbers.data());
    constexpr int64_t far = int64_t{1} << 40; // so that sums of it are numbers
    require(told.queries > 0 && told.shared > 0 && told.heads % told.shared == 0 && told.together > 0
                && told.heads / told.shared % told.together == 0 && told.kind >= 0 && told.kind <= 2
                && std::max(told.low, told.high) <= far && std::min(told.low, told.high) >= -far,
            "expected queries, and heads that share keys evenly");
    require(told.batches >= 0 && told.batches <= step.pieces
                && told.batches * (told.heads / told.together) == step.pieces && step.last == 6,
            "expected a piece of each batch and heads that go together");
    const auto rows = [&](size_t slot, double bytes, int64_t heads, int64_t many, int64_t values,
                          const int64_t* steps) {
        to.add(slot, bytes, {{told.batches, steps[0]}, {heads, steps[1]}, {many, steps[2]},
                             {values, 1}});
    };
    const auto words = [](int64_t values) { return (values + 63) / 64 + (values + 3) / 4; };
    const bool is_words = told.kind == 2;
    const double bytes = told.kind == 1 ? 2 : 4;
    rows(0, 4, told.heads, told.queries, told.depth, told.q);
    rows(1, bytes, told.shared, told.kept, is_words ? words(told.depth) : told.depth, told.k);
    rows(2, bytes, told.shared, told.kept, is_words ? words(told.columns) : told.columns, told.v);
    to.all(3, told.is_long ? 8 : 4, {told.per_batch ? told.batches : 1});
    rows(4, 4, told.shared, told.fresh, told.depth, told.new_k);
    rows(5, 4, told.shared, told.fresh, told.columns, told.new_v);
    rows(6, 4, told.heads, told.queries, told.columns, told.out);
}

void attention(const CachedLoop& step, const Operands& given, size_t piece)
{
    attention_body(step, given, piece);
}

#ifdef WIDE
WIDE void attention_wide(const CachedLoop& step, const Operands& given, size_t piece)
{
    attention_body(step, given, piece);
}
#else
constexpr CachedLoop::Way attention_wide = attention;
#endif

} // namespace

// numbers: those of Attention, in their order. reals: scale, softcap.
std::unique_ptr<Loop> cached_attention_loop(const Told& told)
{
    return told_loop(told, {4, sizeof(Attention) / sizeof(int64_t), 2},
                     told.wide && has_wide() ? attention_wide : attention,
                     attention_reach, value_loop("exp", told.wide));
}
