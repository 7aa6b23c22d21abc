// Convolutions of channels with weights of their own (depthwise), LANES channels abreast: a vector
// holds one place of them all, so no stride, dilation or short row leaves a part of it empty.
//
//   x  (channels, places)  --turned-->  (places and padding, LANES)     some rows at a time
//   result                 <--turned--  (places, LANES)

// Alternately lanes of a and b: their first halves, or from lane FIRST on.
template <size_t FIRST, size_t... I>
INLINED Vector mixed(Vector a, Vector b, std::index_sequence<I...>)
{
    return __builtin_shufflevector(a, b, (FIRST + I / 2 + I % 2 * LANES)...);
}

// Rows become columns.
INLINED void turn(Vector (&rows)[LANES])
{
    constexpr auto lanes = std::make_index_sequence<LANES>();
#pragma GCC unroll 8
    for (size_t done = 1; done < LANES; done *= 2) {
        Vector made[LANES];
#pragma GCC unroll 16
        for (size_t i = 0; i < LANES / 2; ++i) {
            made[2 * i] = mixed<0>(rows[i], rows[i + LANES / 2], lanes);
            made[2 * i + 1] = mixed<LANES / 2>(rows[i], rows[i + LANES / 2], lanes);
        }
#pragma GCC unroll 16
        for (size_t i = 0; i < LANES; ++i)
            rows[i] = made[i];
    }
}

// How a part of x is turned. Blocks of LANES neighbouring places, of which `to` says where each goes;
// what is not of the part goes to a place that nobody reads.
struct Turning {
    std::vector<size_t> first, to;
};

// A part of the results, with room for x around them.
struct Field {
    const Window& window;
    Part part;
    size_t width, height; // of x with its padding
    Inside down, across;  // rows and columns of it that x has

    Field(const Window& window, const Part& part)
      : window(window), part(part), width(reach(2, part.columns)), height(reach(1, part.rows)),
        down(inside(1, part.row, height)), across(inside(2, part.column, width))
    {
    }

    size_t reach(size_t axis, size_t count) const
    {
        return (count - 1) * window.stride[axis] + (window.kernel[axis] - 1) * window.dilation[axis]
            + 1;
    }

    Inside inside(size_t axis, size_t first, size_t count) const
    {
        return Inside(static_cast<ptrdiff_t>(first) * window.stride[axis] - window.begin[axis], 1,
                      window.sizes[axis], count);
    }

    size_t places() const { return width * height; }

    // Rows that x has are one run of places where they are whole.
    Turning turning() const
    {
        Turning made;
        if (down.from == down.end || across.from == across.end)
            return made;
        const size_t row = window.sizes[2], top = down.place(down.from), left = across.place(across.from);
        const size_t rows = down.end - down.from, columns = across.end - across.from;
        const size_t runs = columns == row ? 1 : rows, run = columns == row ? rows * row : columns;
        const size_t last = window.planes() - LANES;
        for (size_t number = 0; number < runs; ++number)
            for (size_t at = 0; at < run; at += LANES) {
                const size_t first = std::min((top + number) * row + left + at, last);
                made.first.push_back(first);
                for (size_t place = first; place < first + LANES; ++place) {
                    const size_t down_by = place / row - top, across_by = place % row - left;
                    const bool is_inside = place / row >= top && down_by < rows
                        && place % row >= left && across_by < columns;
                    made.to.push_back(is_inside ? (down.from + down_by) * width + across.from + across_by
                                                : places());
                }
            }
        return made;
    }
};

// LANES channels of a part of x, `plane` floats apart.
INLINED void turn_in(const Field& field, const Turning& turning, const float* x, size_t plane,
                     float* to)
{
    if (plane < LANES) {
        for (size_t row = field.down.from; row < field.down.end; ++row)
            for (size_t column = field.across.from; column < field.across.end; ++column) {
                const size_t place = field.down.place(row) * field.window.sizes[2]
                    + field.across.place(column);
                for (size_t lane = 0; lane < LANES; ++lane)
                    to[(row * field.width + column) * LANES + lane] = x[lane * plane + place];
            }
        return;
    }
    const size_t* at = turning.to.data();
    for (const size_t first : turning.first) {
        Vector rows[LANES];
#pragma GCC unroll 16
        for (size_t lane = 0; lane < LANES; ++lane)
            rows[lane] = load(x + lane * plane + first);
        turn(rows);
#pragma GCC unroll 16
        for (size_t lane = 0; lane < LANES; ++lane)
            store(to + *at++ * LANES, rows[lane]);
    }
}

// `count` places of results, LANES channels that are `plane` floats apart.
INLINED void turn_out(const float* from, size_t count, float* out, size_t plane)
{
    if (count < LANES) {
        for (size_t lane = 0; lane < LANES; ++lane)
            for (size_t place = 0; place < count; ++place)
                out[lane * plane + place] = from[place * LANES + lane];
        return;
    }
    each_of(LANES, count, [&](size_t at) {
        Vector rows[LANES];
#pragma GCC unroll 16
        for (size_t lane = 0; lane < LANES; ++lane)
            rows[lane] = load(from + (at + lane) * LANES);
        turn(rows);
#pragma GCC unroll 16
        for (size_t lane = 0; lane < LANES; ++lane)
            store(out + lane * plane + at, rows[lane]);
    });
}

// What LANES channels are computed by: shifts of x for each tap, and the taps' weights.
struct Abreast {
    std::vector<size_t> shifts;
    std::vector<float> w;
    Vector bias;
    const Bounds* bounds;
    size_t step; // floats of x from a result to the next one
};

// C neighbouring results. STEP, ACROSS: places from a result to the next one and neighbouring taps
// of a row, so that what several results read is read once; or none, for any.
template <size_t C, size_t STEP, size_t ACROSS>
void sum_places(const Abreast& told, const float* x, float* out)
{
    constexpr size_t taps = ACROSS ? ACROSS : 1, read = ACROSS ? (C - 1) * STEP + ACROSS : C;
    const size_t apart = ACROSS ? LANES : told.step;
    Vector sums[C];
#pragma GCC unroll 8
    for (size_t c = 0; c < C; ++c)
        sums[c] = told.bias;
    const float* w = told.w.data();
    const size_t* end = told.shifts.data() + told.shifts.size();
    for (const size_t* shift = told.shifts.data(); shift < end; shift += taps, w += taps * LANES) {
        Vector from[read];
#pragma GCC unroll 32
        for (size_t place = 0; place < read; ++place)
            from[place] = load(x + *shift + place * apart);
#pragma GCC unroll 8
        for (size_t tap = 0; tap < taps; ++tap)
#pragma GCC unroll 8
            for (size_t c = 0; c < C; ++c)
                sums[c] += from[c * (ACROSS ? STEP : 1) + tap] * load(w + tap * LANES);
    }
    if (told.bounds)
#pragma GCC unroll 8
        for (size_t c = 0; c < C; ++c)
            sums[c] = within(sums[c], told.bounds->low, told.bounds->high);
#pragma GCC unroll 8
    for (size_t c = 0; c < C; ++c)
        store(out + c * LANES, sums[c]);
}

constexpr size_t TOGETHER = LANES == 16 ? 8 : 4;
using Summing = void (*)(const Abreast&, const float*, float*);
using Table = std::array<Summing, TOGETHER>;

template <size_t STEP, size_t ACROSS, size_t... C>
constexpr Table sums_of(std::index_sequence<C...>)
{
    return {sum_places<C + 1, STEP, ACROSS>...};
}

// Those of windows that are ACROSS taps wide, next to each other.
template <size_t ACROSS>
INLINED const Table& sums_across(size_t stride)
{
    constexpr auto counts = std::make_index_sequence<TOGETHER>();
    static constexpr Table one = sums_of<1, ACROSS>(counts), two = sums_of<2, ACROSS>(counts);
    return stride == 1 ? one : two;
}

INLINED const Table& sums_for(const Window& window)
{
    static constexpr Table any = sums_of<0, 0>(std::make_index_sequence<TOGETHER>());
    const bool shares = window.dilation[2] == 1 && window.stride[2] <= 2;
    switch (shares ? window.kernel[2] : 0) {
    case 3: return sums_across<3>(window.stride[2]);
    case 5: return sums_across<5>(window.stride[2]);
    default: return any;
    }
}

INLINED void sum_row(const Table& sums, const Abreast& told, const float* x, float* out,
                     size_t count)
{
    for (size_t at = 0, own; at < count; at += own) {
        const size_t turns = (count - at + TOGETHER - 1) / TOGETHER;
        own = (count - at + turns - 1) / turns;
        sums[own - 1](told, x + at * told.step, out + at * LANES);
    }
}

// Takes the steps on what a part of a channel has become.
INLINED void end_abreast(Ending& ending, const Part& part, size_t channel)
{
    const Conv& conv = ending.conv;
    const size_t row = conv.window.out[2], whole = part.columns == row ? part.rows : 1;
    for (size_t line = 0; line < part.rows; line += whole) {
        const size_t start = channel * conv.window.results() + (part.row + line) * row + part.column;
        for (size_t at = 0, count = part.columns * whole; at < count; at += WIDEST)
            take_all(ending, conv.residual ? conv.residual + start + at : nullptr,
                     conv.out + start + at, std::min(WIDEST, count - at));
    }
}

// Rows and columns of results whose x and themselves stay in a cache.
INLINED Part part_abreast(const Window& window)
{
    Part part{0, 0, window.out[1], 0, window.out[2]};
    const auto fits = [&] {
        return (Field(window, part).places() + part.rows * part.columns) * LANES <= BAND;
    };
    while (part.rows > 1 && !fits())
        part.rows = (part.rows + 1) / 2;
    while (part.columns > LANES && !fits())
        part.columns = std::max(LANES, part.columns / 2);
    return part;
}

// Whether each channel has weights of its own, and there are enough of them.
bool is_abreast(const Conv& conv)
{
    const Window& window = conv.window;
    return conv.channels == 1 && conv.results == 1 && conv.groups >= LANES && window.sizes[0] == 1
        && window.kernel[0] == 1 && window.out[0] == 1 && window.begin[0] == 0;
}

void convolve_abreast(const Conv& conv)
{
    Ending ending(conv);
    const Window& window = conv.window;
    const bool simple = ending.bounds && !ending.bounds->adds;
    const size_t taps = window.taps(), plane = window.planes(), results = window.results();
    Abreast told{std::vector<size_t>(taps), std::vector<float>(taps * LANES), Vector{}, nullptr,
                 window.stride[2] * LANES};
    if (simple && ending.bounds->bounded)
        told.bounds = &*ending.bounds;
    const Table& sums = sums_for(window);
    each_part(window, part_abreast(window), [&](const Part& part) {
        const Field field(window, part);
        const Turning turning = plane < LANES ? Turning{} : field.turning();
        for (size_t tap = 0; tap < taps; ++tap)
            told.shifts[tap] = (tap / window.kernel[2] * window.dilation[1] * field.width
                                + tap % window.kernel[2] * window.dilation[2]) * LANES;
        const size_t room = (field.places() + 1) * LANES;
        float* x = scratch(room + part.rows * part.columns * LANES);
        float* made = x + room;
        std::fill(x, made, 0.0f);
        each_of(LANES, conv.groups, [&](size_t channel) {
            told.bias = conv.bias ? load(conv.bias + channel) : Vector{};
            for (size_t lane = 0; lane < LANES; ++lane)
                for (size_t tap = 0; tap < taps; ++tap)
                    told.w[tap * LANES + lane] = conv.w[(channel + lane) * taps + tap];
            turn_in(field, turning, conv.x + channel * plane, plane, x);
            const size_t down = window.stride[1] * field.width * LANES;
            for (size_t row = 0; row < part.rows; ++row)
                sum_row(sums, told, x + row * down, made + row * part.columns * LANES, part.columns);
            const size_t whole = part.columns == window.out[2] ? part.rows : 1;
            for (size_t row = 0; row < part.rows; row += whole)
                turn_out(made + row * part.columns * LANES, part.columns * whole,
                         conv.out + channel * results + (part.row + row) * window.out[2] + part.column,
                         results);
            for (size_t lane = 0; lane < LANES && !simple; ++lane)
                end_abreast(ending, part, channel + lane);
        });
    });
}
