// int8 GEMM microkernels, included once for each instruction set, in a namespace of its own
// (gemm_simd.cpp).
//
//   tile[r][c] = sum over words and their 4 bytes of rows[r] * columns[c]
//
// One operand is unsigned, the other signed. 16 columns are interleaved. Products of bytes are
// accumulated in 32 bits: sums of two in 16 bits, as of maddubs, would saturate.

#if defined(SIMD_AVX512_VNNI)

constexpr size_t MAX_ROWS = 8, MAX_TILES = 2;

template <bool SIGNED_COLUMNS, size_t ROWS, size_t TILES>
INLINED void gemm_tile(const RowBytes& rows, const uint32_t* columns, size_t tile_step,
                       size_t words, int32_t* out)
{
    __m512i sums[ROWS][TILES];
    for (size_t r = 0; r < ROWS; ++r)
        for (size_t t = 0; t < TILES; ++t)
            sums[r][t] = _mm512_setzero_si512();
    for (size_t w = 0; w < words; ++w) {
        __m512i column_words[TILES];
        for (size_t t = 0; t < TILES; ++t)
            column_words[t] = _mm512_loadu_si512(columns + t * tile_step + w * LANES);
        for (size_t r = 0; r < ROWS; ++r) {
            const uint32_t word = rows.words[r * rows.row_stride + w * rows.word_stride];
            const __m512i broadcast = _mm512_set1_epi32(static_cast<int32_t>(word));
            for (size_t t = 0; t < TILES; ++t)
                sums[r][t] = SIGNED_COLUMNS
                                 ? _mm512_dpbusd_epi32(sums[r][t], broadcast, column_words[t])
                                 : _mm512_dpbusd_epi32(sums[r][t], column_words[t], broadcast);
        }
    }
    for (size_t r = 0; r < ROWS; ++r)
        for (size_t t = 0; t < TILES; ++t)
            _mm512_storeu_si512(out + (r * TILES + t) * LANES, sums[r][t]);
}

#elif defined(SIMD_AVX2)

constexpr size_t MAX_ROWS = 2, MAX_TILES = 1;

template <bool SIGNED>
INLINED __m256i widen(__m128i bytes)
{
    return SIGNED ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
}

// Accumulators of pairs of products: 4 columns in a vector.
template <bool SIGNED_COLUMNS, size_t ROWS, size_t TILES>
INLINED void gemm_tile(const RowBytes& rows, const uint32_t* columns, size_t, size_t words,
                       int32_t* out)
{
    static_assert(TILES == 1, "one tile at a time");
    __m256i sums[ROWS][4];
    for (size_t r = 0; r < ROWS; ++r)
        for (size_t q = 0; q < 4; ++q)
            sums[r][q] = _mm256_setzero_si256();
    for (size_t w = 0; w < words; ++w) {
        __m256i column_words[4];
        for (size_t q = 0; q < 4; ++q)
            column_words[q] = widen<SIGNED_COLUMNS>(_mm_loadu_si128(
                reinterpret_cast<const __m128i*>(columns + w * LANES + 4 * q)));
        for (size_t r = 0; r < ROWS; ++r) {
            const uint32_t word = rows.words[r * rows.row_stride + w * rows.word_stride];
            const __m256i broadcast =
                widen<!SIGNED_COLUMNS>(_mm_set1_epi32(static_cast<int32_t>(word)));
            for (size_t q = 0; q < 4; ++q)
                sums[r][q] =
                    _mm256_add_epi32(sums[r][q], _mm256_madd_epi16(broadcast, column_words[q]));
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

constexpr size_t MAX_ROWS = 1, MAX_TILES = 1;

template <bool SIGNED>
INLINED int16_t byte_at(uint32_t word, uint32_t byte)
{
    const uint32_t shifted = word << (24 - 8 * byte);
    return static_cast<int16_t>(SIGNED ? static_cast<int32_t>(shifted) >> 24
                                       : static_cast<int32_t>(shifted >> 24));
}

template <bool SIGNED_COLUMNS, size_t ROWS, size_t TILES>
INLINED void gemm_tile(const RowBytes& rows, const uint32_t* columns, size_t, size_t words,
                       int32_t* out)
{
    static_assert(ROWS == 1 && TILES == 1, "one row at a time");
    int32_t sums[LANES] = {};
    for (size_t w = 0; w < words; ++w)
        for (uint32_t byte = 0; byte < 4; ++byte) {
            const int16_t broadcast =
                byte_at<!SIGNED_COLUMNS>(rows.words[w * rows.word_stride], byte);
            for (size_t c = 0; c < LANES; ++c) // a product fits 16 bits: |255 * 128|
                sums[c] += static_cast<int16_t>(
                    broadcast * byte_at<SIGNED_COLUMNS>(columns[w * LANES + c], byte));
        }
    std::memcpy(out, sums, sizeof sums);
}

#endif

// Dispatch to a tile size that is a compile-time constant, so that loops are unrolled.
template <bool SIGNED_COLUMNS, size_t ROWS = MAX_ROWS, size_t TILES = MAX_TILES>
INLINED void gemm_tile_up_to(const RowBytes& rows, size_t count, const uint32_t* columns,
                           size_t tile_step, size_t tiles, size_t words, int32_t* out)
{
    if constexpr (TILES > 1)
        if (tiles < TILES)
            return gemm_tile_up_to<SIGNED_COLUMNS, ROWS, TILES - 1>(rows, count, columns, tile_step,
                                                                  tiles, words, out);
    if constexpr (ROWS > 1)
        if (count < ROWS)
            return gemm_tile_up_to<SIGNED_COLUMNS, ROWS - 1, TILES>(rows, count, columns, tile_step,
                                                                  tiles, words, out);
    gemm_tile<SIGNED_COLUMNS, ROWS, TILES>(rows, columns, tile_step, words, out);
}

void gemm_signed_columns(const RowBytes& rows, size_t count, const uint32_t* columns,
                             size_t tile_step, size_t tiles, size_t words, int32_t* out)
{
    gemm_tile_up_to<true>(rows, count, columns, tile_step, tiles, words, out);
}

void gemm_signed_rows(const RowBytes& rows, size_t count, const uint32_t* columns,
                          size_t tile_step, size_t tiles, size_t words, int32_t* out)
{
    gemm_tile_up_to<false>(rows, count, columns, tile_step, tiles, words, out);
}

// -- quantize and requantize ---------------------------------------------------------------------

// Round half to even, for |x| <= 2**22.
INLINED int32_t round_to_int(float x)
{
    constexpr float shift = 12582912.0f; // 1.5 * 2**23: rounds to an integer in the low bits
    return static_cast<int32_t>(bit_cast<uint32_t>(x + shift) - bit_cast<uint32_t>(shift));
}

INLINED float clamp_or_low(float x, float low, float high)
{
    const float above = x >= low ? x : low; // also for NaN
    return above > high ? high : above;
}

void quantize_run(const float* x, float scale, int32_t zero, int32_t low, int32_t high,
                  int32_t* out, size_t count)
{
    const float lowest = static_cast<float>(low - zero), highest = static_cast<float>(high - zero);
    for (size_t at = 0; at < count; ++at)
        out[at] = round_to_int(clamp_or_low(x[at] / scale, lowest, highest)) + zero;
}

void requantize_run(const int32_t* x, int32_t bias, float scale, int32_t zero, int32_t low,
                    int32_t high, int32_t* out, size_t count)
{
    const float lowest = static_cast<float>(low - zero), highest = static_cast<float>(high - zero);
    for (size_t at = 0; at < count; ++at) {
        const uint32_t sum = static_cast<uint32_t>(x[at]) + static_cast<uint32_t>(bias);
        const float value = static_cast<float>(static_cast<int32_t>(sum)) * scale;
        out[at] = round_to_int(clamp_or_low(value, lowest, highest)) + zero;
    }
}

const Kernels kernels{MAX_ROWS,    MAX_TILES,     gemm_signed_columns, gemm_signed_rows,
              quantize_run, requantize_run};
