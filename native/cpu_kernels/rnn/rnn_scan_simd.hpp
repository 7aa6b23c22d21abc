// The turns of recurrent layers, included once for each way to compile them, in a namespace and with
// a target of its own (rnn_scan.cpp). What a layer computes:
// vksched/ops/rnn/rnn_cpu.py.

constexpr size_t LANES = 8;
typedef float Floats __attribute__((vector_size(4 * LANES)));

INLINED Floats loaded(const float* from)
{
    Floats made;
    std::memcpy(&made, from, sizeof made);
    return made;
}

// Some sequences side by side. given: their gates of a turn; sums: what goes into the gates.
template <size_t ROWS>
struct Block {
    const float* given[ROWS];
    float *h[ROWS], *c[ROWS], *sums[ROWS], *made[ROWS];
};

// Weights as products read them: a panel of columns after the other, each state by state; or where
// they lie. r: the columns of a section; row, column: distances there.
struct Weights {
    const float* r;
    size_t row, column, hidden;
    float* packed;

    // panel: its first column; width: its columns.
    const float* panel(size_t at) const { return packed ? packed + at * hidden : r + at; }
    size_t step(size_t width) const { return packed ? width : row; }
};

// Calls with (first column, columns) of each panel of so many columns.
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

// to[row] += from[row] @ a panel, whose vectors stay in registers.
template <size_t ROWS, size_t VECTORS>
INLINED void add_vectors(const float* panel, size_t step, size_t hidden, float* const* from,
                         float* const* to, size_t at)
{
    Floats sums[ROWS][VECTORS];
    for (size_t row = 0; row < ROWS; ++row)
        for (size_t i = 0; i < VECTORS; ++i)
            sums[row][i] = loaded(to[row] + at + i * LANES);
    for (size_t k = 0; k < hidden; ++k, panel += step) {
        Floats weights[VECTORS];
#pragma GCC unroll 8
        for (size_t i = 0; i < VECTORS; ++i)
            weights[i] = loaded(panel + i * LANES);
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
            std::memcpy(to[row] + at + i * LANES, &sums[row][i], sizeof(Floats));
}

INLINED float sum_of(const Floats& values)
{
    float sums[4] = {};
    for (size_t lane = 0; lane < LANES; ++lane)
        sums[lane % 4] += values[lane];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The same by columns whose values lie side by side.
template <size_t ROWS>
INLINED void add_dots(const Weights& weights, size_t columns, float* const* from, float* const* to)
{
    for (size_t at = 0; at < columns; ++at) {
        const float* column = weights.r + at * weights.column;
        Floats sums[ROWS] = {};
        float rest[ROWS] = {};
        size_t k = 0;
        for (; k + LANES <= weights.hidden; k += LANES)
            for (size_t row = 0; row < ROWS; ++row)
                sums[row] += loaded(column + k) * loaded(from[row] + k);
        for (; k < weights.hidden; ++k)
            for (size_t row = 0; row < ROWS; ++row)
                rest[row] += column[k] * from[row][k];
        for (size_t row = 0; row < ROWS; ++row)
            to[row][at] += sum_of(sums[row]) + rest[row];
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

// Not inlined: GCC had it some hundred times over, and took six times as long for this file.
[[gnu::noinline]] void activate(const Layer& layer, Function function, float* x, size_t count)
{
    if (layer.clip > 0)
#pragma GCC ivdep
        for (size_t at = 0; at < count; ++at)
            x[at] = clipped(x[at], layer.clip);
    if (function == Function::sigmoid)
        each_value<Sigmoid>(x, count);
    else if (function == Function::tanh)
        each_value<Tanh>(x, count);
    else
        each_value<Relu>(x, count);
}

// first: all gates, of a gru the first two; last: its last one. own: null without.
struct Direction {
    size_t number;
    const Function* functions;
    const float* own;
    Weights first, last;
};

// What follows the product, for one sequence; made: the next h.
template <size_t ROWS>
INLINED void finish_rnn(const Layer& layer, const Direction& direction, Block<ROWS>& block,
                        size_t row)
{
    std::memcpy(block.made[row], block.sums[row], layer.hidden * sizeof(float));
    activate(layer, direction.functions[0], block.made[row], layer.hidden);
}

template <size_t ROWS>
INLINED void finish_gru(const Layer& layer, const Direction& direction, Block<ROWS>& block,
                        size_t row)
{
    const size_t hidden = layer.hidden;
    const float *update = block.sums[row], *h = block.h[row];
    float *last = block.sums[row] + 2 * hidden, *made = block.made[row];
    activate(layer, direction.functions[1], last, hidden);
#pragma GCC ivdep
    for (size_t at = 0; at < hidden; ++at)
        made[at] = last[at] + update[at] * (h[at] - last[at]);
}

template <size_t ROWS>
INLINED void finish_lstm(const Layer& layer, const Direction& direction, Block<ROWS>& block,
                         size_t row)
{
    const size_t hidden = layer.hidden;
    const float* own = direction.own;
    float *into = block.sums[row], *out = into + hidden, *forget = out + hidden,
          *cell = forget + hidden, *c = block.c[row], *made = block.made[row];
    if (own)
#pragma GCC ivdep
        for (size_t at = 0; at < hidden; ++at) {
            into[at] += own[at] * c[at];
            forget[at] += own[2 * hidden + at] * c[at];
        }
    activate(layer, direction.functions[0], into, hidden);
    if (!own)
        activate(layer, direction.functions[0], out, hidden);
    if (layer.coupled)
#pragma GCC ivdep
        for (size_t at = 0; at < hidden; ++at)
            forget[at] = 1.0f - into[at];
    else
        activate(layer, direction.functions[0], forget, hidden);
    activate(layer, direction.functions[1], cell, hidden);
#pragma GCC ivdep
    for (size_t at = 0; at < hidden; ++at)
        made[at] = c[at] = forget[at] * c[at] + into[at] * cell[at];
    if (own) {
#pragma GCC ivdep
        for (size_t at = 0; at < hidden; ++at)
            out[at] += own[hidden + at] * c[at];
        activate(layer, direction.functions[0], out, hidden);
    }
    activate(layer, direction.functions[2], made, hidden);
#pragma GCC ivdep
    for (size_t at = 0; at < hidden; ++at)
        made[at] *= out[at];
}

// The gates of a gru, up to what goes into the activation of the last one.
template <size_t ROWS, size_t VECTORS>
INLINED void open_gru(const Layer& layer, const Direction& direction, Block<ROWS>& block)
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
        activate(layer, direction.functions[0], block.sums[row], split);
        const float *reset = block.sums[row] + hidden, *h = block.h[row];
        const float* given = block.given[row] + split;
        float *inner = last[row], *made = block.made[row];
        if (layer.linear)
#pragma GCC ivdep
            for (size_t at = 0; at < hidden; ++at)
                inner[at] = given[at] + reset[at] * inner[at];
        else
#pragma GCC ivdep
            for (size_t at = 0; at < hidden; ++at)
                made[at] = reset[at] * h[at];
    }
    if (!layer.linear)
        add_product<ROWS, VECTORS>(direction.last, hidden, block.made, last);
}

template <size_t ROWS, size_t VECTORS>
INLINED void run_turn(const Layer& layer, const Direction& direction, size_t first, size_t time,
                      Block<ROWS>& block)
{
    const size_t columns = layer.gates * layer.hidden, bytes = layer.hidden * sizeof(float);
    bool any = false;
    for (size_t row = 0; row < ROWS; ++row) {
        block.given[row] = layer.given(direction.number, time, first + row);
        std::memcpy(block.sums[row], block.given[row], columns * sizeof(float));
        any = any || layer.is_alive(time, first + row);
    }
    if (any && layer.gates == 3)
        open_gru<ROWS, VECTORS>(layer, direction, block);
    else if (any)
        add_product<ROWS, VECTORS>(direction.first, columns, block.h, block.sums);
    for (size_t row = 0; row < ROWS; ++row) {
        float* out = layer.result(time, direction.number, first + row);
        if (!layer.is_alive(time, first + row)) {
            std::memset(out, 0, bytes);
            continue;
        }
        if (layer.gates == 1)
            finish_rnn<ROWS>(layer, direction, block, row);
        else if (layer.gates == 3)
            finish_gru<ROWS>(layer, direction, block, row);
        else
            finish_lstm<ROWS>(layer, direction, block, row);
        std::memcpy(block.h[row], block.made[row], bytes);
        std::memcpy(out, block.made[row], bytes);
    }
}

// Some sequences. room: floats of `Layer::room`.
template <size_t ROWS, size_t VECTORS>
void run_rows(const Layer& layer, const Direction& direction, size_t first, float* room)
{
    Block<ROWS> block;
    for (size_t row = 0; row < ROWS; ++row) {
        block.h[row] = layer.result(layer.time, direction.number, first + row);
        block.c[row] =
            layer.gates == 4 ? layer.result(layer.time + 1, direction.number, first + row) : nullptr;
        block.sums[row] = room + row * (layer.gates + 1) * layer.hidden;
        block.made[row] = block.sums[row] + layer.gates * layer.hidden;
    }
    for (size_t turn = 0; turn < layer.time; ++turn) {
        const size_t time = layer.backwards[direction.number] ? layer.time - 1 - turn : turn;
        run_turn<ROWS, VECTORS>(layer, direction, first, time, block);
    }
}

// VECTORS: of a panel, as many as registers hold for MOST sequences.
template <size_t MOST, size_t VECTORS>
INLINED void run_direction(const Layer& layer, size_t number, float* room, float* packed)
{
    const size_t hidden = layer.hidden, columns = layer.gates * hidden;
    const size_t split = layer.gates == 3 ? 2 * hidden : columns;
    const float* r = layer.r + number * layer.r_direction;
    const auto section = [&](size_t begin) {
        return Weights{r + begin * layer.r_column, layer.r_row, layer.r_column, hidden,
                       packed ? packed + begin * hidden : nullptr};
    };
    const Direction direction{number, layer.functions[number].data(),
                              layer.own ? layer.own + number * layer.own_direction : nullptr,
                              section(0), section(split)};
    if (packed) {
        pack<VECTORS>(direction.first, split);
        pack<VECTORS>(direction.last, columns - split);
    }
    size_t first = 0;
    for (; first + MOST <= layer.batch; first += MOST)
        run_rows<MOST, VECTORS>(layer, direction, first, room);
    const size_t left = layer.batch - first;
    if constexpr (MOST > 3)
        if (left == 3)
            run_rows<3, VECTORS>(layer, direction, first, room);
    if constexpr (MOST > 2)
        if (left == 2)
            run_rows<2, VECTORS>(layer, direction, first, room);
    if constexpr (MOST > 1)
        if (left == 1)
            run_rows<1, VECTORS>(layer, direction, first, room);
}

void run_layer(const Layer& layer, float* room, float* packed)
{
    for (size_t number = 0; number < layer.directions; ++number) {
        if (layer.batch == 1)
            run_direction<1, 8>(layer, number, room, packed);
        else if (layer.batch == 2)
            run_direction<2, 4>(layer, number, room, packed);
        else
            run_direction<4, 3>(layer, number, room, packed);
    }
}
