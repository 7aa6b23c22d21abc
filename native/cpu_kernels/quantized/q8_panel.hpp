// Panels of GEMM: WIDTH rows of a quantized weight, interleaved by transposing squares of words.
// Included once for each instruction set, in the namespace of q8_matmul_simd.hpp.

// A run of WIDTH rows of a weight, interleaved.
struct Panel {
    uint32_t quants[RUNS][WIDTH];
    float scale[2][WIDTH], offset[2][WIDTH];
};

// Alternate the words of the first halves of a and b, then those of the second halves.
template <size_t... PLACES>
INLINED void zip(const U32xN& a, const U32xN& b, U32xN& first, U32xN& second,
                 std::index_sequence<PLACES...>)
{
    first = __builtin_shufflevector(a, b, (PLACES / 2 + PLACES % 2 * WIDTH)...);
    second = __builtin_shufflevector(a, b, (PLACES / 2 + PLACES % 2 * WIDTH + WIDTH / 2)...);
}

// Transpose a square of words.
INLINED void transpose(U32xN (&rows)[WIDTH])
{
#pragma GCC unroll 4
    for (uint32_t step = 1; step < WIDTH; step *= 2) {
        U32xN zipped[WIDTH];
#pragma GCC unroll 8
        for (uint32_t row = 0; row < WIDTH / 2; ++row)
            zip(rows[row], rows[row + WIDTH / 2], zipped[2 * row], zipped[2 * row + 1],
                std::make_index_sequence<WIDTH>());
#pragma GCC unroll 16
        for (uint32_t row = 0; row < WIDTH; ++row)
            rows[row] = zipped[row];
    }
}

// A tile of WIDTH rows: the unpacked quants, and scales with offsets. Rows that are missing are 0.
template <class Format>
struct PanelTile {
    static constexpr uint32_t parts = Format::parts;
    static constexpr uint32_t scale_words
        = ((has_offsets<Format> ? 2 * parts : parts) + WIDTH - 1) / WIDTH * WIDTH;
    Quants quants[WIDTH][RUNS / GROUP];
    uint32_t scales[WIDTH][scale_words];
};

template <class Format>
INLINED void read_panel_tile(const PaddedRows<Format>& rows, size_t row, size_t count, size_t tile,
                             uint32_t runs, PanelTile<Format>& to)
{
    constexpr uint32_t parts = Format::parts;
    for (size_t r = 0; r < count; ++r) {
        const Tile from = tile_of<Format>(rows[row + r], tile);
        Parts values;
        read_parts<Format, zero_point_of<Format>>(from, values);
        std::memcpy(to.scales[r], values.scale, 4 * parts);
        if (has_offsets<Format>)
            std::memcpy(to.scales[r] + parts, values.offset, 4 * parts);
        for (uint32_t first = 0; first < runs; first += GROUP)
            to.quants[r][first / GROUP] = unpack_quants<Format>(from, first / GROUP);
    }
}

// Interleave the quants of a group of runs.
template <class Format>
INLINED void pack_quants(const PanelTile<Format>& tile, uint32_t group, uint32_t runs, Panel* panel)
{
    for (uint32_t half = 0; half < 2; ++half) {
        U32xN words[WIDTH];
#pragma GCC unroll 16
        for (uint32_t r = 0; r < WIDTH; ++r)
            words[r] = (U32xN)tile.quants[r][group].half[half];
        transpose(words);
#pragma GCC unroll 16
        for (uint32_t at = 0; at < WIDTH; ++at) {
            constexpr uint32_t of_half = WIDTH / GROUP; // words of a run
            const bool is_8bit = Format::low_bits == 8;
            const uint32_t run = is_8bit ? (half * WIDTH + at) / RUNS : at / of_half;
            const uint32_t word = is_8bit ? at % RUNS : half * of_half + at % of_half;
            if (run < runs)
                std::memcpy(panel[run].quants[word], &words[at], sizeof words[at]);
        }
    }
}

// Interleave the scales and offsets of a tile.
template <class Format>
INLINED void pack_scales(const PanelTile<Format>& tile, uint32_t runs, Panel* panel)
{
    constexpr uint32_t parts = Format::parts, parts_of_run = parts / RUNS;
    for (uint32_t first = 0; first < tile.scale_words; first += WIDTH) {
        U32xN words[WIDTH];
#pragma GCC unroll 16
        for (uint32_t r = 0; r < WIDTH; ++r)
            words[r] = load<U32xN>(tile.scales[r] + first);
        transpose(words);
        for (uint32_t at = 0; at < WIDTH; ++at) {
            const uint32_t part = (first + at) % parts, run = part / parts_of_run;
            const bool is_offset = first + at >= parts;
            if (run < runs && (!is_offset || has_offsets<Format>))
                std::memcpy((is_offset ? panel[run].offset : panel[run].scale)[part % parts_of_run],
                            &words[at], sizeof words[at]);
        }
    }
}

template <class Format>
INLINED void pack_panel(const QuantMatmul& params, const PaddedRows<Format>& rows, size_t row,
                        size_t count, Panel* panel)
{
    const size_t runs = params.columns / RUN;
    PanelTile<Format> tile{};
    for (size_t first = 0; first < runs; first += RUNS) {
        const uint32_t run_count = static_cast<uint32_t>(std::min<size_t>(RUNS, runs - first));
        read_panel_tile<Format>(rows, row, count, first / RUNS, run_count, tile);
        for (uint32_t run = 0; run < run_count; run += GROUP)
            pack_quants<Format>(tile, run / GROUP, std::min(GROUP, run_count - run),
                                panel + first + run);
        pack_scales<Format>(tile, run_count, panel + first);
    }
}
