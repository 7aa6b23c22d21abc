// All turns of a recurrent layer, whose inputs were multiplied before:
//
//   recurrent("lstm", backwards, activations, clip, coupled, linear, gates, r, state, own, lengths, out)
//
// Operands as vksched/ops/products/recurrent_cell.py has them: rows have no gaps, and may lie apart.
// The states are in the last rows of the result, from the first turn on. Up to four sequences go side
// by side: a weight is read once for them. Without vectors of GCC or Clang numpy does it.
// Examples: tests/ops/test_recurrent_loops.py.
#include "loops/elementwise/exponential.hpp"
#include "loops/vectors.hpp"

#include <pybind11/stl.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#ifdef HAS_VECTORS
namespace {

constexpr size_t BLOCK = 4; // sequences side by side, at most
// So often the weights are read before it pays to bring them together.
constexpr size_t OFTEN = 4, TURNED_OFTEN = 16;

enum class Function { sigmoid, tanh, relu };

struct Sigmoid {
    INLINED float of(float x) { return 1.0f / (1.0f + exponential(-x)); }
};

struct Relu {
    INLINED float of(float x) { return x < 0 ? 0.0f : x; }
};

// Distances count floats.
struct Layer {
    size_t gates, directions, time, batch, hidden;
    const float *from, *r, *own;
    size_t from_direction, from_time, from_sequence, r_direction, r_row, r_column, own_direction;
    float* out;
    size_t out_time, out_direction, out_sequence;
    const int64_t* lengths;
    std::vector<bool> backwards;
    std::vector<std::vector<Function>> functions;
    float clip;
    bool coupled, linear;

    const float* given(size_t direction, size_t at, size_t sequence) const
    {
        return from + direction * from_direction + at * from_time + sequence * from_sequence;
    }
    float* result(size_t row, size_t direction, size_t sequence) const
    {
        return out + row * out_time + direction * out_direction + sequence * out_sequence;
    }
    bool is_alive(size_t at, size_t sequence) const
    {
        return !lengths || static_cast<int64_t>(at) < lengths[sequence];
    }
    size_t room() const { return BLOCK * (gates + 1) * hidden; }
    // Of weights brought together, where they are read often enough or lie neither by rows nor by
    // columns.
    size_t packed() const
    {
        const size_t reads = time * ((batch + BLOCK - 1) / BLOCK);
        const bool as_they_lie = r_column == 1 ? reads < OFTEN : r_row == 1 && reads < TURNED_OFTEN;
        return as_they_lie ? 0 : gates * hidden * hidden;
    }
};

namespace plain {
#include "loops/recurrent/ways.hpp"
}

#ifdef COMPILED_TWICE
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace wider {
#include "loops/recurrent/ways.hpp"
}
#pragma GCC pop_options
#else
namespace wider = plain;
#endif

// An array of float32 of so many axes; elements of the first few may lie apart.
struct Array {
    Array(const py::buffer& given, size_t axes, size_t apart, bool writable = false)
      : info(given.request(writable))
    {
        require(is_float(info.format) && info.ndim == static_cast<py::ssize_t>(axes)
                    && reinterpret_cast<uintptr_t>(info.ptr) % alignof(float) == 0,
                "expected aligned float32");
        for (size_t axis = 0; axis < axes; ++axis) {
            const py::ssize_t step = info.strides[axis];
            require(info.shape[axis] < 2 || (axis < apart ? step >= 0 && step % 4 == 0 : step == 4),
                    "expected rows without gaps that follow each other");
        }
    }
    size_t size(size_t axis) const { return info.shape[axis]; }
    size_t apart(size_t axis) const { return size(axis) < 2 ? 0 : info.strides[axis] / 4; }
    py::buffer_info info;
};

Function function_of(const std::string& name)
{
    require(name == "sigmoid" || name == "tanh" || name == "relu",
            "expected sigmoid, tanh or relu");
    return name == "sigmoid" ? Function::sigmoid
        : name == "tanh"     ? Function::tanh
                             : Function::relu;
}

void set_ways(Layer& told, const std::string& kind, const std::vector<bool>& backwards,
              const std::vector<std::vector<std::string>>& activations)
{
    require(kind == "rnn" || kind == "gru" || kind == "lstm", "expected rnn, gru or lstm");
    told.gates = kind == "rnn" ? 1 : kind == "gru" ? 3 : 4;
    const size_t each = kind == "rnn" ? 1 : kind == "gru" ? 2 : 3;
    told.directions = backwards.size();
    told.backwards = backwards;
    require(activations.size() == told.directions, "expected activations for each direction");
    for (const auto& names : activations) {
        require(names.size() == each, "expected all activations of a direction");
        told.functions.emplace_back();
        for (const auto& name : names)
            told.functions.back().push_back(function_of(name));
    }
}

void set_operands(Layer& told, const Array& gates, const Array& r, const Array& out)
{
    told.time = gates.size(1);
    told.batch = gates.size(2);
    told.hidden = r.size(1);
    const size_t columns = told.gates * told.hidden;
    require(gates.size(0) == told.directions && gates.size(3) == columns
                && r.size(0) == told.directions && r.size(2) == columns,
            "expected gates (directions, time, batch, gates * hidden) and r (directions, hidden, "
            "gates * hidden)");
    require(out.size(0) == told.time + (told.gates == 4 ? 2 : 1) && out.size(1) == told.directions
                && out.size(2) == told.batch && out.size(3) == told.hidden,
            "expected a result (time + states, directions, batch, hidden)");
    told.from = static_cast<const float*>(gates.info.ptr);
    told.from_direction = gates.apart(0);
    told.from_time = gates.apart(1);
    told.from_sequence = gates.apart(2);
    told.r = static_cast<const float*>(r.info.ptr);
    told.r_direction = r.apart(0);
    told.r_row = r.size(1) < 2 ? 1 : r.apart(1);
    told.r_column = r.size(2) < 2 ? 1 : r.apart(2);
    told.out = static_cast<float*>(out.info.ptr);
    told.out_time = out.apart(0);
    told.out_direction = out.apart(1);
    told.out_sequence = out.apart(2);
}

// Writes the states before the first turn, start (states, directions, batch, hidden), in their rows;
// then takes all turns.
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

void recurrent(const std::string& kind, const std::vector<bool>& backwards,
               const std::vector<std::vector<std::string>>& activations, float clip, bool coupled,
               bool linear, const py::buffer& gates, const py::buffer& r, const py::buffer& state,
               const py::object& own, const py::object& lengths, const py::buffer& out, bool wide)
{
    const Array from(gates, 4, 3), weights(r, 3, 3), first(state, 4, 3), to(out, 4, 3, true);
    Layer told{};
    set_ways(told, kind, backwards, activations);
    set_operands(told, from, weights, to);
    told.clip = clip;
    told.coupled = coupled;
    told.linear = linear;
    const size_t states = to.size(0) - told.time, columns = told.gates * told.hidden;
    require(first.size(0) == states && first.size(1) == told.directions
                && first.size(2) == told.batch && first.size(3) == told.hidden,
            "expected a state (states, directions, batch, hidden)");
    std::vector<Array> kept; // until the loops have ended
    if (!own.is_none()) {
        kept.emplace_back(py::cast<py::buffer>(own), 2, 1);
        require(kept[0].size(0) == told.directions && kept[0].size(1) == columns,
                "expected own (directions, gates * hidden)");
        told.own = static_cast<const float*>(kept[0].info.ptr);
        told.own_direction = kept[0].apart(0);
    }
    py::buffer_info ends;
    if (!lengths.is_none()) {
        ends = py::cast<py::buffer>(lengths).request();
        require(ends.itemsize == 8 && ends.ndim == 1 && (ends.size < 2 || ends.strides[0] == 8)
                    && static_cast<size_t>(ends.size) == told.batch,
                "expected an int64 for each sequence");
        told.lengths = static_cast<const int64_t*>(ends.ptr);
    }
    const float* start = static_cast<const float*>(first.info.ptr);
    py::gil_scoped_release unlocked;
    take_turns(told, start, first.apart(0), first.apart(1), first.apart(2), wide);
}

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
};

} // namespace

// numbers: gates, time, batch, hidden, coupled, linear, has own, and of each direction whether it goes
// back and its functions (0 sigmoid, 1 tanh, 2 relu). reals: clip.
std::unique_ptr<Loop> recurrent_loop(const Told& told)
{
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

void add_recurrent(py::module_& m)
{
    m.attr("recurrent_functions") = std::vector<std::string>{"sigmoid", "tanh", "relu"}; // by number
    m.def("recurrent", &recurrent, py::arg("kind"), py::arg("backwards"), py::arg("activations"),
          py::arg("clip"), py::arg("coupled"), py::arg("linear"), py::arg("gates"), py::arg("r"),
          py::arg("state"), py::arg("own"), py::arg("lengths"), py::arg("out"),
          py::arg("wide") = true);
}
#else
std::unique_ptr<Loop> recurrent_loop(const Told&) { throw py::key_error("recurrent"); }
void add_recurrent(py::module_&) {}
#endif
