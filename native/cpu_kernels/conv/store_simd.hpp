// Epilogues of convolutions, and stores of results.

// The registers of an epilogue: WIDEST values each, the first one for the residual.
struct Epilogue {
    const Conv& conv;
    std::optional<ClampEpilogue> clamp; // if it is of this form
    std::vector<float> values;
    std::vector<const float*> at;
    std::vector<float*> to; // result of each instruction

    explicit Epilogue(const Conv& params) : conv(params), clamp(clamp_epilogue_of(*params.program))
    {
        const FusedProgram& program = *conv.program;
        values.resize((1 + program.constants.size() + program.instrs.size()) * WIDEST);
        float* free = values.data();
        at.assign(program.operands, free);
        for (const float constant : program.constants) {
            at.push_back(free += WIDEST);
            std::fill(free, free + WIDEST, constant);
        }
        for (size_t number = 0; number < program.instrs.size(); ++number) {
            to.push_back(free += WIDEST);
            at.push_back(free);
        }
    }
};

// Apply the epilogue to `count` values in place: the last instruction reads each value before it
// writes it.
INLINED void apply_epilogue(Epilogue& epilogue, const float* residual, float* tile_sums,
                            size_t count)
{
    const FusedProgram& program = *epilogue.conv.program;
    if (program.instrs.empty())
        return;
    epilogue.at[0] = tile_sums;
    if (program.operands == 2)
        epilogue.at[1] = residual;
    epilogue.to.back() = tile_sums;
    for (size_t number = 0; number < program.instrs.size(); ++number) {
        const Instr& instr = program.instrs[number];
        execute(instr, epilogue.at[instr.a], epilogue.at[instr.b], epilogue.at[instr.c],
                epilogue.to[number], count);
    }
}

// Call with (offset in the tile, offset in the output plane, floats) of the rows that a tile
// covers.
template <class Call>
INLINED void for_each_run(const Window& window, const OutputBlock& block, size_t pitch,
                          size_t first, size_t count, Call call)
{
    const size_t start = (block.depth * window.out[1] + block.row) * window.out[2] + block.column;
    if (pitch == window.out[2]) { // input and result have the same row length
        call(0, start + first, count);
        return;
    }
    size_t row = first / pitch, column = first % pitch;
    for (size_t at = 0; at < count && row < block.rows; ++row, column = 0) {
        const size_t run = std::min(count - at, pitch - column);
        if (column < block.columns)
            call(at, start + row * window.out[2] + column, std::min(run, block.columns - column));
        at += run;
    }
}

// The results of a channel in a tile: from `first` on, without discarded ones.
struct Tile {
    size_t channel, first, count;
};

// Apply the epilogue to a tile in scratch memory, and copy its rows to the result.
INLINED void store_packed_tile(Epilogue& epilogue, const OutputBlock& block,
                               const PackedInput& packed_input, const Tile& tile, float* tile_sums)
{
    const Conv& conv = epilogue.conv;
    const size_t plane = tile.channel * conv.window.output_size();
    float* residual = epilogue.values.data();
    if (conv.residual)
        for_each_run(conv.window, block, packed_input.pitch, tile.first, tile.count,
                 [&](size_t at, size_t place, size_t run) {
                     copy(residual + at, conv.residual + plane + place, run);
                 });
    apply_epilogue(epilogue, residual, tile_sums, tile.count);
    for_each_run(conv.window, block, packed_input.pitch, tile.first, tile.count,
             [&](size_t at, size_t place, size_t run) {
                 copy(conv.out + plane + place, tile_sums + at, run);
             });
}

// Packs the input of a block for several groups at a time. Values are read some time after they are
// written, because store-to-load forwarding works only if a single store wrote the whole vector.
struct InputPacker {
    const InputLayout& layout;
    const OutputBlock& block;
    size_t channels;
    float fill;
    PackedInput packed_input;
    std::vector<Grid> grids;
    size_t batch = 1; // groups packed at a time
    float* to = nullptr; // null if x is read in place

    // min_vectors: width of the widest tile; none may read beyond x.
    InputPacker(const InputLayout& layout, const OutputBlock& block, size_t channels,
                size_t min_vectors, float fill)
      : layout(layout), block(block), channels(channels), fill(fill),
        packed_input(layout.direct(block))
    {
        if (layout.is_contiguous() && packed_input.count >= min_vectors * LANES)
            return;
        packed_input = layout.packed(block);
        grids = layout.grids_of(block, packed_input);
        batch = std::max<size_t>(1, L1_FLOATS / (channels * packed_input.channel));
        to = scratch(batch * channels * packed_input.channel + WIDEST);
    }

};

// Call with each group and its packed input. x: of the first group.
template <class Call>
INLINED void for_each_group(InputPacker& packer, const float* x, size_t groups, Call call)
{
    const size_t planes = packer.layout.window.input_size();
    for (size_t first = 0; first < groups; first += packer.batch) {
        const size_t count = std::min(packer.batch, groups - first);
        for (size_t channel = 0; packer.to && channel < count * packer.channels; ++channel)
            packer.layout.pack_channel(packer.grids, packer.block, packer.packed_input,
                               x + (first * packer.channels + channel) * planes, packer.fill,
                               packer.to + channel * packer.packed_input.channel);
        for (size_t group = first; group < first + count; ++group) {
            packer.packed_input.x = packer.to
                ? packer.to + (group - first) * packer.channels * packer.packed_input.channel
                : x + group * packer.channels * planes + packer.layout.first_place(packer.block);
            call(group);
        }
    }
}

// Prefetch the weights of the next rows, in proportion to the progress of this tile.
INLINED void prefetch_weights(const UnalignedFloat* w, size_t count, const Tile& tile, size_t of)
{
    constexpr size_t line = 16;
    const UnalignedFloat* end = w + count * (tile.first + tile.count) / of;
    for (const UnalignedFloat* at = w + count * tile.first / of; at < end; at += line)
        __builtin_prefetch(at);
}

// Compute the results of one group in a block: ROWS output channels at a time, tile by tile.
INLINED void convolve_group(Epilogue& epilogue, const OutputBlock& block,
                            const PackedInput& packed_input, size_t group)
{
    const Conv& conv = epilogue.conv;
    const size_t rows = std::min(ROWS, conv.out_channels),
                 max_vectors = rows == 1 ? MAX_VECTORS : COLUMNS;
    const size_t plane = conv.window.output_size(), row_weights = conv.channels * conv.window.taps();
    const bool dense =
        packed_input.pitch == conv.window.out[2]; // a tile is contiguous in the result
    const size_t start = (block.depth * conv.window.out[1] + block.row) * conv.window.out[2]
        + block.column;
    constexpr float none[ROWS] = {};
    alignas(64) float tile_sums[ROWS * WIDEST];
    for (size_t row = 0; row < conv.out_channels; row += rows) {
        const size_t row_count = std::min(rows, conv.out_channels - row),
                     channel = group * conv.out_channels + row;
        const float* bias = conv.bias ? conv.bias + channel : none;
        for_each_tile(packed_input.count, max_vectors, [&](size_t first, size_t vectors) {
            const size_t count = std::min(vectors * LANES, packed_input.count - first);
            const bool direct = dense && count == vectors * LANES;
            float* out = conv.out + channel * plane + start + first;
            const size_t left = conv.out_channels - row - row_count;
            prefetch_weights(conv.w + (channel + row_count) * row_weights,
                             std::min(left, rows) * row_weights, {channel, first, count},
                             packed_input.count);
            const float* residual = conv.residual ? conv.residual + (out - conv.out) : nullptr;
            const ClampEpilogue* clamp = direct && epilogue.clamp ? &*epilogue.clamp : nullptr;
            const size_t last = (vectors - 1) * LANES;
            microkernel_for(row_count, vectors, std::make_index_sequence<ROWS>())(
                packed_input, conv.channels, conv.w + channel * row_weights, bias,
                packed_input.x + first,
                direct ? TileRows{out, plane, last, clamp, clamp ? residual : nullptr}
                       : TileRows{tile_sums, WIDEST, last, nullptr, nullptr});
            for (size_t r = 0; r < row_count && !clamp; ++r)
                if (!direct)
                    store_packed_tile(epilogue, block, packed_input, {channel + r, first, count},
                                      tile_sums + r * WIDEST);
                else
                    apply_epilogue(epilogue, residual ? residual + r * plane : nullptr,
                                   out + r * plane, count);
        });
    }
}
