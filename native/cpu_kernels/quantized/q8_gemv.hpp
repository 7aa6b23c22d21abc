// GEMV with int8 activations: one Q8 row times a quantized weight. Included once for each
// instruction set, in the namespace of q8_matmul_simd.hpp.

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

template <class Format>
INLINED void accumulate_group(const Tile& tile, uint32_t group, const Quants& x, const float* scale,
                       F32xN& total)
{
    const Quants quants = unpack_quants<Format>(tile, group);
    I32xN sums = dot<has_signed_quants<Format>>(I32xN{}, quants.half[0], x.half[0]);
    if constexpr (Format::low_bits == 8) {
        const uint32_t first = group * GROUP;
        total += __builtin_convertvector(sums, F32xN) * broadcast_scales<8>(scale, first);
        sums = dot<has_signed_quants<Format>>(I32xN{}, quants.half[1], x.half[1]);
        total +=
            __builtin_convertvector(sums, F32xN) * broadcast_scales<8>(scale, first + GROUP / 2);
    } else {
        constexpr uint32_t lanes_of_scale = 4 * RUNS / Format::parts;
        const uint32_t first = group * GROUP * Format::parts / RUNS;
        sums = dot<has_signed_quants<Format>>(sums, quants.half[1], x.half[1]);
        const float* scales_of_half = scale + first / LANES * LANES;
        total += __builtin_convertvector(sums, F32xN)
                 * broadcast_scales<lanes_of_scale>(scales_of_half, first % LANES);
    }
}

// Rows are read one after the other: hardware prefetchers follow sequential reads. Interleaving
// rows took two to three times as long if the weight was in no cache.
template <class Format>
INLINED void gemv(const QuantMatmul& params, const PaddedRows<Format>& rows, const Q8Tile* x,
                     float* out)
{
    const size_t runs = params.columns / RUN;
    for (size_t row = 0; row < params.rows; ++row) {
        F32xN total{};
        F32x8 offset_sum{};
        for (size_t first = 0; first < runs; first += RUNS) {
            const Tile tile = tile_of<Format>(rows[row], first / RUNS);
            const Q8Tile& x_tile = x[first / RUNS];
            Parts parts;
            read_parts<Format, zero_point_of<Format>>(tile, parts);
            for (uint32_t part = 0; part < Format::parts; part += LANES) {
                if (has_offsets<Format>)
                    offset_sum +=
                        load<F32x8>(parts.offset + part) * load<F32x8>(x_tile.sums + part);
                store(parts.scale + part,
                      load<F32x8>(parts.scale + part) * load<F32x8>(x_tile.scale + part));
            }
#pragma GCC unroll 4
            for (uint32_t group = 0; group < RUNS / GROUP; ++group) {
                if (first + group * GROUP >= runs)
                    break;
                accumulate_group<Format>(tile, group, activation_quants<Format>(x_tile, group),
                                         parts.scale, total);
            }
        }
        F32x8 sums[WIDTH / LANES];
        std::memcpy(sums, &total, sizeof sums);
        for (const F32x8& part : sums)
            offset_sum += part;
        out[row] = horizontal_sum(offset_sum) + (params.bias ? params.bias[row] : 0.0f);
    }
}
