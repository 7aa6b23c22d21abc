// Products of one row that is rounded to 8 bits and a weight of few bits. Included once for each way
// to compile them, in the namespace of q8_matmul_simd.hpp.

// The codes of a group of a rounded row, in the order of the weight's.
template <class Format>
INLINED Codes codes_of_x(const Rounded& x, uint32_t group)
{
    const int8_t* own = x.codes + group * GROUP * RUN;
    const Longs a = loaded<Longs>(own), b = loaded<Longs>(own + 4 * WIDTH);
    if constexpr (Format::low == 8)
        return {{(Bytes)a, (Bytes)b}};
#if defined(WAY_DOT)
    return {{(Bytes)__builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13),
             (Bytes)__builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15)}};
#else
    return {{(Bytes)__builtin_shufflevector(a, b, 0, 1, 4, 5),
             (Bytes)__builtin_shufflevector(a, b, 2, 3, 6, 7)}};
#endif
}

// Some of the scales of eight parts, each for as many lanes as sums have its products.
template <uint32_t EACH>
INLINED Wide spread(const float* eight, uint32_t first)
{
    Entries from;
    for (uint32_t lane = 0; lane < WIDTH; ++lane)
        from[lane] = first + lane / EACH;
#if defined(WAY_DOT)
    const __m512 all = _mm512_castps256_ps512((__m256)loaded<Floats>(eight));
    return (Wide)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)from, all);
#elif defined(WAY_MADD)
    return (Wide)_mm256_permutevar8x32_ps((__m256)loaded<Floats>(eight), (__m256i)from);
#else
    Wide made;
    for (uint32_t lane = 0; lane < WIDTH; ++lane)
        made[lane] = eight[from[lane]];
    return made;
#endif
}

template <class Format>
INLINED void add_group(const Tile& tile, uint32_t group, const Codes& x, const float* scale,
                       Wide& made)
{
    const Codes codes = codes_of<Format>(tile, group);
    Sums sums = dot<signed_codes<Format>>(Sums{}, codes.half[0], x.half[0]);
    if constexpr (Format::low == 8) {
        const uint32_t first = group * GROUP;
        made += __builtin_convertvector(sums, Wide) * spread<8>(scale, first);
        sums = dot<signed_codes<Format>>(Sums{}, codes.half[1], x.half[1]);
        made += __builtin_convertvector(sums, Wide) * spread<8>(scale, first + GROUP / 2);
    } else {
        constexpr uint32_t each = 4 * RUNS / Format::parts;
        const uint32_t first = group * GROUP * Format::parts / RUNS;
        sums = dot<signed_codes<Format>>(sums, codes.half[1], x.half[1]);
        const float* eight = scale + first / LANES * LANES;
        made += __builtin_convertvector(sums, Wide) * spread<each>(eight, first % LANES);
    }
}

// Rows one after the other: processors fetch ahead what is read in order, and several rows in turns
// took two to three times as long where a weight was in no cache.
template <class Format>
INLINED void one_row(const Packed& told, const WholeGroups<Format>& rows, const Rounded* x,
                     float* out)
{
    const size_t runs = told.columns / RUN;
    for (size_t row = 0; row < told.rows; ++row) {
        Wide made{};
        Floats least{};
        for (size_t first = 0; first < runs; first += RUNS) {
            const Tile tile = tile_of<Format>(rows[row], first / RUNS);
            const Rounded& own = x[first / RUNS];
            Parts parts;
            read_parts<Format, zero_of<Format>>(tile, parts);
            for (uint32_t part = 0; part < Format::parts; part += LANES) {
                if (has_shifts<Format>)
                    least += loaded<Floats>(parts.shift + part) * loaded<Floats>(own.sums + part);
                store(parts.scale + part,
                      loaded<Floats>(parts.scale + part) * loaded<Floats>(own.scale + part));
            }
#pragma GCC unroll 4
            for (uint32_t group = 0; group < RUNS / GROUP; ++group) {
                if (first + group * GROUP >= runs)
                    break;
                add_group<Format>(tile, group, codes_of_x<Format>(own, group), parts.scale, made);
            }
        }
        Floats sums[WIDTH / LANES];
        std::memcpy(sums, &made, sizeof sums);
        for (const Floats& part : sums)
            least += part;
        out[row] = sum_of(least) + (told.bias ? told.bias[row] : 0.0f);
    }
}
