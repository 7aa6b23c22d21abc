// GEMV with int8 activations: a few Q8 rows times a quantized weight, whose quants are unpacked
// once for up to GEMV_BLOCK of them. Included once for each instruction set, in the namespace of
// q8_matmul_simd.hpp.

// Return the quants of a group of a Q8 row, in the order of the weight's.
template <class Format>
INLINED Quants activation_quants(const Q8Tile& x, uint32_t group)
{
    const int8_t* x_tile = x.quants + group * GROUP * RUN;
    const U64xN a = load<U64xN>(x_tile), b = load<U64xN>(x_tile + 4 * WIDTH);
    if constexpr (Format::low_bits == 8)
        return {{(U8xN)a, (U8xN)b}};
#if defined(SIMD_AVX512_VNNI)
    return {{(U8xN)__builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13),
             (U8xN)__builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15)}};
#else
    return {{(U8xN)__builtin_shufflevector(a, b, 0, 1, 4, 5),
             (U8xN)__builtin_shufflevector(a, b, 2, 3, 6, 7)}};
#endif
}

// Broadcast scales from `first` on, each to the EACH lanes with its products.
template <uint32_t EACH>
INLINED F32xN broadcast_scales(const float* scales_of_half, uint32_t first)
{
    U32xN from;
    for (uint32_t lane = 0; lane < WIDTH; ++lane)
        from[lane] = first + lane / EACH;
#if defined(SIMD_AVX512_VNNI)
    const __m512 all = _mm512_castps256_ps512((__m256)load<F32x8>(scales_of_half));
    return (F32xN)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)from, all);
#elif defined(SIMD_AVX2)
    return (F32xN)_mm256_permutevar8x32_ps((__m256)load<F32x8>(scales_of_half), (__m256i)from);
#else
    F32xN total;
    for (uint32_t lane = 0; lane < WIDTH; ++lane)
        total[lane] = scales_of_half[from[lane]];
    return total;
#endif
}

// Return a * b + sum. Where there is a fused instruction, it is explicit: a compiler may choose it for
// some numbers of rows only, and their bits would differ.
INLINED F32x8 multiply_add(const F32x8& a, const F32x8& b, const F32x8& sum)
{
#if defined(SIMD_AVX512_VNNI) || defined(SIMD_AVX2)
    return (F32x8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
    return a * b + sum;
#endif
}

#if defined(SIMD_AVX512_VNNI)
INLINED F32xN multiply_add(const F32xN& a, const F32xN& b, const F32xN& sum)
{
    return (F32xN)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
}
#endif

template <class Format>
INLINED void accumulate_group(const Quants& quants, uint32_t group, const Quants& x,
                              const float* scale, F32xN& total)
{
    I32xN sums = dot<has_signed_quants<Format>>(I32xN{}, quants.half[0], x.half[0]);
    if constexpr (Format::low_bits == 8) {
        const uint32_t first = group * GROUP;
        total = multiply_add(__builtin_convertvector(sums, F32xN),
                             broadcast_scales<8>(scale, first), total);
        sums = dot<has_signed_quants<Format>>(I32xN{}, quants.half[1], x.half[1]);
        total = multiply_add(__builtin_convertvector(sums, F32xN),
                             broadcast_scales<8>(scale, first + GROUP / 2), total);
    } else {
        constexpr uint32_t lanes_of_scale = 4 * RUNS / Format::parts;
        const uint32_t first = group * GROUP * Format::parts / RUNS;
        sums = dot<has_signed_quants<Format>>(sums, quants.half[1], x.half[1]);
        const float* scales_of_half = scale + first / LANES * LANES;
        total = multiply_add(__builtin_convertvector(sums, F32xN),
                             broadcast_scales<lanes_of_scale>(scales_of_half, first % LANES),
                             total);
    }
}

// Prefetch the cache lines of a tile some tiles later. The address may be beyond the end of the
// array. Without it the rows of a weight that is in no cache take 1.3 times as long.
template <class Format>
INLINED void prefetch_tile(const Tile& tile)
{
    constexpr uint32_t bytes_ahead = 2048, line = 64;
    const uintptr_t start = reinterpret_cast<uintptr_t>(tile.front) + bytes_ahead;
#pragma GCC unroll 8
    for (uint32_t byte = 0; byte < 4 * tile_words_of<Format>(); byte += line)
        __builtin_prefetch(reinterpret_cast<const void*>(start + byte));
}

// Multiply ROWS rows of x, `tiles` tiles apart, by a row of a weight. The order of the sums of a row
// of x does not depend on ROWS, so neither do its bits.
template <class Format, uint32_t ROWS>
INLINED void gemv_row(const QuantMatmul& params, const uint32_t* weight, const Q8Tile* x,
                      size_t tiles, float (&result)[ROWS])
{
    const size_t runs = params.columns / RUN;
    F32xN total[ROWS] = {};
    F32x8 offset_sum[ROWS] = {};
    for (size_t first = 0; first < runs; first += RUNS) {
        const Tile tile = tile_of<Format>(weight, first / RUNS);
        const Q8Tile* x_tile = x + first / RUNS;
        prefetch_tile<Format>(tile);
        Parts parts;
        float scale[ROWS][2 * RUNS];
        read_parts<Format, zero_point_of<Format>>(tile, parts);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < ROWS; ++r)
            for (uint32_t part = 0; part < Format::parts; part += LANES) {
                const Q8Tile& of_row = x_tile[r * tiles];
                if (has_offsets<Format>)
                    offset_sum[r] = multiply_add(load<F32x8>(parts.offset + part),
                                                 load<F32x8>(of_row.sums + part), offset_sum[r]);
                store(scale[r] + part,
                      load<F32x8>(parts.scale + part) * load<F32x8>(of_row.scale + part));
            }
#pragma GCC unroll 4
        for (uint32_t group = 0; group < RUNS / GROUP; ++group) {
            if (first + group * GROUP >= runs)
                break;
            const Quants quants = unpack_quants<Format>(tile, group);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < ROWS; ++r)
                accumulate_group<Format>(quants, group,
                                         activation_quants<Format>(x_tile[r * tiles], group),
                                         scale[r], total[r]);
        }
    }
    for (uint32_t r = 0; r < ROWS; ++r) {
        F32x8 sums[WIDTH / LANES];
        std::memcpy(sums, &total[r], sizeof sums);
        for (const F32x8& part : sums)
            offset_sum[r] += part;
        result[r] = horizontal_sum(offset_sum[r]);
    }
}

// Rows of the weight are read one after the other: hardware prefetchers follow sequential reads.
// Interleaving rows took two to three times as long if the weight was in no cache.
template <class Format, uint32_t ROWS>
[[gnu::noinline]] void gemv(const QuantMatmul& params, const PaddedRows<Format>& rows,
                            const Q8Tile* x, size_t tiles, float* out)
{
    for (size_t row = 0; row < params.rows; ++row) {
        float result[ROWS];
        gemv_row<Format, ROWS>(params, rows[row], x, tiles, result);
        for (uint32_t r = 0; r < ROWS; ++r)
            out[r * params.out_stride + row] = result[r] + (params.bias ? params.bias[row] : 0.0f);
    }
}

// Multiply a few rows of x, in blocks of ROWS rows, then of half as many.
template <class Format, uint32_t ROWS = GEMV_BLOCK>
INLINED void gemv_rows(const QuantMatmul& params, const PaddedRows<Format>& padded_rows,
                       const Q8Tile* x, size_t tiles, size_t rows, float* out)
{
    for (; rows >= ROWS; rows -= ROWS, x += ROWS * tiles, out += ROWS * params.out_stride)
        gemv<Format, ROWS>(params, padded_rows, x, tiles, out);
    if constexpr (ROWS > 1)
        gemv_rows<Format, ROWS / 2>(params, padded_rows, x, tiles, rows, out);
}
