// Codes of weights of few bits as vectors of bytes, and sums of their products with codes of x: what
// few rows and many need alike. Included once for each way to compile them, in the namespace of
// q8_matmul_simd.hpp.

#include "cpu_kernels/quantized/scales.hpp"

#if defined(WAY_DOT)
constexpr uint32_t WIDTH = 16, MOST_ROWS = 8;
constexpr bool FLIPS = true; // dpbusd takes codes without a sign
#else
constexpr uint32_t WIDTH = 8, MOST_ROWS = 2;
constexpr bool FLIPS = false;
#endif
constexpr uint32_t GROUP = WIDTH / 4; // runs, of which codes are made together: two vectors

typedef uint8_t Bytes __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t Entries __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Sums __attribute__((vector_size(4 * WIDTH)));
typedef float Wide __attribute__((vector_size(4 * WIDTH)));
typedef uint64_t Longs __attribute__((vector_size(4 * WIDTH)));

template <class Format>
constexpr bool signed_codes = Format::low == 8 || Format::table != NUMBERS;

// What is to be subtracted from codes; EIGHT_BITS have it in their shifts.
template <class Format>
constexpr int32_t zero_of = signed_codes<Format> ? (FLIPS ? 128 : 0)
    : Format::shifts                             ? 0
                                                 : Format::zero;

template <class Format>
constexpr bool has_shifts = Format::shifts || zero_of<Format> != 0;

// -- sums of products of four bytes ---------------------------------------------------------------

template <bool SIGNED>
INLINED Sums dot(const Sums& sums, const Bytes& codes, const Bytes& x)
{
#if defined(WAY_DOT)
    return (Sums)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, (__m512i)x);
#elif defined(WAY_MADD)
    const __m256i size = SIGNED ? _mm256_abs_epi8((__m256i)codes) : (__m256i)codes;
    const __m256i own = SIGNED ? _mm256_sign_epi8((__m256i)x, (__m256i)codes) : (__m256i)x;
    const __m256i pairs = _mm256_maddubs_epi16(size, own); // at most 2 * 128 * 127
    return sums + (Sums)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(__ARM_FEATURE_DOTPROD)
    typedef int32_t Half __attribute__((vector_size(16)));
    Half parts[2];
    int8_t a[4 * WIDTH], b[4 * WIDTH];
    std::memcpy(parts, &sums, sizeof parts);
    std::memcpy(a, &codes, sizeof a); // those without a sign are below 64
    std::memcpy(b, &x, sizeof b);
    for (int half = 0; half < 2; ++half)
        parts[half] = (Half)vdotq_s32((int32x4_t)parts[half], vld1q_s8(a + 16 * half),
                                      vld1q_s8(b + 16 * half));
    return loaded<Sums>(parts);
#else
    int8_t a[4 * WIDTH], b[4 * WIDTH];
    int32_t made[WIDTH];
    std::memcpy(a, &codes, sizeof a); // those without a sign are below 64
    std::memcpy(b, &x, sizeof b);
    std::memcpy(made, &sums, sizeof made);
    for (uint32_t lane = 0; lane < WIDTH; ++lane)
        for (uint32_t byte = 4 * lane; byte < 4 * lane + 4; ++byte)
            made[lane] += static_cast<int16_t>(a[byte] * b[byte]);
    return loaded<Sums>(made);
#endif
}

// -- codes ---------------------------------------------------------------------------------------

// Codes of a group: of eight bits, run by run; of fewer, the first halves of all runs and then the
// second ones, in the order of `value_at`.
struct Codes {
    Bytes half[2];
};

// Of each run of a group word `first`, of EACH words, in the four lanes of its columns.
template <uint32_t EACH>
INLINED Entries in_lanes(const uint32_t* words, uint32_t first)
{
    Entries from;
    for (uint32_t lane = 0; lane < WIDTH; ++lane)
        from[lane] = EACH * (lane / 4) + first;
#if defined(WAY_DOT)
    const __m512i all = EACH == 1 ? _mm512_castsi128_si512(loaded<__m128i>(words))
                                  : _mm512_castsi256_si512(loaded<__m256i>(words));
    return (Entries)_mm512_maskz_permutexvar_epi32(0xffff, (__m512i)from, all);
#elif defined(WAY_MADD)
    const __m128i all = EACH == 1 ? _mm_loadl_epi64(reinterpret_cast<const __m128i*>(words))
                                  : loaded<__m128i>(words);
    return (Entries)_mm256_permutevar8x32_epi32(_mm256_castsi128_si256(all), (__m256i)from);
#else
    Entries made;
    for (uint32_t lane = 0; lane < WIDTH; ++lane)
        made[lane] = words[from[lane]];
    return made;
#endif
}

// How far what the four columns have in a byte is from its lowest bit.
template <uint32_t BITS>
INLINED Entries places()
{
    Entries made;
    for (uint32_t lane = 0; lane < WIDTH; ++lane)
        made[lane] = lane % 4 * BITS;
    return made;
}

// Byte 4 c + j of the halves of a run: column c of byte j of two words, times 1 << UP.
template <uint32_t UP>
INLINED Codes fourths_of(const uint32_t* words)
{
    const Entries first = in_lanes<2>(words, 0) >> places<2>();
    const Entries second = in_lanes<2>(words, 1) >> places<2>();
    return {{(Bytes)((first & 0x03030303u) << UP), (Bytes)((second & 0x03030303u) << UP)}};
}

#if defined(WAY_DOT)
// Masked, as GCC 12 warns of the other intrinsics that they begin with no value.
INLINED __m512i in_all_lanes(const __m128i& lane)
{
    return _mm512_maskz_broadcast_i32x4(0xffff, lane);
}
#endif

// Byte 4 c + j of the halves of a run: bit c, or 4 + c, of byte j of a word, as 1 << UP.
template <uint32_t UP>
INLINED Codes bits_of(const uint32_t* words)
{
    const Entries own = in_lanes<1>(words, 0) >> places<1>();
    return {{(Bytes)((own & 0x01010101u) << UP), (Bytes)((own >> 4 & 0x01010101u) << UP)}};
}

INLINED Bytes looked_up(const Bytes& codes, const float (&table)[16])
{
    int8_t values[16];
    for (uint32_t at = 0; at < 16; ++at)
        values[at] = static_cast<int8_t>(table[at]);
#if defined(WAY_DOT)
    return (Bytes)_mm512_shuffle_epi8(in_all_lanes(loaded<__m128i>(values)), (__m512i)codes);
#elif defined(WAY_MADD)
    const __m256i own = _mm256_broadcastsi128_si256(loaded<__m128i>(values));
    return (Bytes)_mm256_shuffle_epi8(own, (__m256i)codes);
#else
    Bytes made;
    for (uint32_t at = 0; at < 4 * WIDTH; ++at)
        made[at] = static_cast<uint8_t>(values[codes[at]]);
    return made;
#endif
}

// Of each half run, the codes of one entry beside each other.
INLINED Bytes by_entry(const Bytes& codes)
{
#if defined(WAY_DOT)
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return (Bytes)_mm512_shuffle_epi8((__m512i)codes, in_all_lanes(order));
#else
    return __builtin_shufflevector(codes, codes, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11,
                                   15, 16, 20, 24, 28, 17, 21, 25, 29, 18, 22, 26, 30, 19, 23, 27,
                                   31);
#endif
}

// The codes of a group. Reads a whole one, even where a row ends within.
template <class Format>
INLINED Codes codes_of(const Tile& tile, uint32_t group)
{
    constexpr uint32_t low = Format::low, high = Format::high;
    const uint32_t first = group * GROUP;
    const uint32_t* above = tile.front + Format::front + first * high;
    const uint32_t* own = tile.front + Format::front + RUNS * high + first * low;
    Codes made;
    if constexpr (low == 8) {
        made = {{loaded<Bytes>(own), loaded<Bytes>(own + WIDTH)}};
    } else if constexpr (low == 4) {
        Entries both = loaded<Entries>(own);
        if constexpr (Format::is_signed)
            both ^= 0x88888888u;
        made = {{(Bytes)(both & 0x0f0f0f0fu), (Bytes)(both >> 4 & 0x0f0f0f0fu)}};
    } else {
        made = fourths_of<0>(own);
    }
    Codes more{};
    if constexpr (high == 1)
        more = bits_of<low>(above);
    if constexpr (high == 2)
        more = fourths_of<low>(above);
    for (uint32_t half = 0; half < 2; ++half) {
        Bytes& codes = made.half[half];
        if constexpr (high != 0)
            codes |= more.half[half];
        if constexpr (Format::table != NUMBERS)
            codes = looked_up(codes, Format::table == STEPS ? steps_table : powers_table);
        if constexpr (signed_codes<Format> && FLIPS)
            codes ^= 0x80;
        if constexpr (Format::parts == 2 * RUNS)
            codes = by_entry(codes);
    }
    return made;
}

// Rows whose groups may be read whole: the last rows, whose words may end within one, as copies with
// more behind them.
template <class Format>
class WholeGroups {
public:
    explicit WholeGroups(const Packed& told) : told_(told)
    {
        const size_t runs = told.columns / RUN, more = (GROUP - runs % GROUP) % GROUP * Format::low;
        in_place_ = told.rows;
        while (in_place_ && (told.rows - in_place_) * told.row_words < more)
            --in_place_;
        copies_.resize((told.rows - in_place_) * (told.row_words + more));
        for (size_t row = in_place_; row < told.rows; ++row)
            std::copy_n(told.words + row * told.row_words, told.row_words,
                        copies_.data() + (row - in_place_) * (told.row_words + more));
        row_words_ = told.row_words + more;
    }
    const uint32_t* operator[](size_t row) const
    {
        return row < in_place_ ? told_.words + row * told_.row_words
                               : copies_.data() + (row - in_place_) * row_words_;
    }

private:
    const Packed& told_;
    size_t in_place_, row_words_;
    std::vector<uint32_t> copies_;
};
