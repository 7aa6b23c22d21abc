// Microkernels: ROWS output channels times COLUMNS vectors of results in registers; and the maximum
// or sum of windows.

INLINED Vector select(Mask which, Vector a, Vector b) { return which ? a : b; }

// As the scalar clamp: NaN propagates, and of equal zeros the second operand is returned.
INLINED Vector clamp_vector(Vector x, float low, float high)
{
#ifdef VECTOR_MAX
    return VECTOR_MIN(broadcast(high), VECTOR_MAX(broadcast(low), x));
#else
    x = select(x < low, broadcast(low), x);
    return select(x > high, broadcast(high), x);
#endif
}

// The target of a tile: rows of one output channel each. last: offset of the last vector in a row.
// residual: null, or with the layout of the target. clamp: null if the epilogue runs later.
struct TileRows {
    float* first;
    size_t apart, last;
    const ClampEpilogue* clamp;
    const float* residual;
};

// Compute R output channels times V vectors of results, starting from the bias.
template <size_t R, size_t V>
void microkernel(const PackedInput& packed_input, size_t channels, const void* weights,
                 const float* bias, const float* x, const TileRows& rows)
{
    const size_t taps = packed_input.shifts.size(), weight_row = channels * taps, last = rows.last;
    const auto place = [=](size_t v) { return v + 1 < V ? v * LANES : last; };
    Vector sums[R][V];
#pragma GCC unroll 8
    for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (size_t v = 0; v < V; ++v)
            sums[r][v] = broadcast(bias[r]);
    const size_t* shifts = packed_input.shifts.data();
    const UnalignedFloat* w = static_cast<const UnalignedFloat*>(weights);
    for (size_t channel = 0; channel < channels; ++channel, x += packed_input.channel)
        for (size_t tap = 0; tap < taps; ++tap, ++w) {
            const float* at = x + shifts[tap];
            Vector inputs[V];
#pragma GCC unroll 8
            for (size_t v = 0; v < V; ++v)
                inputs[v] = load(at + place(v));
#pragma GCC unroll 8
            for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
                for (size_t v = 0; v < V; ++v)
                    sums[r][v] += inputs[v] * w[r * weight_row];
        }
    if (rows.residual)
#pragma GCC unroll 8
        for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (size_t v = 0; v < V; ++v)
                sums[r][v] += load(rows.residual + r * rows.apart + place(v));
    if (rows.clamp && rows.clamp->clamps)
#pragma GCC unroll 8
        for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (size_t v = 0; v < V; ++v)
                sums[r][v] = clamp_vector(sums[r][v], rows.clamp->low, rows.clamp->high);
#pragma GCC unroll 8
    for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (size_t v = 0; v < V; ++v)
            store(rows.first + r * rows.apart + place(v), sums[r][v]);
}

using Microkernel = void (*)(const PackedInput&, size_t, const void*, const float*, const float*,
                          const TileRows&);

template <size_t R, size_t... V>
constexpr std::array<Microkernel, sizeof...(V)> microkernels_of_rows(std::index_sequence<V...>)
{
    return {microkernel<R, V + 1>...};
}

template <size_t... R>
constexpr std::array<Microkernel, sizeof...(R)> wide_microkernels(std::index_sequence<R...>)
{
    return {microkernel<R + 1, COLUMNS + 1>...};
}

// Return the microkernel for a number of rows and vectors: up to ROWS times COLUMNS, WIDE_TILE_ROWS
// rows of COLUMNS + 1 vectors, or one row of MAX_VECTORS.
template <size_t... R>
Microkernel microkernel_for(size_t rows, size_t vectors, std::index_sequence<R...>)
{
    static constexpr std::array<Microkernel, COLUMNS> broadcast[] = {
        microkernels_of_rows<R + 1>(std::make_index_sequence<COLUMNS>())...};
    static constexpr auto avx2 = wide_microkernels(std::make_index_sequence<WIDE_TILE_ROWS>());
    static constexpr auto one_row =
        microkernels_of_rows<1>(std::make_index_sequence<MAX_VECTORS>());
    if (rows == 1)
        return one_row[vectors - 1];
    return vectors > COLUMNS ? avx2[rows - 1] : broadcast[rows - 1][vectors - 1];
}

template <PoolKind KIND, size_t V>
void pool_tile(const PackedInput& packed_input, const float* x, float* rows)
{
    constexpr float lowest = -std::numeric_limits<float>::infinity();
    Vector best[V];
    for (size_t v = 0; v < V; ++v)
        best[v] = KIND == MAX ? Vector{} + lowest : Vector{};
    for (const size_t shift : packed_input.shifts)
#pragma GCC unroll 8
        for (size_t v = 0; v < V; ++v) {
            const Vector value = load(x + shift + v * LANES);
            if (KIND == MEAN)
                best[v] += value;
            else // NaN propagates
                best[v] = select((value > best[v]) | (value != value), value, best[v]);
        }
    for (size_t v = 0; v < V; ++v)
        store(rows + v * LANES, best[v]);
}

using PoolKernel = void (*)(const PackedInput&, const float*, float*);

template <PoolKind KIND, size_t... V>
PoolKernel pool_kernel_for(size_t vectors, std::index_sequence<V...>)
{
    static constexpr PoolKernel broadcast[] = {pool_tile<KIND, V + 1>...};
    return broadcast[vectors - 1];
}
