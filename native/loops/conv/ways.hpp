// Windows of x as loops compute them, compiled for LANES values in a vector and ROWS output channels
// times COLUMNS vectors in registers. Included by conv.cpp, in a namespace for each.
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

// -- x as vectors ---------------------------------------------------------------------------------

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

// -- sums -----------------------------------------------------------------------------------------

INLINED Vector of_both(Mask which, Vector a, Vector b) { return which ? a : b; }

// As that of one value: of NaN neither holds, and of equal zeros the second one is taken.
INLINED Vector within(Vector x, float low, float high)
{
#ifdef LARGER
    return SMALLER(all(high), LARGER(all(low), x));
#else
    x = of_both(x < low, all(low), x);
    return of_both(x > high, all(high), x);
#endif
}

// Where the rows of a tile go: results of one channel after the other, the last vector of each
// `last` behind the first. residual: null, or rows that lie alike; bounds: null where steps follow.
struct Rows {
    float* first;
    size_t apart, last;
    const Bounds* bounds;
    const float* residual;
};

// The sums of R output channels and V vectors of results, from the bias on.
template <size_t R, size_t V>
void products(const Area& area, size_t channels, const void* weights, const float* bias,
              const float* x, const Rows& made)
{
    const size_t taps = area.shifts.size(), row = channels * taps, last = made.last;
    const auto place = [=](size_t v) { return v + 1 < V ? v * LANES : last; };
    Vector sums[R][V];
#pragma GCC unroll 8
    for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (size_t v = 0; v < V; ++v)
            sums[r][v] = all(bias[r]);
    const size_t* shifts = area.shifts.data();
    const Anywhere* w = static_cast<const Anywhere*>(weights);
    for (size_t channel = 0; channel < channels; ++channel, x += area.channel)
        for (size_t tap = 0; tap < taps; ++tap, ++w) {
            const float* at = x + shifts[tap];
            Vector from[V];
#pragma GCC unroll 8
            for (size_t v = 0; v < V; ++v)
                from[v] = load(at + place(v));
#pragma GCC unroll 8
            for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
                for (size_t v = 0; v < V; ++v)
                    sums[r][v] += from[v] * w[r * row];
        }
    if (made.residual)
#pragma GCC unroll 8
        for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (size_t v = 0; v < V; ++v)
                sums[r][v] += load(made.residual + r * made.apart + place(v));
    if (made.bounds && made.bounds->bounded)
#pragma GCC unroll 8
        for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (size_t v = 0; v < V; ++v)
                sums[r][v] = within(sums[r][v], made.bounds->low, made.bounds->high);
#pragma GCC unroll 8
    for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (size_t v = 0; v < V; ++v)
            store(made.first + r * made.apart + place(v), sums[r][v]);
}

using Products = void (*)(const Area&, size_t, const void*, const float*, const float*,
                          const Rows&);

template <size_t R, size_t... V>
constexpr std::array<Products, sizeof...(V)> of_rows(std::index_sequence<V...>)
{
    return {products<R, V + 1>...};
}

template <size_t... R>
constexpr std::array<Products, sizeof...(R)> of_wider(std::index_sequence<R...>)
{
    return {products<R + 1, COLUMNS + 1>...};
}

// For R output channels: ROWS times COLUMNS sums in registers, FEWER rows of a vector more, or one row
// of MOST_VECTORS.
template <size_t... R>
Products products_of(size_t rows, size_t vectors, std::index_sequence<R...>)
{
    static constexpr std::array<Products, COLUMNS> all[] = {
        of_rows<R + 1>(std::make_index_sequence<COLUMNS>())...};
    static constexpr auto wider = of_wider(std::make_index_sequence<FEWER>());
    static constexpr auto one = of_rows<1>(std::make_index_sequence<MOST_VECTORS>());
    if (rows == 1)
        return one[vectors - 1];
    return vectors > COLUMNS ? wider[rows - 1] : all[rows - 1][vectors - 1];
}

template <Pooling KIND, size_t V>
void pooled(const Area& area, const float* x, float* made)
{
    constexpr float least = -std::numeric_limits<float>::infinity();
    Vector found[V];
    for (size_t v = 0; v < V; ++v)
        found[v] = KIND == LARGEST ? Vector{} + least : Vector{};
    for (const size_t shift : area.shifts)
#pragma GCC unroll 8
        for (size_t v = 0; v < V; ++v) {
            const Vector value = load(x + shift + v * LANES);
            if (KIND == MEAN)
                found[v] += value;
            else // NaN wins
                found[v] = of_both((value > found[v]) | (value != value), value, found[v]);
        }
    for (size_t v = 0; v < V; ++v)
        store(made + v * LANES, found[v]);
}

using Pooled = void (*)(const Area&, const float*, float*);

template <Pooling KIND, size_t... V>
Pooled pooled_of(size_t vectors, std::index_sequence<V...>)
{
    static constexpr Pooled all[] = {pooled<KIND, V + 1>...};
    return all[vectors - 1];
}

// -- results --------------------------------------------------------------------------------------

// The registers of a convolution's steps: WIDEST values each, the first ones a residual's.
struct Ending {
    const Conv& conv;
    std::optional<Bounds> bounds; // where that is all
    std::vector<float> values;
    std::vector<const float*> at;
    std::vector<float*> to; // of each step

    explicit Ending(const Conv& given) : conv(given), bounds(bounds_of(*given.steps))
    {
        const Steps& told = *conv.steps;
        values.resize((1 + told.constants.size() + told.steps.size()) * WIDEST);
        float* free = values.data();
        at.assign(told.operands, free);
        for (const float constant : told.constants) {
            at.push_back(free += WIDEST);
            std::fill(free, free + WIDEST, constant);
        }
        for (size_t number = 0; number < told.steps.size(); ++number) {
            to.push_back(free += WIDEST);
            at.push_back(free);
        }
    }
};

// Takes the steps on `count` sums, in their place: the last one reads each before it writes it.
INLINED void take_all(Ending& ending, const float* beside, float* made, size_t count)
{
    const Steps& told = *ending.conv.steps;
    if (told.steps.empty())
        return;
    ending.at[0] = made;
    if (told.operands == 2)
        ending.at[1] = beside;
    ending.to.back() = made;
    for (size_t number = 0; number < told.steps.size(); ++number) {
        const ChainStep& step = told.steps[number];
        take(step, ending.at[step.a], ending.at[step.b], ending.at[step.c], ending.to[number],
             count);
    }
}

// Calls with (in the tile, in the plane of results, floats) of the rows that a tile covers.
template <class Call>
INLINED void each_run(const Window& window, const Part& part, size_t pitch, size_t first,
                      size_t count, Call call)
{
    const size_t start = (part.depth * window.out[1] + part.row) * window.out[2] + part.column;
    if (pitch == window.out[2]) { // rows lie in x as in the result
        call(0, start + first, count);
        return;
    }
    size_t row = first / pitch, column = first % pitch;
    for (size_t at = 0; at < count && row < part.rows; ++row, column = 0) {
        const size_t run = std::min(count - at, pitch - column);
        if (column < part.columns)
            call(at, start + row * window.out[2] + column, std::min(run, part.columns - column));
        at += run;
    }
}

// The results of a channel that a tile has: from `first` on, as many as are of use.
struct Tile {
    size_t channel, first, count;
};

// Takes the steps on a tile in scratch memory, and puts its rows into their places.
INLINED void end_apart(Ending& ending, const Part& part, const Area& area, const Tile& tile,
                       float* made)
{
    const Conv& conv = ending.conv;
    const size_t plane = tile.channel * conv.window.results();
    float* beside = ending.values.data();
    if (conv.residual)
        each_run(conv.window, part, area.pitch, tile.first, tile.count,
                 [&](size_t at, size_t place, size_t run) {
                     copy(beside + at, conv.residual + plane + place, run);
                 });
    take_all(ending, beside, made, tile.count);
    each_run(conv.window, part, area.pitch, tile.first, tile.count,
             [&](size_t at, size_t place, size_t run) {
                 copy(conv.out + plane + place, made + at, run);
             });
}

// x of one part as the kernels read it, some groups at a time: what is written is read a while later,
// as processors hand a vector over at once only where one store wrote all of it.
struct Reader {
    const Layout& layout;
    const Part& part;
    size_t channels;
    float fill;
    Area area;
    std::vector<Grid> grids;
    size_t batch = 1;    // groups
    float* to = nullptr; // null where x itself is read

    // least: vectors of the widest tile, of which none may reach beyond x.
    Reader(const Layout& layout, const Part& part, size_t channels, size_t least, float fill)
      : layout(layout), part(part), channels(channels), fill(fill), area(layout.ready(part))
    {
        if (layout.lies_ready() && area.count >= least * LANES)
            return;
        area = layout.apart(part);
        grids = layout.grids_of(part, area);
        batch = std::max<size_t>(1, FEW / (channels * area.channel));
        to = scratch(batch * channels * area.channel + WIDEST);
    }

};

// Calls with each group and its area. x: of the first one.
template <class Call>
INLINED void each_group(Reader& reader, const float* x, size_t groups, Call call)
{
    const size_t planes = reader.layout.window.planes();
    for (size_t first = 0; first < groups; first += reader.batch) {
        const size_t count = std::min(reader.batch, groups - first);
        for (size_t channel = 0; reader.to && channel < count * reader.channels; ++channel)
            reader.layout.spread(reader.grids, reader.part, reader.area,
                               x + (first * reader.channels + channel) * planes, reader.fill,
                               reader.to + channel * reader.area.channel);
        for (size_t group = first; group < first + count; ++group) {
            reader.area.x = reader.to
                ? reader.to + (group - first) * reader.channels * reader.area.channel
                : x + group * reader.channels * planes + reader.layout.first_place(reader.part);
            call(group);
        }
    }
}

// Asks for the weights of the next rows, as far as this tile is of all: they come while it is computed.
INLINED void ask_ahead(const Anywhere* w, size_t count, const Tile& tile, size_t of)
{
    constexpr size_t line = 16;
    const Anywhere* end = w + count * (tile.first + tile.count) / of;
    for (const Anywhere* at = w + count * tile.first / of; at < end; at += line)
        __builtin_prefetch(at);
}

// The results of one group in a part: ROWS channels at a time, tile after tile.
INLINED void convolve_group(Ending& ending, const Part& part, const Area& area, size_t group)
{
    const Conv& conv = ending.conv;
    const size_t rows = std::min(ROWS, conv.results), most = rows == 1 ? MOST_VECTORS : COLUMNS;
    const size_t plane = conv.window.results(), steps = conv.channels * conv.window.taps();
    const bool dense = area.pitch == conv.window.out[2]; // the tile lies in the result as in x
    const size_t start = (part.depth * conv.window.out[1] + part.row) * conv.window.out[2]
        + part.column;
    constexpr float none[ROWS] = {};
    alignas(64) float made[ROWS * WIDEST];
    for (size_t row = 0; row < conv.results; row += rows) {
        const size_t own = std::min(rows, conv.results - row), channel = group * conv.results + row;
        const float* bias = conv.bias ? conv.bias + channel : none;
        each_tile(area.count, most, [&](size_t first, size_t vectors) {
            const size_t count = std::min(vectors * LANES, area.count - first);
            const bool direct = dense && count == vectors * LANES;
            float* out = conv.out + channel * plane + start + first;
            const size_t left = conv.results - row - own;
            ask_ahead(conv.w + (channel + own) * steps, std::min(left, rows) * steps,
                      {channel, first, count}, area.count);
            const float* beside = conv.residual ? conv.residual + (out - conv.out) : nullptr;
            const Bounds* bounds = direct && ending.bounds ? &*ending.bounds : nullptr;
            const size_t last = (vectors - 1) * LANES;
            products_of(own, vectors, std::make_index_sequence<ROWS>())(
                area, conv.channels, conv.w + channel * steps, bias, area.x + first,
                direct ? Rows{out, plane, last, bounds, bounds ? beside : nullptr}
                       : Rows{made, WIDEST, last, nullptr, nullptr});
            for (size_t r = 0; r < own && !bounds; ++r)
                if (!direct)
                    end_apart(ending, part, area, {channel + r, first, count}, made + r * WIDEST);
                else
                    take_all(ending, beside ? beside + r * plane : nullptr, out + r * plane, count);
        });
    }
}

// -- windows of one place -------------------------------------------------------------------------

// Calls with (first place, vectors, where the last one lies) of tiles; the last vector of all ends
// where the places do.
template <class Call>
INLINED void each_span(size_t count, Call call)
{
    size_t vectors = (count + LANES - 1) / LANES;
    const size_t most = FEWER && vectors == COLUMNS + 1 ? vectors : COLUMNS;
    for (size_t at = 0; vectors;) {
        const size_t tiles = (vectors + most - 1) / most, own = (vectors + tiles - 1) / tiles;
        const size_t first = std::min(at, count - LANES);
        call(first, own, std::min((own - 1) * LANES, count - LANES - first));
        at += own * LANES;
        vectors -= own;
    }
}

// The places of one group from `start` on. They meet all weights while a cache holds them.
INLINED void convolve_places(Ending& ending, size_t group, size_t start, size_t count)
{
    const Conv& conv = ending.conv;
    const size_t plane = conv.window.planes(), channels = conv.channels;
    const Bounds* bounds = ending.bounds ? &*ending.bounds : nullptr;
    constexpr float none[ROWS] = {};
    Area area{conv.x + group * channels * plane + start, plane, plane, count, {0}};
    if (plane % CROWD == 0) {
        float* to = scratch(channels * count);
        for (size_t channel = 0; channel < channels; ++channel)
            copy(to + channel * count, area.x + channel * plane, count);
        area.x = to;
        area.channel = count;
    }
    const size_t most = (count + LANES - 1) / LANES == COLUMNS + 1 && FEWER ? FEWER : ROWS;
    for (size_t row = 0, own; row < conv.results; row += own) {
        const size_t left = conv.results - row, turns = (left + most - 1) / most;
        own = (left + turns - 1) / turns;
        const size_t channel = group * conv.results + row;
        const Anywhere* w = conv.w + channel * channels;
        if (start == conv.start)
            ask_ahead(w + own * channels, std::min(left - own, own) * channels, {0, 0, 1}, 1);
        each_span(count, [&](size_t first, size_t vectors, size_t last) {
            float* out = conv.out + channel * plane + start + first;
            const float* beside = conv.residual ? conv.residual + (out - conv.out) : nullptr;
            products_of(own, vectors, std::make_index_sequence<ROWS>())(
                area, channels, w, conv.bias ? conv.bias + channel : none, area.x + first,
                {out, plane, last, bounds, bounds ? beside : nullptr});
            for (size_t r = 0; r < own && !bounds; ++r)
                take_all(ending, beside ? beside + r * plane : nullptr, out + r * plane,
                         last + LANES);
        });
    }
}

void convolve_points(const Conv& conv)
{
    Ending ending(conv);
    constexpr size_t tile = COLUMNS * LANES;
    const size_t block = std::max<size_t>(1, BLOCK / conv.channels / tile) * tile;
    for (size_t group = 0; group < conv.groups; ++group)
        for (size_t done = 0, own; done < conv.count; done += own) {
            own = conv.count - done <= block + LANES ? conv.count - done : block;
            convolve_places(ending, group, conv.start + done, own);
        }
}

// -- all windows ----------------------------------------------------------------------------------

bool is_abreast(const Conv& conv);
void convolve_abreast(const Conv& conv);

void convolve(const Conv& conv)
{
    if (conv.window.is_pointwise() && conv.results > 1 && conv.count >= LANES)
        return convolve_points(conv);
    if (is_abreast(conv))
        return convolve_abreast(conv);
    const Layout layout(conv.window);
    const size_t most = conv.results == 1 ? MOST_VECTORS : COLUMNS;
    each_part(conv.window, layout.first(conv.channels), [&](const Part& part) {
        Ending ending(conv);
        Reader reader(layout, part, conv.channels, most, 0.0f);
        each_group(reader, conv.x, conv.groups, [&](size_t group) {
            convolve_group(ending, part, reader.area, group);
        });
    });
}

// How many places each result of a part counts.
INLINED std::vector<float> counted(const Pool& pool, const Part& part, const Area& area)
{
    std::vector<float> counts(area.count + WIDEST, 1.0f);
    for (size_t row = 0; row < part.rows; ++row)
        for (size_t column = 0; column < part.columns; ++column)
            counts[row * area.pitch + column] =
                std::max(1.0f, pool.counts[0][part.depth] * pool.counts[1][part.row + row]
                                   * pool.counts[2][part.column + column]);
    return counts;
}

template <Pooling KIND>
INLINED void pool_planes(const Pool& pool)
{
    const Layout layout(pool.window);
    constexpr float fill = KIND == LARGEST ? -std::numeric_limits<float>::infinity() : 0.0f;
    const size_t to = pool.window.results();
    alignas(64) float made[WIDEST];
    each_part(pool.window, layout.first(1), [&](const Part& part) {
        Reader reader(layout, part, 1, MOST_VECTORS, fill);
        const Area& area = reader.area;
        const auto counts = KIND == MEAN ? counted(pool, part, area) : std::vector<float>{};
        each_group(reader, pool.x, pool.planes, [&](size_t plane) {
            each_tile(area.count, MOST_VECTORS, [&](size_t first, size_t vectors) {
                pooled_of<KIND>(vectors, std::make_index_sequence<MOST_VECTORS>())(
                    area, area.x + first, made);
                const size_t width = vectors * LANES;
                if (KIND == MEAN)
                    each_value(made, width, [&](size_t i) { return made[i] / counts[first + i]; });
                each_run(pool.window, part, area.pitch, first,
                         std::min(width, area.count - first),
                         [&](size_t at, size_t place, size_t run) {
                             copy(pool.out + plane * to + place, made + at, run);
                         });
            });
        });
    });
}

void combine(const Pool& told)
{
    if (told.kind == LARGEST)
        pool_planes<LARGEST>(told);
    else
        pool_planes<MEAN>(told);
}
