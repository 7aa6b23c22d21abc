// Depthwise convolution of LANES channels at a time: a vector holds one position of all these
// channels, so that vectors are full for any stride, dilation and row length.
//
//   x  (channels, positions)  --transpose-->  (padded positions, LANES)     a block of rows
//   result                    <--transpose--  (positions, LANES)

// Interleave the lanes of a and b, from lane FIRST on.
template <size_t FIRST, size_t... I>
INLINED Vector interleave(Vector a, Vector b, std::index_sequence<I...>)
{
    return __builtin_shufflevector(a, b, (FIRST + I / 2 + I % 2 * LANES)...);
}

// Transpose a square of LANES vectors.
INLINED void transpose(Vector (&rows)[LANES])
{
    constexpr auto lanes = std::make_index_sequence<LANES>();
#pragma GCC unroll 8
    for (size_t done = 1; done < LANES; done *= 2) {
        Vector result[LANES];
#pragma GCC unroll 16
        for (size_t i = 0; i < LANES / 2; ++i) {
            result[2 * i] = interleave<0>(rows[i], rows[i + LANES / 2], lanes);
            result[2 * i + 1] = interleave<LANES / 2>(rows[i], rows[i + LANES / 2], lanes);
        }
#pragma GCC unroll 16
        for (size_t i = 0; i < LANES; ++i)
            rows[i] = result[i];
    }
}

// How a block of x is transposed: runs of LANES adjacent positions, and the target of each
// position. Positions outside of the block are written to a dummy position.
struct TransposePlan {
    std::vector<size_t> first, to;
};

// A block of the results, and the padded input that it reads.
struct PaddedBlock {
    const Window& window;
    OutputBlock block;
    size_t width, height; // of the padded input
    ValidRange row_range, column_range;  // of these, rows and columns of x

    PaddedBlock(const Window& window, const OutputBlock& block)
      : window(window), block(block), width(reach(2, block.columns)), height(reach(1, block.rows)),
        row_range(inside(1, block.row, height)), column_range(inside(2, block.column, width))
    {
    }

    size_t reach(size_t axis, size_t count) const
    {
        return (count - 1) * window.stride[axis] + (window.kernel[axis] - 1) * window.dilation[axis]
            + 1;
    }

    ValidRange inside(size_t axis, size_t first, size_t count) const
    {
        return ValidRange(static_cast<ptrdiff_t>(first) * window.stride[axis]
                              - window.pad_begin[axis],
                          1, window.sizes[axis], count);
    }

    size_t places() const { return width * height; }

    // Whole rows of x are contiguous: they are one run.
    TransposePlan transpose_plan() const
    {
        TransposePlan result;
        if (row_range.from == row_range.end || column_range.from == column_range.end)
            return result;
        const size_t row = window.sizes[2], top = row_range.place(row_range.from),
                     left = column_range.place(column_range.from);
        const size_t rows = row_range.end - row_range.from,
                     columns = column_range.end - column_range.from;
        const size_t runs = columns == row ? 1 : rows, run = columns == row ? rows * row : columns;
        const size_t last = window.input_size() - LANES;
        for (size_t number = 0; number < runs; ++number)
            for (size_t at = 0; at < run; at += LANES) {
                const size_t first = std::min((top + number) * row + left + at, last);
                result.first.push_back(first);
                for (size_t place = first; place < first + LANES; ++place) {
                    const size_t down_by = place / row - top, across_by = place % row - left;
                    const bool is_inside = place / row >= top && down_by < rows
                        && place % row >= left && across_by < columns;
                    result.to.push_back(is_inside ? (row_range.from + down_by) * width
                                                        + column_range.from + across_by
                                                  : places());
                }
            }
        return result;
    }
};

// Transpose LANES channels of a block of x, which are `plane` floats apart.
INLINED void transpose_in(const PaddedBlock& padded, const TransposePlan& transpose_plan,
                          const float* x, size_t plane, float* to)
{
    if (plane < LANES) {
        for (size_t row = padded.row_range.from; row < padded.row_range.end; ++row)
            for (size_t column = padded.column_range.from; column < padded.column_range.end;
                 ++column) {
                const size_t place = padded.row_range.place(row) * padded.window.sizes[2]
                    + padded.column_range.place(column);
                for (size_t lane = 0; lane < LANES; ++lane)
                    to[(row * padded.width + column) * LANES + lane] = x[lane * plane + place];
            }
        return;
    }
    const size_t* at = transpose_plan.to.data();
    for (const size_t first : transpose_plan.first) {
        Vector rows[LANES];
#pragma GCC unroll 16
        for (size_t lane = 0; lane < LANES; ++lane)
            rows[lane] = load(x + lane * plane + first);
        transpose(rows);
#pragma GCC unroll 16
        for (size_t lane = 0; lane < LANES; ++lane)
            store(to + *at++ * LANES, rows[lane]);
    }
}

// Transpose `count` positions of results to LANES channels, which are `plane` floats apart.
INLINED void transpose_out(const float* from, size_t count, float* out, size_t plane)
{
    if (count < LANES) {
        for (size_t lane = 0; lane < LANES; ++lane)
            for (size_t place = 0; place < count; ++place)
                out[lane * plane + place] = from[place * LANES + lane];
        return;
    }
    for_each_vector(LANES, count, [&](size_t at) {
        Vector rows[LANES];
#pragma GCC unroll 16
        for (size_t lane = 0; lane < LANES; ++lane)
            rows[lane] = load(from + (at + lane) * LANES);
        transpose(rows);
#pragma GCC unroll 16
        for (size_t lane = 0; lane < LANES; ++lane)
            store(out + lane * plane + at, rows[lane]);
    });
}

// The parameters of LANES channels: the shift of x for each tap, and the weights.
struct DepthwiseTile {
    std::vector<size_t> shifts;
    std::vector<float> w;
    Vector bias;
    const ClampEpilogue* clamp;
    size_t step; // distance in x between adjacent results
};

// C adjacent results. STEP, ACROSS: distance between results, and width of the kernel: values of x
// that several results read are loaded once. ACROSS = 0: any geometry.
template <size_t C, size_t STEP, size_t ACROSS>
void depthwise_sums(const DepthwiseTile& tile, const float* x, float* out)
{
    constexpr size_t taps = ACROSS ? ACROSS : 1, read = ACROSS ? (C - 1) * STEP + ACROSS : C;
    const size_t apart = ACROSS ? LANES : tile.step;
    Vector sums[C];
#pragma GCC unroll 8
    for (size_t c = 0; c < C; ++c)
        sums[c] = tile.bias;
    const float* w = tile.w.data();
    const size_t* end = tile.shifts.data() + tile.shifts.size();
    for (const size_t* shift = tile.shifts.data(); shift < end; shift += taps, w += taps * LANES) {
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
    if (tile.clamp)
#pragma GCC unroll 8
        for (size_t c = 0; c < C; ++c)
            sums[c] = clamp_vector(sums[c], tile.clamp->low, tile.clamp->high);
#pragma GCC unroll 8
    for (size_t c = 0; c < C; ++c)
        store(out + c * LANES, sums[c]);
}

constexpr size_t MAX_RESULTS = LANES == 16 ? 8 : 4;
using DepthwiseKernel = void (*)(const DepthwiseTile&, const float*, float*);
using DepthwiseKernels = std::array<DepthwiseKernel, MAX_RESULTS>;

template <size_t STEP, size_t ACROSS, size_t... C>
constexpr DepthwiseKernels depthwise_kernels(std::index_sequence<C...>)
{
    return {depthwise_sums<C + 1, STEP, ACROSS>...};
}

// Kernels of windows that are ACROSS taps wide, without dilation.
template <size_t ACROSS>
INLINED const DepthwiseKernels& depthwise_kernels_for_width(size_t stride)
{
    constexpr auto counts = std::make_index_sequence<MAX_RESULTS>();
    static constexpr DepthwiseKernels one = depthwise_kernels<1, ACROSS>(counts),
                                      two = depthwise_kernels<2, ACROSS>(counts);
    return stride == 1 ? one : two;
}

INLINED const DepthwiseKernels& depthwise_kernels_for(const Window& window)
{
    static constexpr DepthwiseKernels any =
        depthwise_kernels<0, 0>(std::make_index_sequence<MAX_RESULTS>());
    const bool shares = window.dilation[2] == 1 && window.stride[2] <= 2;
    switch (shares ? window.kernel[2] : 0) {
    case 3: return depthwise_kernels_for_width<3>(window.stride[2]);
    case 5: return depthwise_kernels_for_width<5>(window.stride[2]);
    default: return any;
    }
}

INLINED void depthwise_row(const DepthwiseKernels& sums, const DepthwiseTile& tile, const float* x,
                           float* out, size_t count)
{
    for (size_t at = 0, results; at < count; at += results) {
        const size_t batches = (count - at + MAX_RESULTS - 1) / MAX_RESULTS;
        results = (count - at + batches - 1) / batches;
        sums[results - 1](tile, x + at * tile.step, out + at * LANES);
    }
}

// Apply the epilogue to a block of one channel.
INLINED void depthwise_epilogue(Epilogue& epilogue, const OutputBlock& block, size_t channel)
{
    const Conv& conv = epilogue.conv;
    const size_t row = conv.window.out[2], whole_rows = block.columns == row ? block.rows : 1;
    for (size_t line = 0; line < block.rows; line += whole_rows) {
        const size_t start =
            channel * conv.window.output_size() + (block.row + line) * row + block.column;
        for (size_t at = 0, count = block.columns * whole_rows; at < count; at += WIDEST)
            apply_epilogue(epilogue, conv.residual ? conv.residual + start + at : nullptr,
                     conv.out + start + at, std::min(WIDEST, count - at));
    }
}

// Return a block whose input and results stay in the L2 cache.
INLINED OutputBlock depthwise_block(const Window& window)
{
    OutputBlock block{0, 0, window.out[1], 0, window.out[2]};
    const auto fits = [&] {
        return (PaddedBlock(window, block).places() + block.rows * block.columns) * LANES
               <= L2_FLOATS;
    };
    while (block.rows > 1 && !fits())
        block.rows = (block.rows + 1) / 2;
    while (block.columns > LANES && !fits())
        block.columns = std::max(LANES, block.columns / 2);
    return block;
}

// Return whether this is a 2-d depthwise convolution of at least LANES channels.
bool is_depthwise(const Conv& conv)
{
    const Window& window = conv.window;
    return conv.channels == 1 && conv.out_channels == 1 && conv.groups >= LANES
           && window.sizes[0] == 1 && window.kernel[0] == 1 && window.out[0] == 1
           && window.pad_begin[0] == 0;
}

void convolve_depthwise(const Conv& conv)
{
    Epilogue epilogue(conv);
    const Window& window = conv.window;
    const bool simple = epilogue.clamp && !epilogue.clamp->adds_residual;
    const size_t taps = window.taps(), plane = window.input_size(),
                 output_size = window.output_size();
    DepthwiseTile tile{std::vector<size_t>(taps), std::vector<float>(taps * LANES), Vector{},
                       nullptr, window.stride[2] * LANES};
    if (simple && epilogue.clamp->clamps)
        tile.clamp = &*epilogue.clamp;
    const DepthwiseKernels& sums = depthwise_kernels_for(window);
    for_each_block(window, depthwise_block(window), [&](const OutputBlock& block) {
        const PaddedBlock padded(window, block);
        const TransposePlan transpose_plan =
            plane < LANES ? TransposePlan{} : padded.transpose_plan();
        for (size_t tap = 0; tap < taps; ++tap)
            tile.shifts[tap] = (tap / window.kernel[2] * window.dilation[1] * padded.width
                                + tap % window.kernel[2] * window.dilation[2]) * LANES;
        const size_t room = (padded.places() + 1) * LANES;
        float* x = scratch(room + block.rows * block.columns * LANES);
        float* result = x + room;
        std::fill(x, result, 0.0f);
        for_each_vector(LANES, conv.groups, [&](size_t channel) {
            tile.bias = conv.bias ? load(conv.bias + channel) : Vector{};
            for (size_t lane = 0; lane < LANES; ++lane)
                for (size_t tap = 0; tap < taps; ++tap)
                    tile.w[tap * LANES + lane] = conv.w[(channel + lane) * taps + tap];
            transpose_in(padded, transpose_plan, conv.x + channel * plane, plane, x);
            const size_t row_stride = window.stride[1] * padded.width * LANES;
            for (size_t row = 0; row < block.rows; ++row)
                depthwise_row(sums, tile, x + row * row_stride,
                              result + row * block.columns * LANES, block.columns);
            const size_t whole_rows = block.columns == window.out[2] ? block.rows : 1;
            for (size_t row = 0; row < block.rows; row += whole_rows)
                transpose_out(result + row * block.columns * LANES, block.columns * whole_rows,
                              conv.out + channel * output_size + (block.row + row) * window.out[2]
                                  + block.column,
                              output_size);
            for (size_t lane = 0; lane < LANES && !simple; ++lane)
                depthwise_epilogue(epilogue, block, channel + lane);
        });
    });
}
