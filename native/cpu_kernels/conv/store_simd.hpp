// From sums to results: the steps that follow a convolution, and where results go.

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
