// Products of weights of few bits and rows that are rounded to 8 bits, included once for each way to
// compile them, in a namespace and with a target of its own (loops_rounded.cpp).
//
//   few rows    codes of a run of one row of the weight, in a vector, times those of x
//   many rows   a panel: WIDTH rows of the weight beside each other, four codes of each in a word
//
// Sums of a run, or of half of one where it has two scales, are exact in 32 bits.

#include "packed_scales.hpp"

typedef uint8_t Bytes __attribute__((vector_size(RUN)));
typedef int8_t Eight __attribute__((vector_size(LANES)));
typedef uint64_t Longs __attribute__((vector_size(RUN)));

#if defined(WAY_DOT)
constexpr uint32_t WIDTH = 16, MOST_ROWS = 8;
constexpr bool FLIPS = true; // dpbusd takes codes without a sign
#else
constexpr uint32_t WIDTH = 8, MOST_ROWS = 2;
constexpr bool FLIPS = false;
#endif

typedef int32_t Sums __attribute__((vector_size(4 * WIDTH)));
typedef float Wide __attribute__((vector_size(4 * WIDTH)));

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
INLINED Whole dot(const Whole& sums, const Bytes& codes, const Bytes& x)
{
#if defined(WAY_DOT)
    return (Whole)_mm256_dpbusd_epi32((__m256i)sums, (__m256i)codes, (__m256i)x);
#elif defined(WAY_MADD)
    const __m256i size = SIGNED ? _mm256_abs_epi8((__m256i)codes) : (__m256i)codes;
    const __m256i own = SIGNED ? _mm256_sign_epi8((__m256i)x, (__m256i)codes) : (__m256i)x;
    const __m256i pairs = _mm256_maddubs_epi16(size, own); // at most 2 * 128 * 127
    return sums + (Whole)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(__ARM_FEATURE_DOTPROD)
    typedef int32_t Half __attribute__((vector_size(16)));
    Half parts[2];
    int8_t a[RUN], b[RUN];
    std::memcpy(parts, &sums, sizeof parts);
    std::memcpy(a, &codes, sizeof a); // those without a sign are below 64
    std::memcpy(b, &x, sizeof b);
    for (int half = 0; half < 2; ++half)
        parts[half] = (Half)vdotq_s32((int32x4_t)parts[half], vld1q_s8(a + 16 * half),
                                      vld1q_s8(b + 16 * half));
    return loaded<Whole>(parts);
#else
    int8_t a[RUN], b[RUN];
    int32_t made[LANES];
    std::memcpy(a, &codes, sizeof a); // those without a sign are below 64
    std::memcpy(b, &x, sizeof b);
    std::memcpy(made, &sums, sizeof made);
    for (uint32_t lane = 0; lane < LANES; ++lane)
        for (uint32_t byte = 4 * lane; byte < 4 * lane + 4; ++byte)
            made[lane] += static_cast<int16_t>(a[byte] * b[byte]);
    return loaded<Whole>(made);
#endif
}

// The same of a word of each row of a panel, and one of x.
template <bool SIGNED>
INLINED Sums dot_all(const Sums& sums, const uint32_t* codes, uint32_t x)
{
#if defined(WAY_DOT)
    return (Sums)_mm512_dpbusd_epi32((__m512i)sums, _mm512_loadu_si512(codes),
                                     _mm512_set1_epi32(static_cast<int32_t>(x)));
#else
    return dot<SIGNED>(sums, loaded<Bytes>(codes), (Bytes)(Words{} + x));
#endif
}

// -- codes ---------------------------------------------------------------------------------------

// Byte 16 h + 4 c + j of the columns of two words: bits 4 j + 2 h of column c and those above, times
// 1 << UP, that is 0 or 4.
template <uint32_t UP>
INLINED Bytes fourths_of(const uint32_t* two)
{
    const Bytes all = (Bytes)(Longs{} + loaded<uint64_t>(two));
    const Words pairs = (Words)__builtin_shufflevector(
        all, all, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 16, 16, 17, 17, 18, 18, 19, 19, 20,
        20, 21, 21, 22, 22, 23, 23);
    constexpr uint32_t even = 0x00030003u << UP, odd = 0x03000300u << UP;
    constexpr Words down{0, 0, 0, 0, 2, 2, 2, 2};
    const Words of_even = UP ? pairs << (4 - down) : pairs >> down;
    const Words of_odd = UP ? pairs >> down : pairs >> (4 + down);
    return (Bytes)((of_even & even) | (of_odd & odd));
}

// Byte 16 h + 4 c + j of a word's columns: bit 2 j + h of column c, as 16.
INLINED Bytes sixteens_of(uint32_t word)
{
    const Bytes all = (Bytes)(Words{} + word);
    const Bytes columns = __builtin_shufflevector(
        all, all, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 16, 16, 16, 16, 17, 17, 17, 17,
        18, 18, 18, 18, 19, 19, 19, 19);
    const Bytes bits = (Bytes)Words{0x40100401u, 0x40100401u, 0x40100401u, 0x40100401u,
                                    0x80200802u, 0x80200802u, 0x80200802u, 0x80200802u};
    return (Bytes)((columns & bits) == bits) & 16;
}

INLINED Bytes looked_up(const Bytes& codes, const float (&table)[16])
{
    int8_t values[16];
    for (uint32_t at = 0; at < 16; ++at)
        values[at] = static_cast<int8_t>(table[at]);
#if defined(WAY_DOT) || defined(WAY_MADD)
    const __m128i own = loaded<__m128i>(values);
    return (Bytes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(own), (__m256i)codes);
#else
    Bytes made;
    for (uint32_t at = 0; at < RUN; ++at)
        made[at] = static_cast<uint8_t>(values[codes[at]]);
    return made;
#endif
}

// The codes of a run, in the order of `value_at`.
template <class Format>
INLINED Bytes codes_of(const uint32_t* tile, uint32_t run)
{
    constexpr uint32_t low = Format::low, high = Format::high;
    const uint32_t* own = tile + Format::head + RUNS * high + run * low;
    Bytes made;
    if constexpr (low == 8)
        made = loaded<Bytes>(own);
    else if constexpr (low == 4)
        made = (Bytes)(repeated(own) >> Words{0, 0, 0, 0, 4, 4, 4, 4} & 0x0f0f0f0fu);
    else
        made = fourths_of<0>(own);
    if constexpr (high == 1)
        made |= low == 4 ? sixteens_of(tile[Format::head + run])
                         : sixteens_of(tile[Format::head + run]) >> 2;
    if constexpr (high == 2)
        made |= fourths_of<low>(tile + Format::head + run * high);
    if constexpr (Format::is_signed && low == 4)
        made ^= 8;
    if constexpr (Format::table != NUMBERS)
        made = looked_up(made, Format::table == STEPS ? steps_table : powers_table);
    if constexpr (signed_codes<Format> && FLIPS)
        made ^= 0x80;
    if constexpr (Format::parts == 2 * RUNS)
        made = __builtin_shufflevector(made, made, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11,
                                       15, 16, 20, 24, 28, 17, 21, 25, 29, 18, 22, 26, 30, 19, 23,
                                       27, 31);
    return made;
}

// Scales and shifts, in which the zero is.
template <class Format>
INLINED void read_parts(const uint32_t* tile, Parts& parts)
{
    read_scales<Format>(tile, parts);
    if constexpr (zero_of<Format> != 0)
        for (uint32_t part = 0; part < Format::parts; part += LANES)
            store(parts.shift + part,
                  loaded<Floats>(parts.scale + part) * -static_cast<float>(zero_of<Format>));
}

// -- rounding ------------------------------------------------------------------------------------

// Whole numbers that are nearest, of two the even one.
INLINED Floats nearest(const Floats& x)
{
#if defined(WAY_DOT) || defined(WAY_MADD)
    return (Floats)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    Floats made;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        made[lane] = std::nearbyint(x[lane]);
    return made;
#endif
}

INLINED uint32_t largest_of(Words sizes)
{
    uint32_t most = 0;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        most = sizes[lane] > most ? sizes[lane] : most;
    return most;
}

INLINED int32_t total_of(const Whole& values)
{
    int32_t total = 0;
    for (uint32_t lane = 0; lane < LANES; ++lane)
        total += values[lane];
    return total;
}

// Codes in the order of `value_at`, for each place.
template <uint32_t PARTS, uint32_t LOW, size_t... PLACES>
INLINED Bytes placed(const Bytes& codes, std::index_sequence<PLACES...>)
{
    return __builtin_shufflevector(codes, codes, value_at(PLACES, PARTS, LOW)...);
}

template <uint32_t PARTS, uint32_t LOW>
INLINED void round_run(const float* x, uint32_t run, Rounded& to)
{
    Floats values[VECTORS];
    Words sizes{};
    for (uint32_t v = 0; v < VECTORS; ++v) {
        values[v] = loaded<Floats>(x + v * LANES);
        const Words size = (Words)values[v] & 0x7fffffffu;
        sizes = size > sizes ? size : sizes; // bits of numbers, infinity and NaN in this order
    }
    const float largest = bits_as<float>(largest_of(sizes)), inverse = MOST_CODE / largest;
    const bool counts = largest >= LEAST_LARGEST && largest <= std::numeric_limits<float>::max();
    float scale = largest / MOST_CODE;
    if (!counts)
        scale = largest < LEAST_LARGEST ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    int8_t codes[RUN] = {};
    Whole halves[2] = {};
    for (uint32_t v = 0; counts && v < VECTORS; ++v) {
        const Whole whole = __builtin_convertvector(nearest(values[v] * inverse), Whole);
        const auto narrow = __builtin_convertvector(whole, Eight);
        std::memcpy(codes + v * LANES, &narrow, sizeof narrow);
        halves[v / (VECTORS / 2)] += whole;
    }
    const Bytes made = placed<PARTS, LOW>(loaded<Bytes>(codes), std::make_index_sequence<RUN>());
    std::memcpy(to.codes + run * RUN, &made, sizeof made);
    if (PARTS == RUNS) {
        to.scale[run] = scale;
        to.sums[run] = scale * static_cast<float>(total_of(halves[0] + halves[1]));
    } else {
        for (uint32_t half = 0; half < 2; ++half) {
            to.scale[2 * run + half] = scale;
            to.sums[2 * run + half] = scale * static_cast<float>(total_of(halves[half]));
        }
    }
}

template <class Format>
void round_rows(const float* x, size_t rows, size_t columns, Rounded* to)
{
    const size_t tiles = (columns + TILE - 1) / TILE;
    for (size_t row = 0; row < rows; ++row, x += columns, to += tiles) {
        if (columns % TILE)
            to[tiles - 1] = Rounded{};
        for (size_t run = 0; run < columns / RUN; ++run)
            round_run<Format::parts, Format::low>(x + run * RUN, run % RUNS, to[run / RUNS]);
    }
}

// -- few rows ------------------------------------------------------------------------------------

// Of two scales, those of the sums of codes in the order of halves.
INLINED Floats of_halves(const float* scale)
{
    const Floats both = (Floats)(Longs{} + loaded<uint64_t>(scale));
    return __builtin_shufflevector(both, both, 0, 0, 1, 1, 4, 4, 5, 5);
}

template <class Format>
INLINED void one_row(const Packed& told, const Rounded* x, float* out)
{
    constexpr uint32_t parts_of_run = Format::parts / RUNS;
    const size_t runs = told.columns / RUN;
    for (size_t row = 0; row < told.rows; ++row) {
        const uint32_t* tile = told.words + row * told.row_words;
        Floats made{};
        for (size_t first = 0; first < runs; first += RUNS, tile += words_of<Format>()) {
            const Rounded& own = x[first / RUNS];
            Parts parts;
            read_parts<Format>(tile, parts);
            for (uint32_t part = 0; part < Format::parts; part += LANES) {
                if (has_shifts<Format>)
                    made += loaded<Floats>(parts.shift + part) * loaded<Floats>(own.sums + part);
                store(parts.scale + part,
                      loaded<Floats>(parts.scale + part) * loaded<Floats>(own.scale + part));
            }
            const uint32_t count = static_cast<uint32_t>(runs - first < RUNS ? runs - first : RUNS);
            for (uint32_t run = 0; run < count; ++run) {
                const Whole sums = dot<signed_codes<Format>>(
                    Whole{}, codes_of<Format>(tile, run), loaded<Bytes>(own.codes + run * RUN));
                const float* scale = parts.scale + run * parts_of_run;
                const Floats values = __builtin_convertvector(sums, Floats);
                if (parts_of_run == 1) {
                    made += values * scale[0];
                } else {
                    made += values * of_halves(scale);
                }
            }
        }
        out[row] = sum_of(made) + (told.bias ? told.bias[row] : 0.0f);
    }
}

// -- many rows -----------------------------------------------------------------------------------

// A run of WIDTH rows of a weight.
struct Panel {
    uint32_t codes[RUNS][WIDTH];
    float scale[2][WIDTH], shift[2][WIDTH];
};

template <class Format>
INLINED void fill_panel(const Packed& told, size_t row, size_t count, Panel* panel)
{
    constexpr uint32_t parts_of_run = Format::parts / RUNS;
    const size_t runs = told.columns / RUN;
    for (size_t r = 0; r < count; ++r) {
        const uint32_t* tile = told.words + (row + r) * told.row_words;
        Parts parts;
        for (size_t run = 0; run < runs; ++run) {
            const uint32_t own = run % RUNS;
            if (run && own == 0)
                tile += words_of<Format>();
            if (own == 0)
                read_parts<Format>(tile, parts);
            const Words codes = (Words)codes_of<Format>(tile, own);
            for (uint32_t word = 0; word < RUNS; ++word)
                panel[run].codes[word][r] = codes[word];
            for (uint32_t part = 0; part < parts_of_run; ++part) {
                panel[run].scale[part][r] = parts.scale[own * parts_of_run + part];
                if (has_shifts<Format>)
                    panel[run].shift[part][r] = parts.shift[own * parts_of_run + part];
            }
        }
    }
}

// x: the first of ROWS rows, `tiles` apart.
template <class Format, uint32_t ROWS>
INLINED void multiply(const Panel* panel, size_t runs, const Rounded* x, size_t tiles,
                      Wide (&made)[MOST_ROWS])
{
    constexpr uint32_t parts_of_run = Format::parts / RUNS;
    for (uint32_t r = 0; r < ROWS; ++r)
        made[r] = Wide{};
    for (size_t run = 0; run < runs; ++run) {
        const Panel& own = panel[run];
        const Rounded* rows = x + run / RUNS;
        const uint32_t at = run % RUNS;
        for (uint32_t part = 0; part < parts_of_run; ++part) {
            Sums sums[ROWS];
            for (uint32_t r = 0; r < ROWS; ++r)
                sums[r] = Sums{};
            for (uint32_t word = 0; word < RUNS; ++word) {
                if (parts_of_run == 2 && word / 2 % 2 != part)
                    continue;
                for (uint32_t r = 0; r < ROWS; ++r)
                    sums[r] = dot_all<signed_codes<Format>>(
                        sums[r], own.codes[word],
                        loaded<uint32_t>(rows[r * tiles].codes + at * RUN + 4 * word));
            }
            const Wide scale = loaded<Wide>(own.scale[part]), shift = loaded<Wide>(own.shift[part]);
            const uint32_t of_tile = at * parts_of_run + part;
            for (uint32_t r = 0; r < ROWS; ++r) {
                const Wide values = __builtin_convertvector(sums[r], Wide);
                made[r] += values * (scale * rows[r * tiles].scale[of_tile]);
                if (has_shifts<Format>)
                    made[r] += shift * rows[r * tiles].sums[of_tile];
            }
        }
    }
}

// So many rows, as a constant that compilers unroll loops by.
template <class Format, uint32_t ROWS = MOST_ROWS>
INLINED void multiply_some(const Panel* panel, size_t runs, const Rounded* x, size_t tiles,
                           size_t rows, Wide (&made)[MOST_ROWS])
{
    if constexpr (ROWS > 1)
        if (rows < ROWS)
            return multiply_some<Format, ROWS - 1>(panel, runs, x, tiles, rows, made);
    multiply<Format, ROWS>(panel, runs, x, tiles, made);
}

template <class Format>
void linear(const Packed& told, const Rounded* x, size_t rows, float* out)
{
    const size_t tiles = (told.columns + TILE - 1) / TILE, runs = told.columns / RUN;
    if (rows < FEW_ROWS) {
        for (size_t row = 0; row < rows; ++row)
            one_row<Format>(told, x + row * tiles, out + row * told.out_row);
        return;
    }
    std::vector<Panel> panel(runs);
    for (size_t first = 0; first < told.rows; first += WIDTH) {
        const size_t count = std::min<size_t>(WIDTH, told.rows - first);
        fill_panel<Format>(told, first, count, panel.data());
        for (size_t row = 0; row < rows; row += MOST_ROWS) {
            const size_t own = std::min<size_t>(MOST_ROWS, rows - row);
            Wide made[MOST_ROWS];
            multiply_some<Format>(panel.data(), runs, x + row * tiles, tiles, own, made);
            for (size_t r = 0; r < own; ++r) {
                float* to = out + (row + r) * told.out_row + first;
                for (size_t c = 0; c < count; ++c)
                    to[c] = made[r][c] + (told.bias ? told.bias[first + c] : 0.0f);
            }
        }
    }
}
