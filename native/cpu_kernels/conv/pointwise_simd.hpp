// Pointwise (1 x 1) convolution: the microkernels read x without packing.

// Call with (first position, vectors, offset of the last vector) of tiles. The last vector ends at
// `count`.
template <class Call>
INLINED void for_each_span(size_t count, Call call)
{
    size_t vectors = (count + LANES - 1) / LANES;
    const size_t max_vectors = WIDE_TILE_ROWS && vectors == COLUMNS + 1 ? vectors : COLUMNS;
    for (size_t at = 0; vectors;) {
        const size_t tiles = (vectors + max_vectors - 1) / max_vectors,
                     vectors_of_tile = (vectors + tiles - 1) / tiles;
        const size_t first = std::min(at, count - LANES);
        call(first, vectors_of_tile,
             std::min((vectors_of_tile - 1) * LANES, count - LANES - first));
        at += vectors_of_tile * LANES;
        vectors -= vectors_of_tile;
    }
}

// Compute `count` positions of one group, from `start` on. They stay in a cache while all output
// channels read them.
INLINED void convolve_pointwise_span(Epilogue& epilogue, size_t group, size_t start, size_t count)
{
    const Conv& conv = epilogue.conv;
    const size_t plane = conv.window.input_size(), channels = conv.channels;
    const ClampEpilogue* clamp = epilogue.clamp ? &*epilogue.clamp : nullptr;
    constexpr float none[ROWS] = {};
    PackedInput packed_input{conv.x + group * channels * plane + start, plane, plane, count, {0}};
    if (plane % CROWDED_STRIDE == 0) {
        float* to = scratch(channels * count);
        for (size_t channel = 0; channel < channels; ++channel)
            copy(to + channel * count, packed_input.x + channel * plane, count);
        packed_input.x = to;
        packed_input.channel = count;
    }
    const size_t max_rows =
        (count + LANES - 1) / LANES == COLUMNS + 1 && WIDE_TILE_ROWS ? WIDE_TILE_ROWS : ROWS;
    for (size_t row = 0, row_count; row < conv.out_channels; row += row_count) {
        const size_t left = conv.out_channels - row, tiles = (left + max_rows - 1) / max_rows;
        row_count = (left + tiles - 1) / tiles;
        const size_t channel = group * conv.out_channels + row;
        const UnalignedFloat* w = conv.w + channel * channels;
        if (start == conv.start)
            prefetch_weights(w + row_count * channels,
                             std::min(left - row_count, row_count) * channels, {0, 0, 1}, 1);
        for_each_span(count, [&](size_t first, size_t vectors, size_t last) {
            float* out = conv.out + channel * plane + start + first;
            const float* residual = conv.residual ? conv.residual + (out - conv.out) : nullptr;
            microkernel_for(row_count, vectors, std::make_index_sequence<ROWS>())(
                packed_input, channels, w, conv.bias ? conv.bias + channel : none,
                packed_input.x + first, {out, plane, last, clamp, clamp ? residual : nullptr});
            for (size_t r = 0; r < row_count && !clamp; ++r)
                apply_epilogue(epilogue, residual ? residual + r * plane : nullptr, out + r * plane,
                         last + LANES);
        });
    }
}

void convolve_pointwise(const Conv& conv)
{
    Epilogue epilogue(conv);
    constexpr size_t tile = COLUMNS * LANES;
    const size_t block = std::max<size_t>(1, POINTWISE_FLOATS / conv.channels / tile) * tile;
    for (size_t group = 0; group < conv.groups; ++group)
        for (size_t done = 0, block_size; done < conv.count; done += block_size) {
            block_size = conv.count - done <= block + LANES ? conv.count - done : block;
            convolve_pointwise_span(epilogue, group, conv.start + done, block_size);
        }
}
