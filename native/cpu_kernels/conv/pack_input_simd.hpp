// x as vectors read it, LANES values each.
//
// Phases of a stride are parted and padding is written out, for as many rows as a cache holds. So
// each tap of neighbouring results is a plain vector, whatever the stride, dilation and padding; a
// vector goes on from one row to the next.

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Mask __attribute__((vector_size(4 * LANES)));
typedef float Loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

constexpr size_t WIDEST = MOST_VECTORS * LANES;

INLINED Vector load(const float* from) { return *reinterpret_cast<const Loose*>(from); }

INLINED Vector all(float value) { return value - Vector{}; } // plus zeros would change -0

INLINED void store(float* to, Vector value) { *reinterpret_cast<Loose*>(to) = value; }

typedef float Few __attribute__((vector_size(16), aligned(4), may_alias));

// Calls with the first of each so many values; the last ones end where all do.
template <class Call>
INLINED void each_of(size_t lanes, size_t count, Call call)
{
    for (size_t at = 0; at + lanes < count; at += lanes)
        call(at);
    call(count - lanes);
}

INLINED void copy(float* to, const float* from, size_t count)
{
    if (count >= LANES)
        each_of(LANES, count, [=](size_t at) { store(to + at, load(from + at)); });
    else if (count >= 4)
        each_of(4, count, [=](size_t at) {
            *reinterpret_cast<Few*>(to + at) = *reinterpret_cast<const Few*>(from + at);
        });
    else
        for (size_t at = 0; at < count; ++at)
            to[at] = from[at];
}

// Every STEP-th value, or every `step`-th.
template <ptrdiff_t STEP>
INLINED void gather(float* __restrict to, const float* __restrict from, size_t count,
                    ptrdiff_t step)
{
    if (STEP == 1)
        return copy(to, from, count);
    for (size_t at = 0; at < count; ++at)
        to[at] = from[static_cast<ptrdiff_t>(at) * (STEP ? STEP : step)];
}

// Results before the first that lies `place` or further from the start of x's axis.
INLINED size_t before(ptrdiff_t place, ptrdiff_t step, size_t count)
{
    const ptrdiff_t at = place <= 0 ? 0 : (place + step - 1) / step;
    return std::min(static_cast<size_t>(at), count);
}

// The results along an axis that read x, from..end-1: result j reads place first + j * step.
struct Inside {
    ptrdiff_t first, step;
    size_t from, end;

    Inside(ptrdiff_t first, ptrdiff_t step, size_t size, size_t count)
      : first(first), step(step), from(before(-first, step, count)),
        end(std::max(from, before(static_cast<ptrdiff_t>(size) - first, step, count)))
    {
    }

    size_t place(size_t result) const { return first + static_cast<ptrdiff_t>(result) * step; }
};

// Where x goes in one phase: rows and columns of it, among padding where they are not all.
struct Grid {
    size_t rows, columns, from, to;
    bool is_all = false;
};

struct Layout {
    const Window& window;
    Taps rows, columns;

    explicit Layout(const Window& given)
      : window(given), rows(given.kernel[1], given.stride[1], given.dilation[1]),
        columns(given.kernel[2], given.stride[2], given.dilation[2])
    {
    }

    // Whether taps are plain shifts in x itself.
    bool lies_ready() const
    {
        for (size_t axis = 0; axis < AXES; ++axis) {
            const size_t reach = (window.kernel[axis] - 1) * window.dilation[axis];
            if (window.stride[axis] != 1 || window.begin[axis]
                || window.out[axis] + reach != window.sizes[axis])
                return false;
        }
        return window.planes() % PAGE != 0;
    }

    size_t grids() const { return window.kernel[0] * rows.phases.size() * columns.phases.size(); }

    // Zeros behind a row that are those before the next one, too.
    size_t shared(const Part& part) const
    {
        if (window.stride[2] != 1 || part.columns != window.out[2])
            return 0;
        const ptrdiff_t first = window.begin[2], reach = columns.reach, needed = part.columns + reach;
        const ptrdiff_t behind = needed - first - static_cast<ptrdiff_t>(window.sizes[2]);
        return std::max<ptrdiff_t>(0, std::min({first, behind, reach}));
    }

    // Rows and columns of a part, so that x of so many channels stays in a cache.
    Part first(size_t channels) const
    {
        const size_t each = std::max<size_t>(1, BAND / std::max<size_t>(1, channels * grids()));
        const size_t width = window.out[2] + columns.reach;
        Part part{0, 0, 1, 0, window.out[2]};
        if (each / width > rows.reach)
            part.rows = std::min(window.out[1], each / width - rows.reach);
        else if (each / (1 + rows.reach) < width)
            part.columns = std::min(part.columns, std::max(each / (1 + rows.reach), 2 * WIDEST));
        return part;
    }

    size_t first_place(const Part& part) const
    {
        return (part.depth * window.sizes[1] + part.row) * window.sizes[2] + part.column;
    }

    Area ready(const Part& part) const
    {
        const size_t row = window.sizes[2], plane = row * window.sizes[1];
        Area area{nullptr, window.planes(), row, (part.rows - 1) * row + part.columns, {}};
        for (size_t d = 0; d < window.kernel[0]; ++d)
            for (size_t r = 0; r < window.kernel[1]; ++r)
                for (size_t c = 0; c < window.kernel[2]; ++c)
                    area.shifts.push_back(d * window.dilation[0] * plane
                                          + r * window.dilation[1] * row + c * window.dilation[2]);
        return area;
    }

    Area apart(const Part& part) const
    {
        const size_t pitch = part.columns + columns.reach - shared(part);
        const size_t grid = (part.rows + rows.reach) * pitch;
        size_t channel = grids() * grid + shared(part);
        channel += channel % PAGE < 16 ? 16 : 0;
        Area area{nullptr, channel, pitch, (part.rows - 1) * pitch + part.columns, {}};
        for (size_t d = 0; d < window.kernel[0]; ++d)
            for (size_t r = 0; r < window.kernel[1]; ++r)
                for (size_t c = 0; c < window.kernel[2]; ++c) {
                    const size_t phase = (d * rows.phases.size() + rows.number[r])
                                             * columns.phases.size() + columns.number[c];
                    area.shifts.push_back(phase * grid + rows.shift[r] * pitch + columns.shift[c]);
                }
        return area;
    }

    // How a channel of x becomes what `apart` tells, a grid after the other.
    std::vector<Grid> grids_of(const Part& part, const Area& area) const
    {
        const size_t lines = part.rows + rows.reach, row = window.sizes[2];
        const auto along = [&](size_t axis, size_t first, ptrdiff_t phase, size_t count) {
            const ptrdiff_t step = window.stride[axis];
            return Inside(static_cast<ptrdiff_t>(first) * step - window.begin[axis] + phase, step,
                          window.sizes[axis], count);
        };
        std::vector<Grid> made;
        for (size_t tap = 0; tap < window.kernel[0]; ++tap) {
            const ptrdiff_t shift = static_cast<ptrdiff_t>(tap) * window.dilation[0];
            const Inside deep = along(0, part.depth, shift, 1);
            for (const ptrdiff_t row_phase : rows.phases) {
                const Inside down = along(1, part.row, row_phase, lines);
                for (const ptrdiff_t phase : columns.phases) {
                    const Inside across = along(2, part.column, phase, area.pitch);
                    Grid grid{(deep.end - deep.from) * (down.end - down.from),
                              across.end - across.from, 0, 0};
                    grid.is_all = grid.rows == lines && grid.columns == area.pitch;
                    grid.to = down.from * area.pitch + across.from;
                    if (grid.rows && grid.columns)
                        grid.from = (deep.place(0) * window.sizes[1] + down.place(down.from)) * row
                            + across.place(across.from);
                    else
                        grid.rows = 0;
                    made.push_back(grid);
                }
            }
        }
        return made;
    }

    template <ptrdiff_t STEP>
    void gather_rows(const Grid& grid, const Area& area, const float* x, float* to) const
    {
        const size_t apart = window.stride[1] * window.sizes[2];
        for (size_t row = 0; row < grid.rows; ++row)
            gather<STEP>(to + grid.to + row * area.pitch, x + grid.from + row * apart,
                         grid.columns, window.stride[2]);
    }

    // Writes one channel of x.
    void spread(const std::vector<Grid>& grids, const Part& part, const Area& area, const float* x,
                float fill, float* to) const
    {
        const size_t size = (part.rows + rows.reach) * area.pitch;
        for (const Grid& grid : grids) {
            if (!grid.is_all)
                std::fill(to, to + size, fill);
            switch (window.stride[2]) {
            case 1: gather_rows<1>(grid, area, x, to); break;
            case 2: gather_rows<2>(grid, area, x, to); break;
            default: gather_rows<0>(grid, area, x, to);
            }
            to += size;
        }
        std::fill(to, to + shared(part), fill);
    }
};

// Calls with each part of the results of a window.
template <class Call>
INLINED void each_part(const Window& window, Part part, Call call)
{
    const size_t rows = part.rows, columns = part.columns;
    for (part.depth = 0; part.depth < window.out[0]; ++part.depth)
        for (part.row = 0; part.row < window.out[1]; part.row += rows)
            for (part.column = 0; part.column < window.out[2]; part.column += columns) {
                part.rows = std::min(rows, window.out[1] - part.row);
                part.columns = std::min(columns, window.out[2] - part.column);
                call(part);
            }
}

// Calls with (first result, vectors) of tiles that cover `count` results, the last ones moved back
// so that they end there.
template <class Call>
INLINED void each_tile(size_t count, size_t most, Call call)
{
    size_t vectors = (count + LANES - 1) / LANES;
    for (size_t at = 0; vectors; ) {
        const size_t tiles = (vectors + most - 1) / most, own = (vectors + tiles - 1) / tiles;
        const size_t width = own * LANES, end = at + width;
        call(end > count && count >= width ? count - width : at, own);
        at = end;
        vectors -= own;
    }
}
