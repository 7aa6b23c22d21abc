// Time steps of recurrent layers, included once for each instruction set, in a namespace of its own
// (rnn_scan.cpp). vksched/ops/rnn/rnn_cpu.py defines the layers.

constexpr size_t LANES = 8;
typedef float F32x8 __attribute__((vector_size(4 * LANES)));

INLINED F32x8 load(const float* from)
{
    F32x8 next_h;
    std::memcpy(&next_h, from, sizeof next_h);
    return next_h;
}

// Sequences that are computed together. gates: their gate inputs of a time step. sums:
// pre-activations of the gates.
template <size_t ROWS>
struct Block {
    const float* gates[ROWS];
    float *h[ROWS], *c[ROWS], *sums[ROWS], *next_h[ROWS];
};

// Recurrent weights: packed into panels of columns, or in place. r: the columns of a section. row,
// column: strides.
struct Weights {
    const float* r;
    size_t row, column, hidden;
    float* packed;

    // Return the panel of columns from `at` on, and the stride of its rows.
    const float* panel(size_t at) const { return packed ? packed + at * hidden : r + at; }
    size_t step(size_t width) const { return packed ? width : row; }
};

// Call with (first column, columns) of each panel.
template <size_t VECTORS, class Call>
INLINED void each_panel(size_t columns, Call call)
{
    constexpr size_t width = VECTORS * LANES;
    size_t at = 0;
    for (; at + width <= columns; at += width)
        call(at, width);
    for (; at + LANES <= columns; at += LANES)
        call(at, LANES);
    if (at < columns)
        call(at, columns - at);
}

template <size_t VECTORS>
INLINED void pack(const Weights& weights, size_t columns)
{
    each_panel<VECTORS>(columns, [&](size_t at, size_t width) {
        float* to = weights.packed + at * weights.hidden;
        const float* from = weights.r + at * weights.column;
        if (weights.column == 1)
            for (size_t k = 0; k < weights.hidden; ++k)
                std::memcpy(to + k * width, from + k * weights.row, width * sizeof(float));
        else
            for (size_t i = 0; i < width; ++i)
                for (size_t k = 0; k < weights.hidden; ++k)
                    to[k * width + i] = from[i * weights.column + k * weights.row];
    });
}

// to[row] += from[row] @ a panel, accumulated in registers.
template <size_t ROWS, size_t VECTORS>
INLINED void add_vectors(const float* panel, size_t step, size_t hidden, float* const* from,
                         float* const* to, size_t at)
{
    F32x8 sums[ROWS][VECTORS];
    for (size_t row = 0; row < ROWS; ++row)
        for (size_t i = 0; i < VECTORS; ++i)
            sums[row][i] = load(to[row] + at + i * LANES);
    for (size_t k = 0; k < hidden; ++k, panel += step) {
        F32x8 weights[VECTORS];
#pragma GCC unroll 8
        for (size_t i = 0; i < VECTORS; ++i)
            weights[i] = load(panel + i * LANES);
#pragma GCC unroll 4
        for (size_t row = 0; row < ROWS; ++row) {
            const float h = from[row][k];
#pragma GCC unroll 8
            for (size_t i = 0; i < VECTORS; ++i)
                sums[row][i] += h * weights[i];
        }
    }
    for (size_t row = 0; row < ROWS; ++row)
        for (size_t i = 0; i < VECTORS; ++i)
            std::memcpy(to[row] + at + i * LANES, &sums[row][i], sizeof(F32x8));
}

INLINED float horizontal_sum(const F32x8& values)
{
    float sums[4] = {};
    for (size_t lane = 0; lane < LANES; ++lane)
        sums[lane % 4] += values[lane];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The same product as dot products, if columns are contiguous.
template <size_t ROWS>
INLINED void add_dots(const Weights& weights, size_t columns, float* const* from, float* const* to)
{
    for (size_t at = 0; at < columns; ++at) {
        const float* column = weights.r + at * weights.column;
        F32x8 sums[ROWS] = {};
        float rest[ROWS] = {};
        size_t k = 0;
        for (; k + LANES <= weights.hidden; k += LANES)
            for (size_t row = 0; row < ROWS; ++row)
                sums[row] += load(column + k) * load(from[row] + k);
        for (; k < weights.hidden; ++k)
            for (size_t row = 0; row < ROWS; ++row)
                rest[row] += column[k] * from[row][k];
        for (size_t row = 0; row < ROWS; ++row)
            to[row][at] += horizontal_sum(sums[row]) + rest[row];
    }
}

// to[row] += from[row] @ the columns of a section.
template <size_t ROWS, size_t VECTORS>
INLINED void add_product(const Weights& weights, size_t columns, float* const* from,
                         float* const* to)
{
    if (!weights.packed && weights.column != 1) {
        add_dots<ROWS>(weights, columns, from, to);
        return;
    }
    each_panel<VECTORS>(columns, [&](size_t at, size_t width) {
        const float* panel = weights.panel(at);
        const size_t step = weights.step(width), hidden = weights.hidden;
        if (width == VECTORS * LANES)
            add_vectors<ROWS, VECTORS>(panel, step, hidden, from, to, at);
        else if (width == LANES)
            add_vectors<ROWS, 1>(panel, step, hidden, from, to, at);
        else
            for (size_t row = 0; row < ROWS; ++row)
                for (size_t i = 0; i < width; ++i)
                    for (size_t k = 0; k < hidden; ++k)
                        to[row][at + i] += from[row][k] * panel[k * step + i];
    });
}

template <class F>
INLINED void each_value(float* x, size_t count)
{
#pragma GCC ivdep
    for (size_t at = 0; at < count; ++at)
        x[at] = F::of(x[at]);
}

// Not inlined: GCC inlined it some hundred times, and took six times as long for this file.
[[gnu::noinline]] void activate(const Layer& layer, Activation activation, float* x, size_t count)
{
    if (layer.clip > 0)
#pragma GCC ivdep
        for (size_t at = 0; at < count; ++at)
            x[at] = clipped(x[at], layer.clip);
    if (activation == Activation::sigmoid)
        each_value<Sigmoid>(x, count);
    else if (activation == Activation::tanh)
        each_value<Tanh>(x, count);
    else
        each_value<Relu>(x, count);
}

// first: weights of all gates, for a GRU of the first two. last: weights of a GRU's last gate. own:
// null without.
struct Direction {
    size_t number;
    const Activation* activations;
    const float* own;
    Weights first, last;
};

// Apply the cell to the pre-activations of one sequence. next_h: the next hidden state.
template <size_t ROWS>
INLINED void finish_rnn(const Layer& layer, const Direction& direction, Block<ROWS>& block,
                        size_t row)
{
    std::memcpy(block.next_h[row], block.sums[row], layer.hidden * sizeof(float));
    activate(layer, direction.activations[0], block.next_h[row], layer.hidden);
}

template <size_t ROWS>
INLINED void finish_gru(const Layer& layer, const Direction& direction, Block<ROWS>& block,
                        size_t row)
{
    const size_t hidden = layer.hidden;
    const float *update = block.sums[row], *h = block.h[row];
    float *last = block.sums[row] + 2 * hidden, *next_h = block.next_h[row];
    activate(layer, direction.activations[1], last, hidden);
#pragma GCC ivdep
    for (size_t at = 0; at < hidden; ++at)
        next_h[at] = last[at] + update[at] * (h[at] - last[at]);
}

template <size_t ROWS>
INLINED void finish_lstm(const Layer& layer, const Direction& direction, Block<ROWS>& block,
                         size_t row)
{
    const size_t hidden = layer.hidden;
    const float* own = direction.own;
    float *input_gate = block.sums[row], *out = input_gate + hidden, *forget_gate = out + hidden,
          *cell_gate = forget_gate + hidden, *c = block.c[row], *next_h = block.next_h[row];
    if (own)
#pragma GCC ivdep
        for (size_t at = 0; at < hidden; ++at) {
            input_gate[at] += own[at] * c[at];
            forget_gate[at] += own[2 * hidden + at] * c[at];
        }
    activate(layer, direction.activations[0], input_gate, hidden);
    if (!own)
        activate(layer, direction.activations[0], out, hidden);
    if (layer.coupled)
#pragma GCC ivdep
        for (size_t at = 0; at < hidden; ++at)
            forget_gate[at] = 1.0f - input_gate[at];
    else
        activate(layer, direction.activations[0], forget_gate, hidden);
    activate(layer, direction.activations[1], cell_gate, hidden);
#pragma GCC ivdep
    for (size_t at = 0; at < hidden; ++at)
        next_h[at] = c[at] = forget_gate[at] * c[at] + input_gate[at] * cell_gate[at];
    if (own) {
#pragma GCC ivdep
        for (size_t at = 0; at < hidden; ++at)
            out[at] += own[hidden + at] * c[at];
        activate(layer, direction.activations[0], out, hidden);
    }
    activate(layer, direction.activations[2], next_h, hidden);
#pragma GCC ivdep
    for (size_t at = 0; at < hidden; ++at)
        next_h[at] *= out[at];
}

// Compute the gates of a GRU, up to the pre-activation of the last one.
template <size_t ROWS, size_t VECTORS>
INLINED void gru_gates(const Layer& layer, const Direction& direction, Block<ROWS>& block)
{
    const size_t hidden = layer.hidden, split = 2 * hidden, bytes = hidden * sizeof(float);
    float* last[ROWS];
    for (size_t row = 0; row < ROWS; ++row) {
        last[row] = block.sums[row] + split;
        if (layer.linear && direction.own)
            std::memcpy(last[row], direction.own + split, bytes);
        else if (layer.linear)
            std::memset(last[row], 0, bytes);
    }
    add_product<ROWS, VECTORS>(direction.first, split, block.h, block.sums);
    if (layer.linear)
        add_product<ROWS, VECTORS>(direction.last, hidden, block.h, last);
    for (size_t row = 0; row < ROWS; ++row) {
        activate(layer, direction.activations[0], block.sums[row], split);
        const float *reset = block.sums[row] + hidden, *h = block.h[row];
        const float* gates = block.gates[row] + split;
        float *inner = last[row], *next_h = block.next_h[row];
        if (layer.linear)
#pragma GCC ivdep
            for (size_t at = 0; at < hidden; ++at)
                inner[at] = gates[at] + reset[at] * inner[at];
        else
#pragma GCC ivdep
            for (size_t at = 0; at < hidden; ++at)
                next_h[at] = reset[at] * h[at];
    }
    if (!layer.linear)
        add_product<ROWS, VECTORS>(direction.last, hidden, block.next_h, last);
}

template <size_t ROWS, size_t VECTORS>
INLINED void run_time_step(const Layer& layer, const Direction& direction, size_t first,
                           size_t time, Block<ROWS>& block)
{
    const size_t columns = layer.gates * layer.hidden, bytes = layer.hidden * sizeof(float);
    bool any_active = false;
    for (size_t row = 0; row < ROWS; ++row) {
        block.gates[row] = layer.gate_inputs(direction.number, time, first + row);
        std::memcpy(block.sums[row], block.gates[row], columns * sizeof(float));
        any_active = any_active || layer.is_active(time, first + row);
    }
    if (any_active && layer.gates == 3)
        gru_gates<ROWS, VECTORS>(layer, direction, block);
    else if (any_active)
        add_product<ROWS, VECTORS>(direction.first, columns, block.h, block.sums);
    for (size_t row = 0; row < ROWS; ++row) {
        float* out = layer.result(time, direction.number, first + row);
        if (!layer.is_active(time, first + row)) {
            std::memset(out, 0, bytes);
            continue;
        }
        if (layer.gates == 1)
            finish_rnn<ROWS>(layer, direction, block, row);
        else if (layer.gates == 3)
            finish_gru<ROWS>(layer, direction, block, row);
        else
            finish_lstm<ROWS>(layer, direction, block, row);
        std::memcpy(block.h[row], block.next_h[row], bytes);
        std::memcpy(out, block.next_h[row], bytes);
    }
}

// Run all time steps of ROWS sequences. scratch: `Layer::scratch_floats` floats.
template <size_t ROWS, size_t VECTORS>
void run_rows(const Layer& layer, const Direction& direction, size_t first, float* scratch)
{
    Block<ROWS> block;
    for (size_t row = 0; row < ROWS; ++row) {
        block.h[row] = layer.result(layer.time, direction.number, first + row);
        block.c[row] = layer.gates == 4
                           ? layer.result(layer.time + 1, direction.number, first + row)
                           : nullptr;
        block.sums[row] = scratch + row * (layer.gates + 1) * layer.hidden;
        block.next_h[row] = block.sums[row] + layer.gates * layer.hidden;
    }
    for (size_t step = 0; step < layer.time; ++step) {
        const size_t time = layer.reverse[direction.number] ? layer.time - 1 - step : step;
        run_time_step<ROWS, VECTORS>(layer, direction, first, time, block);
    }
}

// VECTORS: width of a panel, such that MAX_ROWS sequences fit the registers.
template <size_t MAX_ROWS, size_t VECTORS>
INLINED void run_direction(const Layer& layer, size_t number, float* scratch, float* packed)
{
    const size_t hidden = layer.hidden, columns = layer.gates * hidden;
    const size_t split = layer.gates == 3 ? 2 * hidden : columns;
    const float* r = layer.r + number * layer.r_direction;
    const auto section = [&](size_t begin) {
        return Weights{r + begin * layer.r_column, layer.r_row, layer.r_column, hidden,
                       packed ? packed + begin * hidden : nullptr};
    };
    const Direction direction{number, layer.activations[number].data(),
                              layer.own ? layer.own + number * layer.own_direction : nullptr,
                              section(0), section(split)};
    if (packed) {
        pack<VECTORS>(direction.first, split);
        pack<VECTORS>(direction.last, columns - split);
    }
    size_t first = 0;
    for (; first + MAX_ROWS <= layer.batch; first += MAX_ROWS)
        run_rows<MAX_ROWS, VECTORS>(layer, direction, first, scratch);
    const size_t left = layer.batch - first;
    if constexpr (MAX_ROWS > 3)
        if (left == 3)
            run_rows<3, VECTORS>(layer, direction, first, scratch);
    if constexpr (MAX_ROWS > 2)
        if (left == 2)
            run_rows<2, VECTORS>(layer, direction, first, scratch);
    if constexpr (MAX_ROWS > 1)
        if (left == 1)
            run_rows<1, VECTORS>(layer, direction, first, scratch);
}

void run_layer(const Layer& layer, float* scratch, float* packed)
{
    for (size_t number = 0; number < layer.directions; ++number) {
        if (layer.batch == 1)
            run_direction<1, 8>(layer, number, scratch, packed);
        else if (layer.batch == 2)
            run_direction<2, 4>(layer, number, scratch, packed);
        else
            run_direction<4, 3>(layer, number, scratch, packed);
    }
}
