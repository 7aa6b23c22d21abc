// Unpacking of quants into vectors of bytes, and their dot products with int8 activations, for GEMV
// and GEMM. Included once for each instruction set, in the namespace of q8_matmul_simd.hpp.

#include "cpu_kernels/quantized/scales.hpp"

#if defined(SIMD_AVX512_VNNI)
constexpr uint32_t WIDTH = 16, MAX_ROWS = 8;
constexpr bool UNSIGNED_QUANTS = true; // dpbusd multiplies unsigned by signed bytes
#else
constexpr uint32_t WIDTH = 8, MAX_ROWS = 2;
constexpr bool UNSIGNED_QUANTS = false;
#endif
constexpr uint32_t GROUP = WIDTH / 4; // runs that are unpacked together: two vectors

typedef uint8_t U8xN __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t U32xN __attribute__((vector_size(4 * WIDTH)));
typedef int32_t I32xN __attribute__((vector_size(4 * WIDTH)));
typedef float F32xN __attribute__((vector_size(4 * WIDTH)));
typedef uint64_t U64xN __attribute__((vector_size(4 * WIDTH)));

template <class Format>
constexpr bool has_signed_quants = Format::low_bits == 8 || Format::table != LINEAR;

// Return the zero point to subtract from quants. INT8_SCALE formats have it in their offsets.
template <class Format>
constexpr int32_t zero_point_of = has_signed_quants<Format> ? (UNSIGNED_QUANTS ? 128 : 0)
    : Format::has_min                             ? 0
                                                 : Format::zero_point;

template <class Format>
constexpr bool has_offsets = Format::has_min || zero_point_of<Format> != 0;

// -- dot products of four bytes ------------------------------------------------------------------

template <bool SIGNED>
INLINED I32xN dot(const I32xN& sums, const U8xN& quants, const U8xN& x)
{
#if defined(SIMD_AVX512_VNNI)
    return (I32xN)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)quants, (__m512i)x);
#elif defined(SIMD_AVX2)
    const __m256i size = SIGNED ? _mm256_abs_epi8((__m256i)quants) : (__m256i)quants;
    const __m256i low_words = SIGNED ? _mm256_sign_epi8((__m256i)x, (__m256i)quants) : (__m256i)x;
    const __m256i pairs = _mm256_maddubs_epi16(size, low_words); // at most 2 * 128 * 127
    return sums + (I32xN)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(__ARM_FEATURE_DOTPROD)
    typedef int32_t Half __attribute__((vector_size(16)));
    Half parts[2];
    int8_t a[4 * WIDTH], b[4 * WIDTH];
    std::memcpy(parts, &sums, sizeof parts);
    std::memcpy(a, &quants, sizeof a); // unsigned quants are below 64
    std::memcpy(b, &x, sizeof b);
    for (int half = 0; half < 2; ++half)
        parts[half] = (Half)vdotq_s32((int32x4_t)parts[half], vld1q_s8(a + 16 * half),
                                      vld1q_s8(b + 16 * half));
    return load<I32xN>(parts);
#else
    int8_t a[4 * WIDTH], b[4 * WIDTH];
    int32_t result[WIDTH];
    std::memcpy(a, &quants, sizeof a); // unsigned quants are below 64
    std::memcpy(b, &x, sizeof b);
    std::memcpy(result, &sums, sizeof result);
    for (uint32_t lane = 0; lane < WIDTH; ++lane)
        for (uint32_t byte = 4 * lane; byte < 4 * lane + 4; ++byte)
            result[lane] += static_cast<int16_t>(a[byte] * b[byte]);
    return load<I32xN>(result);
#endif
}

// -- quants --------------------------------------------------------------------------------------

// The quants of a group. 8-bit quants are in the order of runs; others have the first halves of all
// runs, then the second halves, in the order of `value_index`.
struct Quants {
    U8xN half[2];
};

// Broadcast word `first` of each run, of EACH words, to the four lanes of its columns.
template <uint32_t EACH>
INLINED U32xN broadcast_words(const uint32_t* words, uint32_t first)
{
    U32xN from;
    for (uint32_t lane = 0; lane < WIDTH; ++lane)
        from[lane] = EACH * (lane / 4) + first;
#if defined(SIMD_AVX512_VNNI)
    const __m512i all = EACH == 1 ? _mm512_castsi128_si512(load<__m128i>(words))
                                  : _mm512_castsi256_si512(load<__m256i>(words));
    return (U32xN)_mm512_maskz_permutexvar_epi32(0xffff, (__m512i)from, all);
#elif defined(SIMD_AVX2)
    const __m128i all = EACH == 1 ? _mm_loadl_epi64(reinterpret_cast<const __m128i*>(words))
                                  : load<__m128i>(words);
    return (U32xN)_mm256_permutevar8x32_epi32(_mm256_castsi128_si256(all), (__m256i)from);
#else
    U32xN result;
    for (uint32_t lane = 0; lane < WIDTH; ++lane)
        result[lane] = words[from[lane]];
    return result;
#endif
}

// Return the bit offset of each of the four columns within a byte.
template <uint32_t BITS>
INLINED U32xN lane_bit_offsets()
{
    U32xN result;
    for (uint32_t lane = 0; lane < WIDTH; ++lane)
        result[lane] = lane % 4 * BITS;
    return result;
}

// Unpack 2-bit quants: byte 4 c + j of the halves of a run is column c of byte j of two words,
// times 1 << UP.
template <uint32_t UP>
INLINED Quants unpack_2bit(const uint32_t* words)
{
    const U32xN first = broadcast_words<2>(words, 0) >> lane_bit_offsets<2>();
    const U32xN second = broadcast_words<2>(words, 1) >> lane_bit_offsets<2>();
    return {{(U8xN)((first & 0x03030303u) << UP), (U8xN)((second & 0x03030303u) << UP)}};
}

#if defined(SIMD_AVX512_VNNI)
// masked: GCC 12 warns of undefined operands of the other intrinsic
INLINED __m512i broadcast_128(const __m128i& lane)
{
    return _mm512_maskz_broadcast_i32x4(0xffff, lane);
}
#endif

// Unpack 1-bit quants: byte 4 c + j of the halves of a run is bit c, or 4 + c, of byte j of a word,
// times 1 << UP.
template <uint32_t UP>
INLINED Quants unpack_1bit(const uint32_t* words)
{
    const U32xN low_words = broadcast_words<1>(words, 0) >> lane_bit_offsets<1>();
    return {
        {(U8xN)((low_words & 0x01010101u) << UP), (U8xN)((low_words >> 4 & 0x01010101u) << UP)}};
}

INLINED U8xN table_lookup(const U8xN& quants, const float (&table)[16])
{
    int8_t values[16];
    for (uint32_t at = 0; at < 16; ++at)
        values[at] = static_cast<int8_t>(table[at]);
#if defined(SIMD_AVX512_VNNI)
    return (U8xN)_mm512_shuffle_epi8(broadcast_128(load<__m128i>(values)), (__m512i)quants);
#elif defined(SIMD_AVX2)
    const __m256i low_words = _mm256_broadcastsi128_si256(load<__m128i>(values));
    return (U8xN)_mm256_shuffle_epi8(low_words, (__m256i)quants);
#else
    U8xN result;
    for (uint32_t at = 0; at < 4 * WIDTH; ++at)
        result[at] = static_cast<uint8_t>(values[quants[at]]);
    return result;
#endif
}

// Reorder each half of a run, so that the quants of an entry are adjacent.
INLINED U8xN group_by_entry(const U8xN& quants)
{
#if defined(SIMD_AVX512_VNNI)
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return (U8xN)_mm512_shuffle_epi8((__m512i)quants, broadcast_128(order));
#else
    return __builtin_shufflevector(quants, quants, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11,
                                   15, 16, 20, 24, 28, 17, 21, 25, 29, 18, 22, 26, 30, 19, 23, 27,
                                   31);
#endif
}

// Return the quants of a group. It reads whole groups, even if a row ends within one.
template <class Format>
INLINED Quants unpack_quants(const Tile& tile, uint32_t group)
{
    constexpr uint32_t low = Format::low_bits, high = Format::high_bits;
    const uint32_t first = group * GROUP;
    const uint32_t* high_words = tile.front + Format::front + first * high;
    const uint32_t* low_words = tile.front + Format::front + RUNS * high + first * low;
    Quants result;
    if constexpr (low == 8) {
        result = {{load<U8xN>(low_words), load<U8xN>(low_words + WIDTH)}};
    } else if constexpr (low == 4) {
        U32xN both = load<U32xN>(low_words);
        if constexpr (Format::is_signed)
            both ^= 0x88888888u;
        result = {{(U8xN)(both & 0x0f0f0f0fu), (U8xN)(both >> 4 & 0x0f0f0f0fu)}};
    } else {
        result = unpack_2bit<0>(low_words);
    }
    Quants high_quants{};
    if constexpr (high == 1)
        high_quants = unpack_1bit<low>(high_words);
    if constexpr (high == 2)
        high_quants = unpack_2bit<low>(high_words);
    for (uint32_t half = 0; half < 2; ++half) {
        U8xN& quants = result.half[half];
        if constexpr (high != 0)
            quants |= high_quants.half[half];
        if constexpr (Format::table != LINEAR)
            quants = table_lookup(quants, Format::table == IQ4_NL ? iq4_nl_table : mxfp4_table);
        if constexpr (has_signed_quants<Format> && UNSIGNED_QUANTS)
            quants ^= 0x80;
        if constexpr (Format::parts == 2 * RUNS)
            quants = group_by_entry(quants);
    }
    return result;
}

// The rows of a weight with padding: the last ones, whose last group ends beyond the array, are
// padded copies.
template <class Format>
class PaddedRows {
public:
    explicit PaddedRows(const QuantMatmul& params) : told_(params)
    {
        const size_t runs = params.columns / RUN,
                     high_quants = (GROUP - runs % GROUP) % GROUP * Format::low_bits;
        in_place_ = params.rows;
        while (in_place_ && (params.rows - in_place_) * params.row_words < high_quants)
            --in_place_;
        copies_.resize((params.rows - in_place_) * (params.row_words + high_quants));
        for (size_t row = in_place_; row < params.rows; ++row)
            std::copy_n(params.words + row * params.row_words, params.row_words,
                        copies_.data() + (row - in_place_) * (params.row_words + high_quants));
        row_words_ = params.row_words + high_quants;
    }
    const uint32_t* operator[](size_t row) const
    {
        return row < in_place_ ? told_.words + row * told_.row_words
                               : copies_.data() + (row - in_place_) * row_words_;
    }

private:
    const QuantMatmul& told_;
    size_t in_place_, row_words_;
    std::vector<uint32_t> copies_;
};
