// Packing of x for the microkernels, LANES values in a vector.
//
// The phases of a stride are separated and padding is written, for as many rows as a cache holds.
// Each tap of adjacent results is then a contiguous vector for any stride, dilation and padding,
// and a vector may continue in the next row.

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Mask __attribute__((vector_size(4 * LANES)));
typedef float UnalignedVector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

constexpr size_t WIDEST = MAX_VECTORS * LANES;

INLINED Vector load(const float* from) { return *reinterpret_cast<const UnalignedVector*>(from); }

INLINED Vector broadcast(float value)
{
    return value - Vector{};
} // an addition of 0 would change -0

INLINED void store(float* to, Vector value) { *reinterpret_cast<UnalignedVector*>(to) = value; }

typedef float UnalignedFloat4 __attribute__((vector_size(16), aligned(4), may_alias));

// Call with the start of each run of `lanes` values. The last run ends at `count`, and may overlap
// the one before.
template <class Call>
INLINED void for_each_vector(size_t lanes, size_t count, Call call)
{
    for (size_t at = 0; at + lanes < count; at += lanes)
        call(at);
    call(count - lanes);
}

INLINED void copy(float* to, const float* from, size_t count)
{
    if (count >= LANES)
        for_each_vector(LANES, count, [=](size_t at) { store(to + at, load(from + at)); });
    else if (count >= 4)
        for_each_vector(4, count, [=](size_t at) {
            *reinterpret_cast<UnalignedFloat4*>(to + at) =
                *reinterpret_cast<const UnalignedFloat4*>(from + at);
        });
    else
        for (size_t at = 0; at < count; ++at)
            to[at] = from[at];
}

// Copy every STEP-th value; STEP = 0: every `step`-th.
template <ptrdiff_t STEP>
INLINED void copy_strided(float* __restrict to, const float* __restrict from, size_t count,
                    ptrdiff_t step)
{
    if (STEP == 1)
        return copy(to, from, count);
    for (size_t at = 0; at < count; ++at)
        to[at] = from[static_cast<ptrdiff_t>(at) * (STEP ? STEP : step)];
}

// Return the number of results before position `place`, at most `count`.
INLINED size_t clamped_ceil_div(ptrdiff_t place, ptrdiff_t step, size_t count)
{
    const ptrdiff_t at = place <= 0 ? 0 : (place + step - 1) / step;
    return std::min(static_cast<size_t>(at), count);
}

// The results along an axis that read x: from..end-1. Result j reads position first + j * step.
struct ValidRange {
    ptrdiff_t first, step;
    size_t from, end;

    ValidRange(ptrdiff_t first, ptrdiff_t step, size_t size, size_t count)
      : first(first), step(step), from(clamped_ceil_div(-first, step, count)),
        end(std::max(from, clamped_ceil_div(static_cast<ptrdiff_t>(size) - first, step, count)))
    {
    }

    size_t place(size_t result) const { return first + static_cast<ptrdiff_t>(result) * step; }
};

// The target of one phase of x: its rows and columns, surrounded by padding unless is_full.
struct Grid {
    size_t rows, columns, from, to;
    bool is_full = false;
};

struct InputLayout {
    const Window& window;
    Taps rows, columns;

    explicit InputLayout(const Window& source)
      : window(source), rows(source.kernel[1], source.stride[1], source.dilation[1]),
        columns(source.kernel[2], source.stride[2], source.dilation[2])
    {
    }

    // Return whether taps are plain shifts in x itself, which then needs no packing.
    bool is_contiguous() const
    {
        for (size_t axis = 0; axis < AXES; ++axis) {
            const size_t reach = (window.kernel[axis] - 1) * window.dilation[axis];
            if (window.stride[axis] != 1 || window.pad_begin[axis]
                || window.out[axis] + reach != window.sizes[axis])
                return false;
        }
        return window.input_size() % ALIAS_STRIDE != 0;
    }

    size_t grids() const { return window.kernel[0] * rows.phases.size() * columns.phases.size(); }

    // Return the length of the padding that the end of a row shares with the start of the next.
    size_t shared(const OutputBlock& block) const
    {
        if (window.stride[2] != 1 || block.columns != window.out[2])
            return 0;
        const ptrdiff_t first = window.pad_begin[2], reach = columns.reach,
                        needed = block.columns + reach;
        const ptrdiff_t behind = needed - first - static_cast<ptrdiff_t>(window.sizes[2]);
        return std::max<ptrdiff_t>(0, std::min({first, behind, reach}));
    }

    // Return a block whose packed input stays in the L2 cache.
    OutputBlock first(size_t channels) const
    {
        const size_t floats_per_channel =
            std::max<size_t>(1, L2_FLOATS / std::max<size_t>(1, channels * grids()));
        const size_t width = window.out[2] + columns.reach;
        OutputBlock block{0, 0, 1, 0, window.out[2]};
        if (floats_per_channel / width > rows.reach)
            block.rows = std::min(window.out[1], floats_per_channel / width - rows.reach);
        else if (floats_per_channel / (1 + rows.reach) < width)
            block.columns = std::min(block.columns,
                                     std::max(floats_per_channel / (1 + rows.reach), 2 * WIDEST));
        return block;
    }

    size_t first_place(const OutputBlock& block) const
    {
        return (block.depth * window.sizes[1] + block.row) * window.sizes[2] + block.column;
    }

    PackedInput direct(const OutputBlock& block) const
    {
        const size_t row = window.sizes[2], plane = row * window.sizes[1];
        PackedInput packed_input{
            nullptr, window.input_size(), row, (block.rows - 1) * row + block.columns, {}};
        for (size_t d = 0; d < window.kernel[0]; ++d)
            for (size_t r = 0; r < window.kernel[1]; ++r)
                for (size_t c = 0; c < window.kernel[2]; ++c)
                    packed_input.shifts.push_back(d * window.dilation[0] * plane
                                          + r * window.dilation[1] * row + c * window.dilation[2]);
        return packed_input;
    }

    PackedInput packed(const OutputBlock& block) const
    {
        const size_t pitch = block.columns + columns.reach - shared(block);
        const size_t grid = (block.rows + rows.reach) * pitch;
        size_t channel = grids() * grid + shared(block);
        channel += channel % ALIAS_STRIDE < 16 ? 16 : 0;
        PackedInput packed_input{
            nullptr, channel, pitch, (block.rows - 1) * pitch + block.columns, {}};
        for (size_t d = 0; d < window.kernel[0]; ++d)
            for (size_t r = 0; r < window.kernel[1]; ++r)
                for (size_t c = 0; c < window.kernel[2]; ++c) {
                    const size_t phase = (d * rows.phases.size() + rows.phase_index[r])
                                             * columns.phases.size() + columns.phase_index[c];
                    packed_input.shifts.push_back(phase * grid + rows.shift[r] * pitch
                                                  + columns.shift[c]);
                }
        return packed_input;
    }

    // Return how a channel of x is packed: one grid for each phase, as `packed` lays them out.
    std::vector<Grid> grids_of(const OutputBlock& block, const PackedInput& packed_input) const
    {
        const size_t row_count = block.rows + rows.reach, row = window.sizes[2];
        const auto along = [&](size_t axis, size_t first, ptrdiff_t phase, size_t count) {
            const ptrdiff_t step = window.stride[axis];
            return ValidRange(static_cast<ptrdiff_t>(first) * step - window.pad_begin[axis] + phase,
                              step, window.sizes[axis], count);
        };
        std::vector<Grid> grids;
        for (size_t tap = 0; tap < window.kernel[0]; ++tap) {
            const ptrdiff_t shift = static_cast<ptrdiff_t>(tap) * window.dilation[0];
            const ValidRange depths = along(0, block.depth, shift, 1);
            for (const ptrdiff_t row_phase : rows.phases) {
                const ValidRange rows_range = along(1, block.row, row_phase, row_count);
                for (const ptrdiff_t phase : columns.phases) {
                    const ValidRange columns_range =
                        along(2, block.column, phase, packed_input.pitch);
                    Grid grid{(depths.end - depths.from) * (rows_range.end - rows_range.from),
                              columns_range.end - columns_range.from, 0, 0};
                    grid.is_full = grid.rows == row_count && grid.columns == packed_input.pitch;
                    grid.to = rows_range.from * packed_input.pitch + columns_range.from;
                    if (grid.rows && grid.columns)
                        grid.from =
                            (depths.place(0) * window.sizes[1] + rows_range.place(rows_range.from))
                                * row
                            + columns_range.place(columns_range.from);
                    else
                        grid.rows = 0;
                    grids.push_back(grid);
                }
            }
        }
        return grids;
    }

    template <ptrdiff_t STEP>
    void copy_rows(const Grid& grid, const PackedInput& packed_input, const float* x,
                   float* to) const
    {
        const size_t packed = window.stride[1] * window.sizes[2];
        for (size_t row = 0; row < grid.rows; ++row)
            copy_strided<STEP>(to + grid.to + row * packed_input.pitch,
                               x + grid.from + row * packed, grid.columns, window.stride[2]);
    }

    // Pack one channel of x.
    void pack_channel(const std::vector<Grid>& grids, const OutputBlock& block,
                      const PackedInput& packed_input, const float* x, float fill, float* to) const
    {
        const size_t size = (block.rows + rows.reach) * packed_input.pitch;
        for (const Grid& grid : grids) {
            if (!grid.is_full)
                std::fill(to, to + size, fill);
            switch (window.stride[2]) {
            case 1: copy_rows<1>(grid, packed_input, x, to); break;
            case 2: copy_rows<2>(grid, packed_input, x, to); break;
            default: copy_rows<0>(grid, packed_input, x, to);
            }
            to += size;
        }
        std::fill(to, to + shared(block), fill);
    }
};

// Call with each block of the results.
template <class Call>
INLINED void for_each_block(const Window& window, OutputBlock block, Call call)
{
    const size_t rows = block.rows, columns = block.columns;
    for (block.depth = 0; block.depth < window.out[0]; ++block.depth)
        for (block.row = 0; block.row < window.out[1]; block.row += rows)
            for (block.column = 0; block.column < window.out[2]; block.column += columns) {
                block.rows = std::min(rows, window.out[1] - block.row);
                block.columns = std::min(columns, window.out[2] - block.column);
                call(block);
            }
}

// Call with (first result, vectors) of tiles that cover `count` results. The last tile ends at
// `count` and may overlap the one before.
template <class Call>
INLINED void for_each_tile(size_t count, size_t max_vectors, Call call)
{
    size_t vectors = (count + LANES - 1) / LANES;
    for (size_t at = 0; vectors; ) {
        const size_t tiles = (vectors + max_vectors - 1) / max_vectors,
                     vectors_of_tile = (vectors + tiles - 1) / tiles;
        const size_t width = vectors_of_tile * LANES, end = at + width;
        call(end > count && count >= width ? count - width : at, vectors_of_tile);
        at = end;
        vectors -= vectors_of_tile;
    }
}
