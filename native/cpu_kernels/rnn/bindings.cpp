// What Python calls of the loops over recurrent layers:
//
//   recurrent("lstm", backwards, activations, clip, coupled, linear, gates, r, state, own, lengths, out)
//
// Operands as vksched/ops/rnn/cell.py has them: rows have no gaps, and may lie apart.
// The states are in the last rows of the result, from the first turn on.
#include "cpu_kernels/arrays.hpp"
#include "cpu_kernels/rnn/rnn_scan.hpp"

#include <pybind11/stl.h>

#ifdef HAS_VECTORS
namespace recurrent {
namespace {

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

} // namespace
} // namespace recurrent

void add_recurrent(py::module_& m)
{
    m.attr("recurrent_functions") = std::vector<std::string>{"sigmoid", "tanh", "relu"}; // by number
    m.def("recurrent", &recurrent::recurrent, py::arg("kind"), py::arg("backwards"),
          py::arg("activations"), py::arg("clip"), py::arg("coupled"), py::arg("linear"),
          py::arg("gates"), py::arg("r"), py::arg("state"), py::arg("own"), py::arg("lengths"),
          py::arg("out"), py::arg("wide") = true);
}
#else
void add_recurrent(py::module_&) {}
#endif
