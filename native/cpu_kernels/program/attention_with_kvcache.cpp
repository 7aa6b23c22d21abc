// Attention to the rows of a KV cache and to new keys: a loop of native programs.
// Pending rows replace rows of the cache: those of a batch follow the keys in use of its slot.
// Examples: tests/ops/native/test_native_programs.py.
#include "cpu_kernels/param_loop.hpp"
#include "cpu_kernels/program/attention_rows.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#ifdef HAS_VECTOR_EXTENSIONS

namespace {

using KvCacheLoop = ParamLoop<UnaryKernel>;

// The integer parameters, in their order. Strides are elements between batches, heads and rows, or
// 32-bit words for q8_0.
struct Attention {
    int64_t batches, heads, kv_heads, queries, qk_dim, v_dim, cache_len, new_len;
    int64_t heads_per_piece, queries_per_piece; // that a piece computes
    int64_t cache_type; // 0 float32, 1 float16, 2 q8_0
    int64_t is_int64; // type of kv_len
    int64_t kv_len_stride; // its elements for each batch; 0: one number for all
    int64_t slots; // batches of the cache
    int64_t chunk; // a query sees cached keys from a multiple of it on; 0: all
    int64_t window_low, window_high, fully_masked_is_nan;
    int64_t pending_len; // pending rows of each batch; 0: none
    int64_t has_positions; // 1: the last element of kv_len is the position of the first query
    int64_t q[3], k[3], v[3], new_k[3], new_v[3], pending_k[3], pending_v[3], out[3];
};

INLINED float fp16_to_float(uint32_t half)
{
    const uint32_t size = half & 0x7fffu;
    const float scaled = bit_cast<float>(size << 13) * 0x1p112f; // also exact for 0 and subnormals
    const uint32_t special = size >= 0x7c00u ? 0x7f800000u : 0u;
    return bit_cast<float>(bit_cast<uint32_t>(scaled) | special | (half & 0x8000u) << 16);
}

// Return the values of a cached row: in place if it is float32, else dequantized into `values`.
// vksched/ops/attention/kv_q8_0.py defines q8_0 rows.
INLINED const float* dequantize_row(const char* base, int64_t offset, int64_t cache_type,
                                    int64_t count, float* values)
{
    if (cache_type == 0)
        return reinterpret_cast<const float*>(base) + offset;
    if (cache_type == 1) {
        const uint16_t* fp16 = reinterpret_cast<const uint16_t*>(base) + offset;
#pragma GCC ivdep
        for (int64_t i = 0; i < count; ++i)
            values[i] = fp16_to_float(fp16[i]);
        return values;
    }
    const uint32_t* tile = reinterpret_cast<const uint32_t*>(base) + offset;
    for (int64_t start = 0; start < count; start += 64, tile += 17) {
        const int64_t tile_values = std::min<int64_t>(64, count - start);
        const int8_t* quants = reinterpret_cast<const int8_t*>(tile + 1);
        const float scales[2] = {fp16_to_float(*tile & 0xffffu), fp16_to_float(*tile >> 16)};
        for (int64_t run = 0; run < 2; ++run) {
            const int64_t end = std::min<int64_t>(32 * (run + 1), tile_values);
#pragma GCC ivdep
            for (int64_t i = 32 * run; i < end; ++i)
                values[start + i] = quants[i] * scales[run];
        }
    }
    return values;
}

// A query of a piece: the range of keys that it attends to, the scores of its keys, its result.
struct Row {
    const float* query;
    int64_t begin, end;
    float *scores, *out;
};

// The slot of a batch, its number of keys in use, the row where its pending rows begin, and the
// position of its first query behind the keys in use.
struct KeysInUse {
    int64_t slot, count, next, past;
};

constexpr int64_t MAX_SCORES = int64_t{1} << 28; // of a piece: they are in memory at once
constexpr int64_t MAX_PAST = int64_t{1} << 29; // as vksched/ops/attention/attention_with_kvcache.py

INLINED KeysInUse keys_in_use(const Attention& params, const char* kv_len, int64_t batch)
{
    const bool is_int64 = params.is_int64 != 0;
    const bool has_slots = params.kv_len_stride - params.has_positions == 2;
    const int64_t at = batch * params.kv_len_stride;
    const int64_t count = read_index(kv_len, at, is_int64);
    const int64_t slot = has_slots ? read_index(kv_len, at + 1, is_int64) : batch;
    const int64_t past
        = params.has_positions ? read_index(kv_len, at + params.kv_len_stride - 1, is_int64) : 0;
    const int64_t distance = std::clamp<int64_t>(past, -MAX_PAST, MAX_PAST);
    if (has_slots && (slot < 0 || slot >= params.slots))
        return {-1, 0, 0, distance};
    return {slot, std::clamp<int64_t>(count, 0, params.cache_len), count, distance};
}

// The pending row that replaces a row of the cache.
struct PendingRow {
    int64_t batch, row; // batch -1: none
};

INLINED PendingRow pending_row(const Attention& params, const char* kv_len, int64_t slot, int64_t key)
{
    for (int64_t batch = params.batches - 1; batch >= 0; --batch) {
        const KeysInUse other = keys_in_use(params, kv_len, batch);
        if (other.slot == slot && other.next <= key && key < other.next + params.pending_len)
            return {batch, key - other.next};
    }
    return {-1, 0};
}

// The first key of a slot that may be a pending row; `none` if there is none.
INLINED int64_t first_pending(const Attention& params, const char* kv_len, int64_t slot, int64_t none)
{
    if (params.pending_len > 0)
        for (int64_t batch = 0; batch < params.batches; ++batch) {
            const KeysInUse other = keys_in_use(params, kv_len, batch);
            if (other.slot == slot)
                none = std::min(none, other.next);
        }
    return none;
}

thread_local std::vector<float> scratch;
thread_local std::vector<Row> scratch_rows;

// The part of a result that a piece computes: a batch, heads with a common kv head, and queries.
struct Part {
    int64_t batch, head, query, queries;
};

INLINED int64_t query_blocks(const Attention& params)
{
    return (params.queries - 1) / params.queries_per_piece + 1;
}

INLINED Part part_of(const Attention& params, size_t piece)
{
    const int64_t blocks = query_blocks(params);
    const int64_t groups = params.heads / params.heads_per_piece, at = static_cast<int64_t>(piece);
    const int64_t query = at % blocks * params.queries_per_piece;
    return {at / (groups * blocks), at / blocks % groups * params.heads_per_piece, query,
            std::min(params.queries_per_piece, params.queries - query)};
}

// The keys and values that a piece reads. pending_from: the first key that may be a pending row.
struct KeyRows {
    const Attention& params;
    const Operands& operands;
    KeysInUse in_use;
    int64_t batch, head, pending_from;
};

// Return a row of k (operands 1, 4 and 6) or of v (2, 5 and 7), which may be dequantized into `to`.
INLINED const float* row_of_key(const KeyRows& keys, int64_t key, size_t operand,
                                const int64_t* strides, const int64_t* new_strides,
                                const int64_t* pending_strides, int64_t values, float* to)
{
    const Operands& operands = keys.operands;
    const int64_t cache_type = keys.params.cache_type, head = keys.head;
    if (key >= keys.in_use.count)
        return operands.get<float>(operand + 3) + keys.batch * new_strides[0]
               + head * new_strides[1] + (key - keys.in_use.count) * new_strides[2];
    if (key >= keys.pending_from) {
        const PendingRow found
            = pending_row(keys.params, operands.get<char>(3), keys.in_use.slot, key);
        if (found.batch >= 0)
            return dequantize_row(operands.get<char>(operand + 5),
                                  found.batch * pending_strides[0] + head * pending_strides[1]
                                      + found.row * pending_strides[2],
                                  cache_type, values, to);
    }
    return dequantize_row(operands.get<char>(operand),
                          keys.in_use.slot * strides[0] + head * strides[1] + key * strides[2],
                          cache_type, values, to);
}

INLINED const float* k_row(const KeyRows& keys, int64_t key, float* to)
{
    const Attention& params = keys.params;
    return row_of_key(keys, key, 1, params.k, params.new_k, params.pending_k, params.qk_dim, to);
}

INLINED const float* v_row(const KeyRows& keys, int64_t key, float* to)
{
    const Attention& params = keys.params;
    return row_of_key(keys, key, 2, params.v, params.new_v, params.pending_v, params.v_dim, to);
}

INLINED void attention_body(const KvCacheLoop& loop, const Operands& operands, size_t piece)
{
    using namespace attention_rows;
    const Attention& params = *reinterpret_cast<const Attention*>(loop.int_params.data());
    const int64_t qk_dim = params.qk_dim, v_dim = params.v_dim;
    const Part part = part_of(params, piece);
    const char* const kv_len = operands.get<char>(3);
    const KeysInUse in_use = keys_in_use(params, kv_len, part.batch);
    const KeyRows keys{params, operands, in_use, part.batch,
                       part.head / (params.heads / params.kv_heads),
                       first_pending(params, kv_len, in_use.slot, in_use.count)};
    const int64_t count = in_use.count, total = count + params.new_len;
    const int64_t first_key = params.chunk ? count / params.chunk * params.chunk : 0;
    const auto range_of = [&](int64_t query) {
        const int64_t position = count + in_use.past + query;
        return std::pair(std::clamp<int64_t>(position + params.window_low, first_key, total),
                         std::clamp<int64_t>(position + params.window_high + 1, 0, total));
    };
    // the keys that any row attends to
    const int64_t begin = range_of(part.query).first,
                  end = range_of(part.query + part.queries - 1).second;
    const int64_t row_scores = std::max<int64_t>(0, end - begin) + KEYS;
    const int64_t rows_count = params.heads_per_piece * part.queries;
    const size_t needed
        = rows_count * row_scores + std::max(KEYS * qk_dim, VALUE_KEYS * v_dim);
    if (scratch.size() < needed)
        scratch.resize(needed);
    scratch_rows.resize(rows_count);
    Row* const rows = scratch_rows.data();
    float* const dequantized = scratch.data() + rows_count * row_scores;
    for (int64_t number = 0; number < rows_count; ++number) {
        const int64_t head = part.head + number / part.queries,
                      query = part.query + number % part.queries;
        Row& row = rows[number];
        row.query = operands.get<float>(0) + part.batch * params.q[0] + head * params.q[1]
                    + query * params.q[2];
        std::tie(row.begin, row.end) = range_of(query);
        if (row.begin >= row.end)
            row.begin = row.end = begin;
        row.scores = scratch.data() + number * row_scores;
        row.out = loop.result(operands) + part.batch * params.out[0] + head * params.out[1]
                  + query * params.out[2];
        std::fill_n(row.out, v_dim, 0.0f);
    }
    for (int64_t start = begin; start < end; start += KEYS) {
        const float* block[KEYS];
        for (int64_t key = 0; key < KEYS; ++key)
            block[key] = start + key < end ? k_row(keys, start + key, dequantized + key * qk_dim)
                                           : block[key - 1]; // its score is not used
        for (int64_t number = 0; number < rows_count; ++number) {
            const Row& row = rows[number];
            if (row.begin < start + KEYS && start < row.end)
                store(row.scores + (start - begin),
                      dot_keys(row.query, block, qk_dim) * loop.float_params[0]);
        }
    }
    for (int64_t number = 0; number < rows_count; ++number) {
        Row& row = rows[number];
        if (!softmax(row.scores + (row.begin - begin), row.end - row.begin, loop.float_params[1],
                     loop.callee, params.fully_masked_is_nan != 0)) {
            std::fill_n(row.out, v_dim, std::numeric_limits<float>::quiet_NaN());
            row.end = row.begin; // without values
        }
    }
    for (int64_t start = begin; start < end; start += VALUE_KEYS) {
        const int64_t stop = std::min(start + VALUE_KEYS, end);
        const float* values[VALUE_KEYS];
        for (int64_t key = start; key < stop; ++key)
            values[key - start] = v_row(keys, key, dequantized + (key - start) * v_dim);
        for (int64_t number = 0; number < rows_count; ++number) {
            const Row& row = rows[number];
            const int64_t from = std::max(start, row.begin), to = std::min(stop, row.end);
            if (from < to)
                add_values(values + (from - start), row.scores + (from - begin), to - from,
                           v_dim, row.out);
        }
    }
    for (int64_t number = 0; number < rows_count; ++number) {
        const Row& row = rows[number];
        if (row.begin == row.end || is_finite(row.out, v_dim))
            continue;
        std::fill_n(row.out, v_dim, 0.0f); // skip values of weight 0, even NaN and infinity
        for (int64_t key = row.begin; key < row.end; ++key)
            if (row.scores[key - begin] != 0) {
                const float* values = v_row(keys, key, dequantized);
                add_values(&values, row.scores + (key - begin), 1, v_dim, row.out);
            }
    }
}

void attention_extents(const KvCacheLoop& loop, Extents& extents)
{
    const Attention& params = *reinterpret_cast<const Attention*>(loop.int_params.data());
    constexpr int64_t limit = int64_t{1} << 40; // sums of indices do not overflow
    require(params.queries > 0 && params.kv_heads > 0 && params.heads % params.kv_heads == 0
                && params.heads_per_piece > 0 && params.queries_per_piece > 0
                && params.queries_per_piece <= params.queries
                && params.heads / params.kv_heads % params.heads_per_piece == 0
                && params.cache_type >= 0 && params.cache_type <= 2
                && std::max(params.window_low, params.window_high) <= limit
                && std::min(params.window_low, params.window_high) >= -limit,
            "expected queries, and a number of heads divisible by kv_heads");
    const int64_t groups = params.heads / params.heads_per_piece, blocks = query_blocks(params);
    require(params.batches >= 0
                && std::max({params.batches, groups, blocks}) <= loop.pieces
                && params.batches * groups <= loop.pieces
                && params.batches * groups * blocks == loop.pieces && loop.last == 8,
            "expected one piece for each batch, group of heads and block of queries");
    require(params.cache_len >= 0 && params.new_len >= 0
                && double(params.heads_per_piece) * double(params.queries_per_piece)
                           * (double(params.cache_len) + double(params.new_len)
                              + double(attention_rows::KEYS))
                       < double(MAX_SCORES),
            "expected fewer scores in a piece");
    const int64_t elements = params.kv_len_stride - params.has_positions; // 2: with a slot
    require(params.slots >= (elements == 2 ? 1 : params.batches) && params.chunk >= 0
                && (params.has_positions == 0 || params.has_positions == 1)
                && params.kv_len_stride >= 2 * params.has_positions && elements <= 2,
            "expected a slot for each batch, or slots");
    require(params.pending_len == 0 || (params.pending_len > 0 && elements == 2),
            "expected slots for pending rows");
    const auto rows = [&](size_t operand, double bytes, int64_t heads, int64_t rows_count,
                          int64_t values, const int64_t* strides, int64_t batches) {
        extents.add(
            operand, bytes,
            {{batches, strides[0]}, {heads, strides[1]}, {rows_count, strides[2]}, {values, 1}});
    };
    const int64_t batches = params.batches, slots = params.slots;
    const auto words = [](int64_t values) { return (values + 63) / 64 + (values + 3) / 4; };
    const bool is_q8_0 = params.cache_type == 2;
    const double bytes = params.cache_type == 1 ? 2 : 4;
    rows(0, 4, params.heads, params.queries, params.qk_dim, params.q, batches);
    const int64_t k_values = is_q8_0 ? words(params.qk_dim) : params.qk_dim;
    const int64_t v_values = is_q8_0 ? words(params.v_dim) : params.v_dim;
    rows(1, bytes, params.kv_heads, params.cache_len, k_values, params.k, slots);
    rows(2, bytes, params.kv_heads, params.cache_len, v_values, params.v, slots);
    extents.add_dense(3, params.is_int64 ? 8 : 4,
                      {params.kv_len_stride ? batches * params.kv_len_stride : 1});
    rows(4, 4, params.kv_heads, params.new_len, params.qk_dim, params.new_k, batches);
    rows(5, 4, params.kv_heads, params.new_len, params.v_dim, params.new_v, batches);
    rows(6, bytes, params.kv_heads, params.pending_len, k_values, params.pending_k, batches);
    rows(7, bytes, params.kv_heads, params.pending_len, v_values, params.pending_v, batches);
    rows(8, 4, params.heads, params.queries, params.v_dim, params.out, batches);
}

void attention(const KvCacheLoop& loop, const Operands& operands, size_t piece)
{
    attention_body(loop, operands, piece);
}

#ifdef TARGET_AVX2
TARGET_AVX2 void attention_avx2(const KvCacheLoop& loop, const Operands& operands, size_t piece)
{
    attention_body(loop, operands, piece);
}
#else
constexpr KvCacheLoop::Kernel attention_avx2 = attention;
#endif

} // namespace

// int_params: the fields of Attention, in their order. float_params: scale, softcap.
std::unique_ptr<Loop> attention_with_kvcache_loop(const LoopParams& params)
{
    return param_loop(params, {4, sizeof(Attention) / sizeof(int64_t), 2},
                     params.wide && has_avx2() ? attention_avx2 : attention,
                     attention_extents, unary_kernel("exp", params.wide));
}
#else
std::unique_ptr<Loop> attention_with_kvcache_loop(const LoopParams&)
{
    throw KeyError("attention_with_kvcache");
}
#endif
