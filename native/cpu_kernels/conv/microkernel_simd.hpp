// Sums of windows: ROWS output channels times COLUMNS vectors of results in registers; and the largest
// values or means of windows.

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
