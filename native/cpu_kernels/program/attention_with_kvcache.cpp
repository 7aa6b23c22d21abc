// Attention of few queries to the rows of a KV cache and to new keys: a loop of native programs.
// Pending rows replace rows of the cache: those of a batch follow the keys in use of its slot.
// Examples: tests/ops/native/test_native_programs.py.
#include "cpu_kernels/param_loop.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace {

using KvCacheLoop = ParamLoop<UnaryKernel>;

// The integer parameters, in their order. Strides are elements between batches, heads and rows, or
// 32-bit words for q8_0.
struct Attention {
    int64_t batches, heads, kv_heads, queries, qk_dim, v_dim, cache_len, new_len;
    int64_t heads_per_piece; // heads that a piece computes
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

// A query of a piece: the range of keys that it attends to, their scores and its result.
struct Row {
    const float* query;
    int64_t begin, end;
    float *scores, *sums, *out;
};

// The slot of a batch, its number of keys in use, the row where its pending rows begin, and the
// position of its first query behind the keys in use.
struct KeysInUse {
    int64_t slot, count, next, past;
};

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

constexpr int64_t KEYS = 8; // keys whose values are added in one pass

#ifdef HAS_VECTOR_EXTENSIONS
typedef float F32x8 __attribute__((vector_size(32)));

// Add the weighted values of up to KEYS keys to sums, one key after the other, in registers.
INLINED void add_values(const float* const* values, const float* weights, int64_t keys,
                        int64_t count, float* sums)
{
    int64_t start = 0;
    for (; start + 8 <= count; start += 8) {
        F32x8 total, of_key;
        std::memcpy(&total, sums + start, sizeof total);
        for (int64_t key = 0; key < keys; ++key) {
            std::memcpy(&of_key, values[key] + start, sizeof of_key);
            total += weights[key] * of_key;
        }
        std::memcpy(sums + start, &total, sizeof total);
    }
    for (; start < count; ++start)
        for (int64_t key = 0; key < keys; ++key)
            sums[start] += weights[key] * values[key][start];
}
#else
INLINED void add_values(const float* const* values, const float* weights, int64_t keys,
                        int64_t count, float* sums)
{
    for (int64_t key = 0; key < keys; ++key)
        for (int64_t i = 0; i < count; ++i)
            sums[i] += weights[key] * values[key][i];
}
#endif

thread_local std::vector<float> scratch;
thread_local std::vector<Row> scratch_queries;

// Turn the scores of a query into attention weights, in place. Return false if all keys are masked
// and the result is NaN.
INLINED bool softmax_row(const KvCacheLoop& loop, const Row& row, bool fully_masked_is_nan)
{
    float* scores = row.scores;
    const int64_t begin = row.begin, end = row.end;
    float largest = -std::numeric_limits<float>::infinity(), sum = 0;
    if (loop.float_params[1] != 0)
        for (int64_t key = begin; key < end; ++key)
            scores[key] = std::tanh(scores[key] / loop.float_params[1]) * loop.float_params[1];
    for (int64_t key = begin; key < end; ++key)
        largest = scores[key] > largest ? scores[key] : largest;
    if (!(largest > -std::numeric_limits<float>::infinity()))
        largest = 0;
#pragma GCC ivdep
    for (int64_t key = begin; key < end; ++key)
        scores[key] -= largest;
    if (begin < end)
        loop.callee(scores + begin, scores + begin, end - begin);
    for (int64_t key = begin; key < end; ++key)
        sum += scores[key];
    if (sum == 0 && !fully_masked_is_nan)
        sum = 1;
#pragma GCC ivdep
    for (int64_t key = begin; key < end; ++key)
        scores[key] /= sum; // before the product: values may be close to the maximum of float32
    return sum != 0;
}

// A piece is a group of heads with a common kv head. Its rows are all queries of these heads.
INLINED void attention_body(const KvCacheLoop& loop, const Operands& operands, size_t piece)
{
    const Attention& params = *reinterpret_cast<const Attention*>(loop.int_params.data());
    const int64_t groups = params.heads / params.heads_per_piece, qk_dim = params.qk_dim,
                  v_dim = params.v_dim;
    const int64_t batch = static_cast<int64_t>(piece) / groups;
    const int64_t first = static_cast<int64_t>(piece) % groups * params.heads_per_piece;
    const int64_t head = first / (params.heads / params.kv_heads);
    const char* const kv_len = operands.get<char>(3);
    const KeysInUse in_use = keys_in_use(params, kv_len, batch);
    const int64_t slot = in_use.slot, count = in_use.count;
    const int64_t total = count + params.new_len;
    const int64_t first_key = params.chunk ? count / params.chunk * params.chunk : 0;
    const int64_t rows_count = params.heads_per_piece * params.queries;
    const size_t needed = rows_count * (total + v_dim) + std::max(qk_dim, KEYS * v_dim);
    if (scratch.size() < needed)
        scratch.resize(needed);
    scratch_queries.resize(rows_count);
    Row* const rows = scratch_queries.data();
    float* free = scratch.data();
    for (int64_t number = 0; number < rows_count; ++number) {
        const int64_t head_index = first + number / params.queries, query = number % params.queries;
        Row& row = rows[number];
        row.query = operands.get<float>(0) + batch * params.q[0] + head_index * params.q[1]
            + query * params.q[2];
        const int64_t position = count + in_use.past + query;
        row.begin = std::clamp<int64_t>(position + params.window_low, first_key, total);
        row.end = std::clamp<int64_t>(position + params.window_high + 1, 0, total);
        row.scores = free;
        row.sums = free + total;
        row.out = loop.result(operands) + batch * params.out[0] + head_index * params.out[1]
                  + query * params.out[2];
        free += total + v_dim;
        std::fill_n(row.sums, v_dim, 0.0f);
    }
    float* const dequantized = free;
    const int64_t begin = rows[0].begin,
                  end = rows[rows_count - 1].end; // the keys that any row attends to
    const int64_t pending_from = first_pending(params, kv_len, slot, count);
    // The rows of k are operands 1, 4 and 6, those of v are operands 2, 5 and 7.
    const auto row_of_key = [&](int64_t key, size_t operand, const int64_t* strides,
                          const int64_t* new_strides, const int64_t* pending_strides,
                          int64_t values, float* to) -> const float* {
        if (key >= count)
            return operands.get<float>(operand + 3) + batch * new_strides[0]
                + head * new_strides[1] + (key - count) * new_strides[2];
        if (key >= pending_from) {
            const PendingRow found = pending_row(params, kv_len, slot, key);
            if (found.batch >= 0)
                return dequantize_row(operands.get<char>(operand + 5),
                                      found.batch * pending_strides[0] + head * pending_strides[1]
                                          + found.row * pending_strides[2],
                                      params.cache_type, values, to);
        }
        return dequantize_row(operands.get<char>(operand),
                              slot * strides[0] + head * strides[1] + key * strides[2],
                              params.cache_type, values, to);
    };
    for (int64_t key = begin; key < end; ++key) {
        const float* values
            = row_of_key(key, 1, params.k, params.new_k, params.pending_k, qk_dim, dequantized);
        for (int64_t number = 0; number < rows_count; ++number) {
            const Row& row = rows[number];
            if (row.begin <= key && key < row.end)
                row.scores[key] = dot(row.query, values, qk_dim) * loop.float_params[0];
        }
    }
    for (int64_t number = 0; number < rows_count; ++number)
        if (!softmax_row(loop, rows[number], params.fully_masked_is_nan != 0))
            std::fill_n(rows[number].sums, v_dim, std::numeric_limits<float>::quiet_NaN());
    for (int64_t start = begin; start < end; start += KEYS) {
        const int64_t stop = std::min(start + KEYS, end);
        const float* values[KEYS];
        for (int64_t key = start; key < stop; ++key)
            values[key - start] = row_of_key(key, 2, params.v, params.new_v, params.pending_v,
                                             v_dim, dequantized + (key - start) * v_dim);
        for (int64_t number = 0; number < rows_count; ++number) {
            const Row& row = rows[number];
            const float* seen[KEYS];
            float weights[KEYS];
            int64_t keys = 0;
            for (int64_t key = std::max(start, row.begin); key < std::min(stop, row.end); ++key)
                if (row.scores[key] != 0) { // skip values of weight 0, even NaN and infinity
                    seen[keys] = values[key - start];
                    weights[keys++] = row.scores[key];
                }
            add_values(seen, weights, keys, v_dim, row.sums);
        }
    }
    for (int64_t number = 0; number < rows_count; ++number)
        std::copy_n(rows[number].sums, v_dim, rows[number].out);
}

void attention_extents(const KvCacheLoop& loop, Extents& extents)
{
    const Attention& params = *reinterpret_cast<const Attention*>(loop.int_params.data());
    constexpr int64_t limit = int64_t{1} << 40; // sums of indices do not overflow
    require(params.queries > 0 && params.kv_heads > 0 && params.heads % params.kv_heads == 0
                && params.heads_per_piece > 0
                && params.heads / params.kv_heads % params.heads_per_piece == 0
                && params.cache_type >= 0 && params.cache_type <= 2
                && std::max(params.window_low, params.window_high) <= limit
                && std::min(params.window_low, params.window_high) >= -limit,
            "expected queries, and a number of heads divisible by kv_heads");
    require(params.batches >= 0 && params.batches <= loop.pieces
                && params.batches * (params.heads / params.heads_per_piece) == loop.pieces
                && loop.last == 8,
            "expected one piece for each batch and group of heads");
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
