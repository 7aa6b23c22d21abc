// Tiles of integer products, included once for each way to compile them, in a namespace and with a
// target of its own (gemm_simd.cpp).
//
//   tile[r][c] = sum over words and their 4 bytes of rows[r] * columns[c]
//
// One side is unsigned, the other signed; columns lie 16 beside each other. Products of bytes are
// summed in 32 bits: two neighbours in 16 bits, as maddubs has them, would not be exact.

#if defined(WAY_DOT)

constexpr size_t MOST_ROWS = 8, MOST_TILES = 2;

template <bool SIGNED_COLUMNS, size_t ROWS, size_t TILES>
INLINED void multiply(const Rows& rows, const uint32_t* columns, size_t tile_step, size_t words,
                      int32_t* out)
{
    __m512i sums[ROWS][TILES];
    for (size_t r = 0; r < ROWS; ++r)
        for (size_t t = 0; t < TILES; ++t)
            sums[r][t] = _mm512_setzero_si512();
    for (size_t w = 0; w < words; ++w) {
        __m512i own[TILES];
        for (size_t t = 0; t < TILES; ++t)
            own[t] = _mm512_loadu_si512(columns + t * tile_step + w * LANES);
        for (size_t r = 0; r < ROWS; ++r) {
            const uint32_t word = rows.words[r * rows.row_step + w * rows.word_step];
            const __m512i all = _mm512_set1_epi32(static_cast<int32_t>(word));
            for (size_t t = 0; t < TILES; ++t)
                sums[r][t] = SIGNED_COLUMNS ? _mm512_dpbusd_epi32(sums[r][t], all, own[t])
                                            : _mm512_dpbusd_epi32(sums[r][t], own[t], all);
        }
    }
    for (size_t r = 0; r < ROWS; ++r)
        for (size_t t = 0; t < TILES; ++t)
            _mm512_storeu_si512(out + (r * TILES + t) * LANES, sums[r][t]);
}

#elif defined(WAY_MADD)

constexpr size_t MOST_ROWS = 2, MOST_TILES = 1;

template <bool SIGNED>
INLINED __m256i widened(__m128i bytes)
{
    return SIGNED ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
}

// A sum of two neighbours each: of 4 columns in a vector.
template <bool SIGNED_COLUMNS, size_t ROWS, size_t TILES>
INLINED void multiply(const Rows& rows, const uint32_t* columns, size_t, size_t words, int32_t* out)
{
    static_assert(TILES == 1, "one tile at a time");
    __m256i sums[ROWS][4];
    for (size_t r = 0; r < ROWS; ++r)
        for (size_t q = 0; q < 4; ++q)
            sums[r][q] = _mm256_setzero_si256();
    for (size_t w = 0; w < words; ++w) {
        __m256i own[4];
        for (size_t q = 0; q < 4; ++q)
            own[q] = widened<SIGNED_COLUMNS>(_mm_loadu_si128(
                reinterpret_cast<const __m128i*>(columns + w * LANES + 4 * q)));
        for (size_t r = 0; r < ROWS; ++r) {
            const uint32_t word = rows.words[r * rows.row_step + w * rows.word_step];
            const __m256i all = widened<!SIGNED_COLUMNS>(_mm_set1_epi32(static_cast<int32_t>(word)));
            for (size_t q = 0; q < 4; ++q)
                sums[r][q] = _mm256_add_epi32(sums[r][q], _mm256_madd_epi16(all, own[q]));
        }
    }
    for (size_t r = 0; r < ROWS; ++r)
        for (size_t q = 0; q < 4; q += 2) {
            const __m256i pairs = _mm256_hadd_epi32(sums[r][q], sums[r][q + 1]);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + r * LANES + 4 * q),
                                _mm256_permute4x64_epi64(pairs, 0xd8));
        }
}

#else

constexpr size_t MOST_ROWS = 1, MOST_TILES = 1;

template <bool SIGNED>
INLINED int16_t byte_of(uint32_t word, uint32_t byte)
{
    const uint32_t top = word << (24 - 8 * byte);
    return static_cast<int16_t>(SIGNED ? static_cast<int32_t>(top) >> 24
                                       : static_cast<int32_t>(top >> 24));
}

template <bool SIGNED_COLUMNS, size_t ROWS, size_t TILES>
INLINED void multiply(const Rows& rows, const uint32_t* columns, size_t, size_t words, int32_t* out)
{
    static_assert(ROWS == 1 && TILES == 1, "one row at a time");
    int32_t sums[LANES] = {};
    for (size_t w = 0; w < words; ++w)
        for (uint32_t byte = 0; byte < 4; ++byte) {
            const int16_t all = byte_of<!SIGNED_COLUMNS>(rows.words[w * rows.word_step], byte);
            for (size_t c = 0; c < LANES; ++c) // a product has 16 bits, as 255 * 128 has
                sums[c] += static_cast<int16_t>(
                    all * byte_of<SIGNED_COLUMNS>(columns[w * LANES + c], byte));
        }
    std::memcpy(out, sums, sizeof sums);
}

#endif

// So many rows and tiles, as constants that compilers unroll loops by.
template <bool SIGNED_COLUMNS, size_t ROWS = MOST_ROWS, size_t TILES = MOST_TILES>
INLINED void multiply_some(const Rows& rows, size_t count, const uint32_t* columns,
                           size_t tile_step, size_t tiles, size_t words, int32_t* out)
{
    if constexpr (TILES > 1)
        if (tiles < TILES)
            return multiply_some<SIGNED_COLUMNS, ROWS, TILES - 1>(rows, count, columns, tile_step,
                                                                  tiles, words, out);
    if constexpr (ROWS > 1)
        if (count < ROWS)
            return multiply_some<SIGNED_COLUMNS, ROWS - 1, TILES>(rows, count, columns, tile_step,
                                                                  tiles, words, out);
    multiply<SIGNED_COLUMNS, ROWS, TILES>(rows, columns, tile_step, words, out);
}

void multiply_signed_columns(const Rows& rows, size_t count, const uint32_t* columns,
                             size_t tile_step, size_t tiles, size_t words, int32_t* out)
{
    multiply_some<true>(rows, count, columns, tile_step, tiles, words, out);
}

void multiply_signed_rows(const Rows& rows, size_t count, const uint32_t* columns,
                          size_t tile_step, size_t tiles, size_t words, int32_t* out)
{
    multiply_some<false>(rows, count, columns, tile_step, tiles, words, out);
}

// -- values and codes ----------------------------------------------------------------------------

// Of a value of at most 2**22, rounded half to even.
INLINED int32_t rounded(float x)
{
    constexpr float shift = 12582912.0f; // 1.5 * 2**23
    return static_cast<int32_t>(bits_as<uint32_t>(x + shift) - bits_as<uint32_t>(shift));
}

INLINED float between(float x, float low, float high)
{
    const float above = x >= low ? x : low; // NaN too
    return above > high ? high : above;
}

void quantize_run(const float* x, float scale, int32_t zero, int32_t low, int32_t high,
                  int32_t* out, size_t count)
{
    const float least = static_cast<float>(low - zero), most = static_cast<float>(high - zero);
    for (size_t at = 0; at < count; ++at)
        out[at] = rounded(between(x[at] / scale, least, most)) + zero;
}

void requantize_run(const int32_t* x, int32_t bias, float scale, int32_t zero, int32_t low,
                    int32_t high, int32_t* out, size_t count)
{
    const float least = static_cast<float>(low - zero), most = static_cast<float>(high - zero);
    for (size_t at = 0; at < count; ++at) {
        const uint32_t sum = static_cast<uint32_t>(x[at]) + static_cast<uint32_t>(bias);
        const float value = static_cast<float>(static_cast<int32_t>(sum)) * scale;
        out[at] = rounded(between(value, least, most)) + zero;
    }
}

const Way way{MOST_ROWS,    MOST_TILES,     multiply_signed_columns, multiply_signed_rows,
              quantize_run, requantize_run};
