// Windows of one place, 1 x 1: all products read x where it lies.

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
