// All turns of a recurrent layer, whose inputs were multiplied before, and those as a step of programs;
// bindings.cpp has what Python calls.
//
// Up to four sequences go side by side: a weight is read once for them. Without vectors of GCC or
// Clang numpy does it. Examples: tests/ops/native/test_recurrent_loops.py.
#include "cpu_kernels/rnn/rnn_scan.hpp"

#include "cpu_kernels/elementwise/exponential.hpp"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#ifdef HAS_VECTORS
namespace recurrent {
namespace {

struct Sigmoid {
    INLINED float of(float x) { return 1.0f / (1.0f + exponential(-x)); }
};

struct Relu {
    INLINED float of(float x) { return x < 0 ? 0.0f : x; }
};

namespace plain {
#include "cpu_kernels/rnn/rnn_scan_simd.hpp"
}

#ifdef COMPILED_TWICE
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace wider {
#include "cpu_kernels/rnn/rnn_scan_simd.hpp"
}
#pragma GCC pop_options
#else
namespace wider = plain;
#endif

} // namespace

void take_turns(const Layer& told, const float* start, size_t of_state, size_t of_direction,
                size_t of_sequence, bool wide)
{
    const size_t states = told.gates == 4 ? 2 : 1;
    for (size_t i = 0; i < states; ++i)
        for (size_t d = 0; d < told.directions; ++d)
            for (size_t b = 0; b < told.batch; ++b)
                std::memcpy(told.result(told.time + i, d, b),
                            start + i * of_state + d * of_direction + b * of_sequence,
                            told.hidden * sizeof(float));
    const std::unique_ptr<float[]> room(new float[told.room() + told.packed()]);
    float* packed = told.packed() ? room.get() + told.room() : nullptr;
    if (wide && has_wider())
        wider::run_layer(told, room.get(), packed);
    else
        plain::run_layer(told, room.get(), packed);
}

namespace {

// -- a step of programs ----------------------------------------------------------------------------

// A piece: a direction. Operands have no gaps.
struct RecurrentLoop : Loop {
    std::vector<Layer> directions; // each alone
    bool has_own, wide;

    void run(const Operands& given, size_t piece) const override
    {
        Layer layer = directions[piece];
        const size_t columns = layer.gates * layer.hidden;
        const size_t sequences = layer.batch * layer.hidden;
        layer.from = given.get<float>(0) + piece * layer.from_direction;
        layer.r = given.get<float>(1) + piece * layer.r_direction;
        layer.own = has_own ? given.get<float>(3) + piece * columns : nullptr;
        layer.out = given.get<float>(3 + has_own) + piece * sequences;
        take_turns(layer, given.get<float>(2) + piece * sequences, directions.size() * sequences, 0,
                   layer.hidden, wide);
    }

    void reach(Extents& to) const override
    {
        const Layer& layer = directions.at(0);
        const int64_t count = directions.size(), gates = layer.gates, time = layer.time;
        const int64_t batch = layer.batch, hidden = layer.hidden, states = gates == 4 ? 2 : 1;
        to.all(0, 4, {count, time, batch, gates, hidden});
        to.all(1, 4, {count, hidden, gates, hidden});
        to.all(2, 4, {states, count, batch, hidden});
        if (has_own)
            to.all(3, 4, {count, gates, hidden});
        require(time < int64_t{1} << 40 && batch > 0 && hidden > 0,
                "expected turns that a slot holds, and states");
        to.all(3 + has_own, 4, {time + states, count, batch, hidden});
    }
};

} // namespace
} // namespace recurrent

// numbers: gates, time, batch, hidden, coupled, linear, has own, and of each direction whether it goes
// back and its functions (0 sigmoid, 1 tanh, 2 relu). reals: clip.
std::unique_ptr<Loop> recurrent_loop(const Told& told)
{
    using namespace recurrent;
    const auto number = [&](size_t at) { return static_cast<size_t>(told.numbers.at(at)); };
    Layer layer{};
    layer.gates = number(0);
    require(layer.gates == 1 || layer.gates == 3 || layer.gates == 4, "expected 1, 3 or 4 gates");
    const size_t each = layer.gates == 1 ? 1 : layer.gates == 3 ? 2 : 3, count = told.pieces;
    auto made = std::make_unique<RecurrentLoop>();
    made->has_own = number(6) != 0;
    made->wide = told.wide;
    require(told.numbers.size() == 7 + count * (1 + each) && told.reals.size() == 1
                && told.slots == 4 + size_t{made->has_own},
            "expected a piece for each direction, and a slot for each operand and the result");
    layer.directions = 1;
    layer.time = number(1);
    layer.batch = number(2);
    layer.hidden = number(3);
    layer.coupled = number(4) != 0;
    layer.linear = number(5) != 0;
    layer.clip = told.reals[0];
    const size_t columns = layer.gates * layer.hidden;
    layer.from_sequence = columns;
    layer.from_time = layer.batch * columns;
    layer.from_direction = layer.time * layer.from_time;
    layer.r_column = 1;
    layer.r_row = columns;
    layer.r_direction = layer.hidden * columns;
    layer.own_direction = columns;
    layer.out_sequence = layer.hidden;
    layer.out_direction = layer.batch * layer.hidden;
    layer.out_time = count * layer.out_direction;
    for (size_t at = 7; at < told.numbers.size(); at += 1 + each) {
        Layer own = layer;
        own.backwards = {number(at) != 0};
        own.functions.emplace_back();
        for (size_t function = 0; function < each; ++function) {
            require(number(at + 1 + function) < 3, "expected functions that there are");
            own.functions[0].push_back(static_cast<Function>(number(at + 1 + function)));
        }
        made->directions.push_back(std::move(own));
    }
    return made;
}
#else
std::unique_ptr<Loop> recurrent_loop(const Told&) { throw KeyError("recurrent"); }
#endif
