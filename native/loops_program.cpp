// Programs: many loops one after the other in one call, without the interpreter lock.
//
//   p = Program([("add", slots, numbers, reals, pieces), ...], [bytes of each slot], [open slots])
//   p.bind(slot, array)       where a value lies in each run; the caller keeps it
//   p.run(arrays, begin)      those of the open slots, then all loops; begin() calls helpers
//   p.help()                  takes pieces of loops until the run ends; on any thread
//
// vksched/ops/core/recipe.py says what loops there are and how they are told of sizes; a slot is
// where one value lies, without gaps. A run never waits for who has not taken a piece. An index
// outside its axis raises IndexError with the number of the loop, and what was expected.
// Examples: tests/ops/test_recipes.py.
#include "packed.hpp"
#include "steps.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#define WIDE __attribute__((target("avx2,fma")))
#endif

namespace {

struct Step;
using Way = void (*)(const Step&, char* const*, size_t);

// One loop: `own`, or a way. at: where slots lie. value, norm, packed ...: the loop of others that
// it calls.
struct Step {
    std::unique_ptr<Loop> own;
    Way way = nullptr;
    std::vector<uint32_t> slots;
    std::vector<int64_t> numbers;
    std::vector<float> reals;
    uint32_t pieces = 1;
    ValueLoop value = nullptr;
    NormLoop norm = nullptr;
#ifdef HAS_VECTORS
    PackedLoop packed = nullptr;
    RoundingLoop rounding = nullptr;
    RoundedLoop rounded = nullptr;
#endif

    template <class T>
    T* slot(char* const* at, size_t operand) const
    {
        return reinterpret_cast<T*>(at[slots[operand]]);
    }
    float* result(char* const* at) const { return slot<float>(at, slots.size() - 1); }
    void run(char* const* at, size_t piece) const
    {
        if (own)
            own->run({at, slots.data()}, piece);
        else
            way(*this, at, piece);
    }
};

// -- rows ----------------------------------------------------------------------------------------

// numbers: rows, columns, centered, scaled, shifted. reals: eps.
void norms(const Step& step, char* const* at, size_t)
{
    const int64_t* told = step.numbers.data();
    Norm norm{};
    norm.rows = told[0];
    norm.columns = told[1];
    norm.centered = told[2] != 0;
    norm.scale = told[3] ? step.slot<float>(at, 1) : nullptr;
    norm.shift = told[4] ? step.slot<float>(at, told[3] ? 2 : 1) : nullptr;
    norm.eps = step.reals[0];
    step.norm(norm, step.slot<float>(at, 0), step.result(at));
}

INLINED float total_of(float (&sums)[16])
{
    for (int64_t half = 8; half > 0; half /= 2)
        for (int64_t lane = 0; lane < half; ++lane)
            sums[lane] += sums[lane + half];
    return sums[0];
}

INLINED float dot(const float* a, const float* b, int64_t count)
{
    constexpr int64_t lanes = 16;
    float sums[lanes] = {};
    int64_t at = 0;
    for (; at + lanes <= count; at += lanes)
        for (int64_t lane = 0; lane < lanes; ++lane)
            sums[lane] += a[at + lane] * b[at + lane];
    for (; at < count; ++at)
        sums[0] += a[at] * b[at];
    return total_of(sums);
}

// Rows of the last axis. numbers: rows, columns.
INLINED void softmax_body(const Step& step, char* const* at, size_t)
{
    const int64_t rows = step.numbers[0], columns = step.numbers[1];
    const float* x = step.slot<float>(at, 0);
    float* out = step.result(at);
    constexpr int64_t lanes = 16;
    for (int64_t row = 0; row < rows; ++row, x += columns, out += columns) {
        float largest = x[0], sums[lanes] = {};
        for (int64_t i = 1; i < columns; ++i)
            largest = largest > x[i] || largest != largest ? largest : x[i]; // NaN wins
#pragma GCC ivdep
        for (int64_t i = 0; i < columns; ++i)
            out[i] = x[i] - largest;
        step.value(out, out, columns);
        int64_t i = 0;
        for (; i + lanes <= columns; i += lanes)
            for (int64_t lane = 0; lane < lanes; ++lane)
                sums[lane] += out[i + lane];
        for (; i < columns; ++i)
            sums[0] += out[i];
        const float total = total_of(sums);
#pragma GCC ivdep
        for (i = 0; i < columns; ++i)
            out[i] /= total;
    }
}

constexpr int64_t FOUR = 4;

// The same sums of a with b and the lines behind it, each `apart` from the one before: a is read once
// for all, and none waits for the sum before.
INLINED void four_dots(const float* a, const float* b, int64_t apart, int64_t count, float* out)
{
#ifdef HAS_VECTORS
    typedef float Eight __attribute__((vector_size(32)));
    typedef float Loose __attribute__((vector_size(32), aligned(4), may_alias));
    constexpr int64_t lanes = 8, parts = 2;
    Eight sums[FOUR][parts] = {};
    int64_t at = 0;
    for (; at + parts * lanes <= count; at += parts * lanes)
#pragma GCC unroll 4
        for (int64_t line = 0; line < FOUR; ++line)
#pragma GCC unroll 2
            for (int64_t part = 0; part < parts; ++part) {
                const float* own = b + line * apart + at + part * lanes;
                sums[line][part] += *reinterpret_cast<const Loose*>(a + at + part * lanes)
                    * *reinterpret_cast<const Loose*>(own);
            }
    for (int64_t line = 0; line < FOUR; ++line) {
        float each[parts * lanes];
        std::memcpy(each, sums[line], sizeof each);
        for (int64_t rest = at; rest < count; ++rest)
            each[0] += a[rest] * b[line * apart + rest];
        out[line] = total_of(each);
    }
#else
    for (int64_t line = 0; line < FOUR; ++line)
        out[line] = dot(a, b + line * apart, count);
#endif
}

// A small product. numbers: batches, m, n, k; of a how far batches, rows and columns are from one
// another; the same of b, of whose rows or columns the neighbours are 1 apart; whether it has a bias.
INLINED void matmul_body(const Step& step, char* const* at, size_t)
{
    const int64_t* told = step.numbers.data();
    const int64_t m = told[1], n = told[2], k = told[3], a_step = told[6], b_row = told[8];
    const float* bias = told[10] ? step.slot<float>(at, 2) : nullptr;
    float* out = step.result(at);
    for (int64_t line = 0; line < told[0] * m; ++line, out += n) {
        const int64_t batch = line / m;
        const float* a = step.slot<float>(at, 0) + batch * told[4] + line % m * told[5];
        const float* b = step.slot<float>(at, 1) + batch * told[7];
        if (told[9] == 1) {
            std::fill_n(out, n, 0.0f);
            for (int64_t i = 0; i < k; ++i) {
                const float factor = a[i * a_step], *row = b + i * b_row;
#pragma GCC ivdep
                for (int64_t column = 0; column < n; ++column)
                    out[column] += factor * row[column];
            }
        } else {
            int64_t column = 0;
            for (; column + FOUR <= n; column += FOUR)
                four_dots(a, b + column * told[9], told[9], k, out + column);
            for (; column < n; ++column)
                out[column] = dot(a, b + column * told[9], k);
        }
        if (bias)
            for (int64_t column = 0; column < n; ++column)
                out[column] += bias[column];
    }
}

#ifdef HAS_VECTORS
// Rows of a weight of few bits that a piece has. numbers: rows of x, columns, rows of the weight, words
// of a row, has a bias, rows of a piece.
Packed packed_part(const Step& step, char* const* at, size_t piece)
{
    const int64_t* told = step.numbers.data();
    const int64_t start = static_cast<int64_t>(piece) * told[5];
    Packed part{};
    part.words = step.slot<uint32_t>(at, 1) + start * told[3];
    part.rows = std::min(told[5], told[2] - start);
    part.row_words = told[3];
    part.columns = told[1];
    part.bias = told[4] ? step.slot<float>(at, 2) + start : nullptr;
    part.out_row = told[2];
    return part;
}

void linear_packed(const Step& step, char* const* at, size_t piece)
{
    float* out = step.result(at) + static_cast<int64_t>(piece) * step.numbers[5];
    step.packed(packed_part(step, at, piece), step.slot<float>(at, 0), step.numbers[0], out);
}

void linear_rounded(const Step& step, char* const* at, size_t piece)
{
    float* out = step.result(at) + static_cast<int64_t>(piece) * step.numbers[5];
    step.rounded(packed_part(step, at, piece), step.slot<Rounded>(at, 0), step.numbers[0], out);
}

// numbers: rows, columns, rows of a piece, words of a rounded row.
void round_rows(const Step& step, char* const* at, size_t piece)
{
    const int64_t* told = step.numbers.data();
    const int64_t start = static_cast<int64_t>(piece) * told[2];
    step.rounding(step.slot<float>(at, 0) + start * told[1], std::min(told[2], told[0] - start),
                  told[1], reinterpret_cast<Rounded*>(step.result(at) + start * told[3]));
}
#endif

// x (batch, head, row, depth) by cos, sin (row, half) or (batch, row, half). numbers: batches,
// heads, rows, depth, half, interleaved, elements of a batch of cos, and of sin.
INLINED void rotary_body(const Step& step, char* const* at, size_t)
{
    const int64_t* told = step.numbers.data();
    const int64_t rows = told[2], depth = told[3], half = told[4];
    const float* x = step.slot<float>(at, 0);
    float* out = step.result(at);
    for (int64_t line = 0; line < told[0] * told[1] * rows; ++line, x += depth, out += depth) {
        const int64_t batch = line / (told[1] * rows), row = line % rows;
        const float* cos = step.slot<float>(at, 1) + batch * told[6] + row * half;
        const float* sin = step.slot<float>(at, 2) + batch * told[7] + row * half;
        if (told[5]) {
#pragma GCC ivdep
            for (int64_t i = 0; i < half; ++i) {
                const float a = x[2 * i], b = x[2 * i + 1];
                out[2 * i] = a * cos[i] - b * sin[i];
                out[2 * i + 1] = a * sin[i] + b * cos[i];
            }
        } else {
#pragma GCC ivdep
            for (int64_t i = 0; i < half; ++i) {
                const float a = x[i], b = x[half + i];
                out[i] = a * cos[i] - b * sin[i];
                out[half + i] = a * sin[i] + b * cos[i];
            }
        }
        std::copy(x + 2 * half, x + depth, out + 2 * half);
    }
}

int64_t whole_number(const char* from, size_t number, bool is_long)
{
    int32_t made;
    int64_t more;
    if (is_long)
        std::memcpy(&more, from + 8 * number, sizeof more);
    else
        std::memcpy(&made, from + 4 * number, sizeof made), more = made;
    constexpr int64_t far = int64_t{1} << 40; // so that sums of it are numbers
    return std::clamp(more, -far, far);
}

// Rows written into the value of slot 0. numbers: lines (outer indices), lines of a start, rows of
// a line there, rows given, bytes of a row, whether starts are int64.
void write_rows(const Step& step, char* const* at, size_t)
{
    const int64_t* told = step.numbers.data();
    const int64_t size = told[2], many = told[3], bytes = told[4];
    char* data = step.slot<char>(at, 0);
    const char *rows = step.slot<char>(at, 1), *starts = step.slot<char>(at, 2);
    for (int64_t line = 0; line < told[0]; ++line) {
        const int64_t first = whole_number(starts, line / told[1], told[5] != 0);
        const int64_t begin = std::max<int64_t>(0, -first), end = std::min(many, size - first);
        if (begin < end)
            std::memcpy(data + (line * size + first + begin) * bytes,
                        rows + (line * many + begin) * bytes, (end - begin) * bytes);
    }
}

// -- attention to a cache ------------------------------------------------------------------------

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

// Values of a row: where it lies, or in `made`. Of q8_0 as vksched/ops/products/q8_rows.py says.
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
INLINED bool to_weights(const Step& step, const Row& row, bool nan_of_none)
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
        step.value(scores + begin, scores + begin, end - begin);
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
INLINED void attention_body(const Step& step, char* const* at, size_t piece)
{
    const Attention& told = *reinterpret_cast<const Attention*>(step.numbers.data());
    const int64_t groups = told.heads / told.together, depth = told.depth, columns = told.columns;
    const int64_t batch = static_cast<int64_t>(piece) / groups;
    const int64_t first = static_cast<int64_t>(piece) % groups * told.together;
    const int64_t head = first / (told.heads / told.shared);
    const int64_t used = whole_number(step.slot<char>(at, 3), told.per_batch ? batch : 0,
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
        row.query = step.slot<float>(at, 0) + batch * told.q[0] + own * told.q[1]
            + query * told.q[2];
        row.begin = std::clamp<int64_t>(count + query + told.low, 0, total);
        row.end = std::clamp<int64_t>(count + query + told.high + 1, 0, total);
        row.scores = free;
        row.sums = free + total;
        row.out = step.result(at) + batch * told.out[0] + own * told.out[1] + query * told.out[2];
        free += total + columns;
        std::fill_n(row.sums, columns, 0.0f);
    }
    float* const one = free;
    const int64_t begin = rows[0].begin, end = rows[many - 1].end; // all rows together
    const auto line = [&](int64_t key, size_t old, size_t fresh, const int64_t* steps,
                          const int64_t* new_steps, int64_t values) {
        return key < count ? row_values(step.slot<char>(at, old),
                                        batch * steps[0] + head * steps[1] + key * steps[2],
                                        told.kind, values, one)
                           : step.slot<float>(at, fresh) + batch * new_steps[0]
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

// -- the table -----------------------------------------------------------------------------------

void softmax(const Step& step, char* const* at, size_t piece) { softmax_body(step, at, piece); }

void matmul(const Step& step, char* const* at, size_t piece) { matmul_body(step, at, piece); }

void rotary(const Step& step, char* const* at, size_t piece) { rotary_body(step, at, piece); }

void attention(const Step& step, char* const* at, size_t piece)
{
    attention_body(step, at, piece);
}

#ifdef WIDE
WIDE void softmax_wide(const Step& step, char* const* at, size_t piece)
{
    softmax_body(step, at, piece);
}

WIDE void matmul_wide(const Step& step, char* const* at, size_t piece)
{
    matmul_body(step, at, piece);
}

WIDE void rotary_wide(const Step& step, char* const* at, size_t piece)
{
    rotary_body(step, at, piece);
}

WIDE void attention_wide(const Step& step, char* const* at, size_t piece)
{
    attention_body(step, at, piece);
}

const bool has_wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
constexpr Way softmax_wide = softmax, matmul_wide = matmul;
constexpr Way rotary_wide = rotary, attention_wide = attention;
const bool has_wide = false;
#endif

// operands: slots but for the result's, at least. numbers, reals: how many are told.
struct Kind {
    Way plain, wide;
    size_t operands, numbers, reals;
};

constexpr size_t ATTENTION = sizeof(Attention) / sizeof(int64_t);

const std::map<std::string, Kind> kinds{
    {"norm", {norms, norms, 1, 5, 1}},
    {"softmax", {softmax, softmax_wide, 1, 2, 0}},
    {"matmul", {matmul, matmul_wide, 2, 11, 0}},
    {"rotary_embedding", {rotary, rotary_wide, 3, 8, 0}},
    {"write_rows", {write_rows, write_rows, 2, 6, 0}},
    {"cached_attention", {attention, attention_wide, 4, ATTENTION, 2}},
#ifdef HAS_VECTORS
    {"linear_packed", {linear_packed, linear_packed, 2, 6, 0}},
    {"linear_rounded", {linear_rounded, linear_rounded, 2, 6, 0}},
    {"round_rows", {round_rows, round_rows, 1, 4, 0}},
#endif
};

using Maker = std::unique_ptr<Loop> (*)(const Told&);

const std::map<std::string, Maker> makers{
    {"attention", attention_loop},
    {"chain", chain_loop}, {"concat", concat_loop}, {"conv", conv_loop}, {"copy", copy_loop},
    {"conv_transpose", transpose_loop}, {"gather", gather_loop}, {"pool", pool_loop},
    {"recurrent", recurrent_loop}, {"reduce", reduce_loop},
};

// "linear_packed q4_K": the loop, and what it calls.
std::pair<std::string, std::string> parted(const std::string& name)
{
    const size_t at = name.find(' ');
    return {name.substr(0, at), at == std::string::npos ? "" : name.substr(at + 1)};
}

Step step_of(const py::handle& given, size_t slots, bool wide)
{
    const auto told = py::cast<py::tuple>(given);
    const auto [name, calls] = parted(py::cast<std::string>(told[0]));
    Step made;
    made.slots = py::cast<std::vector<uint32_t>>(told[1]);
    made.numbers = py::cast<std::vector<int64_t>>(told[2]);
    made.reals = py::cast<std::vector<float>>(told[3]);
    made.pieces = py::cast<uint32_t>(told[4]);
    require(made.pieces > 0, "expected at least one piece");
    for (const uint32_t slot : made.slots)
        require(slot < slots, "expected slots that there are");
    if (const auto maker = makers.find(name); maker != makers.end()) {
        made.own = maker->second({made.numbers, made.reals, made.slots.size(), made.pieces, wide});
        return made;
    }
    const auto found = kinds.find(name);
    if (found == kinds.end())
        throw py::key_error(name);
    const Kind& kind = found->second;
    made.way = wide && has_wide ? kind.wide : kind.plain;
    require(made.slots.size() > kind.operands && made.numbers.size() == kind.numbers
                && made.reals.size() == kind.reals,
            "expected as many slots, numbers and reals as the loop has");
    if (name == "cached_attention" || name == "softmax")
        made.value = value_loop("exp", wide);
    else if (name == "norm")
        made.norm = norm_loop(wide);
#ifdef HAS_VECTORS
    else if (name == "linear_packed")
        made.packed = packed_loop(calls, wide);
    else if (name == "linear_rounded")
        made.rounded = rounded_loop(calls, wide);
    else if (name == "round_rows")
        made.rounding = rounding_loop(calls, wide);
#endif
    return made;
}

// -- programs ------------------------------------------------------------------------------------

// An array's memory, for as long as this lives.
struct Held {
    explicit Held(PyObject* of, bool writable)
    {
        if (PyObject_GetBuffer(of, &view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0)
            throw py::error_already_set();
    }
    ~Held() { PyBuffer_Release(&view); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    Py_buffer view{};
};

INLINED void rest()
{
#if defined(__x86_64__)
    _mm_pause();
#endif
}

class Program {
public:
    Program(const py::list& steps, std::vector<size_t> bytes, std::vector<uint32_t> open,
            bool wide)
      : bytes_(std::move(bytes)), open_(std::move(open)), at_(bytes_.size())
    {
        for (const auto& each : steps)
            steps_.push_back(step_of(each, bytes_.size(), wide));
        for (const Step& step : steps_)
            written_.push_back(step.slots.back());
        for (const uint32_t slot : open_)
            require(slot < bytes_.size(), "expected slots that there are");
    }

    void bind(uint32_t slot, const py::object& array)
    {
        require(slot < bytes_.size(), "expected a slot that there is");
        const Held held(array.ptr(), is_written(slot));
        at_[slot] = checked(held.view, slot);
    }

    // begin: called once helpers may come; None without.
    void run(const py::list& arrays, const py::object& begin)
    {
        require(arrays.size() == open_.size(), "expected an array for each open slot");
        std::vector<std::unique_ptr<Held>> held(open_.size());
        for (size_t i = 0; i < open_.size(); ++i) {
            held[i] = std::make_unique<Held>(PyList_GET_ITEM(arrays.ptr(), i),
                                             is_written(open_[i]));
            at_[open_[i]] = checked(held[i]->view, open_[i]);
        }
        for (const char* each : at_)
            require(each, "expected an array in each slot");
        const bool alone = begin.is_none();
        const Ended ended{ticket_};
        if (!alone) {
            ticket_.store(WAITING);
            begin();
        }
        size_t number = 0;
        try {
            py::gil_scoped_release unlocked;
            for (; number < steps_.size(); ++number)
                perform(number, alone);
        } catch (const std::out_of_range& error) {
            throw py::index_error(std::to_string(number) + " " + error.what());
        }
    }

    void help()
    {
        py::gil_scoped_release unlocked;
        for (uint32_t turns = 0;;) {
            uint64_t ticket = ticket_.load(std::memory_order_acquire);
            if (ticket == ENDED)
                return;
            if (take(ticket)) {
                turns = 0;
                continue;
            }
            if (++turns % 1024)
                rest();
            else
                std::this_thread::yield();
        }
    }

private:
    // A ticket: the number of a step, and of its piece that is next.
    static constexpr uint64_t ENDED = ~uint64_t{0}, WAITING = ENDED - 1;

    struct Ended {
        std::atomic<uint64_t>& ticket;
        ~Ended() { ticket.store(ENDED); }
    };

    bool is_written(uint32_t slot) const
    {
        return std::find(written_.begin(), written_.end(), slot) != written_.end();
    }

    char* checked(const Py_buffer& view, uint32_t slot) const
    {
        if (static_cast<size_t>(view.len) != bytes_[slot]
            || reinterpret_cast<uintptr_t>(view.buf) % 4 != 0)
            throw py::buffer_error("expected aligned memory of the slot's size");
        return static_cast<char*>(view.buf);
    }

    void perform(size_t number, bool alone)
    {
        const Step& step = steps_[number];
        if (alone || step.pieces == 1) {
            for (size_t piece = 0; piece < step.pieces; ++piece)
                step.run(at_.data(), piece);
            return;
        }
        done_.store(0, std::memory_order_relaxed);
        ticket_.store(static_cast<uint64_t>(number) << 32, std::memory_order_release);
        for (;;) {
            uint64_t ticket = ticket_.load(std::memory_order_acquire);
            if (!take(ticket))
                break;
        }
        for (uint32_t turns = 1; done_.load(std::memory_order_acquire) < step.pieces; ++turns)
            if (turns % 1024)
                rest();
            else
                std::this_thread::yield();
        if (no_memory_.exchange(false))
            throw std::bad_alloc();
    }

    // Takes the next piece, and makes it; returns false where there is none.
    bool take(uint64_t ticket)
    {
        if (ticket >= WAITING)
            return false;
        const Step& step = steps_[ticket >> 32];
        const uint32_t piece = static_cast<uint32_t>(ticket);
        if (piece >= step.pieces)
            return false;
        if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel))
            return true; // another one was first: look again
        try {
            step.run(at_.data(), piece);
        } catch (const std::bad_alloc&) { // others wait for this piece, whatever becomes of it
            no_memory_.store(true, std::memory_order_relaxed);
        }
        done_.fetch_add(1, std::memory_order_release);
        return true;
    }

    std::vector<Step> steps_;
    std::vector<size_t> bytes_;
    std::vector<uint32_t> open_, written_;
    std::vector<char*> at_;
    std::atomic<uint64_t> ticket_{ENDED};
    std::atomic<uint32_t> done_{0};
    std::atomic<bool> no_memory_{false};
};

} // namespace

void add_program(py::module_& m)
{
    py::list steps;
    for (const std::string& name : step_names())
        steps.append(name);
    m.attr("program_steps") = steps; // of chains, by number
    m.attr("program_version") = 2;   // of what loops are told, as vksched/ops/core/recipe.py has it
    py::class_<Program>(m, "Program")
        .def(py::init<const py::list&, std::vector<size_t>, std::vector<uint32_t>, bool>(),
             py::arg("steps"), py::arg("bytes"), py::arg("open"), py::arg("wide") = true)
        .def("bind", &Program::bind, py::arg("slot"), py::arg("array"))
        .def("run", &Program::run, py::arg("arrays"), py::arg("begin") = py::none())
        .def("help", &Program::help);
}
