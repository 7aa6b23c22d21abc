// Python bindings of recurrent layers:
//
//   rnn_scan("lstm", reverse, activations, clip, coupled, linear,
//            gates, r, state, own, lengths, out)
//
// Operands as in vksched/ops/rnn/cell.py. Rows are contiguous; other axes may have strides. The
// states are in the last rows of the result, from the first time step on.
#include "cpu_kernels/arrays.hpp"
#include "cpu_kernels/rnn/rnn_scan.hpp"

#include <pybind11/stl.h>

#ifdef HAS_VECTOR_EXTENSIONS
namespace rnn {
namespace {

// A float32 array. The first `strided_axes` axes may have any stride.
struct Array {
    Array(const py::buffer& buffer, size_t axes, size_t strided_axes, bool writable = false)
      : info(buffer.request(writable))
    {
        require(is_float(info.format) && info.ndim == static_cast<py::ssize_t>(axes)
                    && reinterpret_cast<uintptr_t>(info.ptr) % alignof(float) == 0,
                "expected aligned float32");
        for (size_t axis = 0; axis < axes; ++axis) {
            const py::ssize_t step = info.strides[axis];
            require(info.shape[axis] < 2
                        || (axis < strided_axes ? step >= 0 && step % 4 == 0 : step == 4),
                    "expected rows without gaps that follow each other");
        }
    }
    size_t size(size_t axis) const { return info.shape[axis]; }
    size_t stride(size_t axis) const { return size(axis) < 2 ? 0 : info.strides[axis] / 4; }
    py::buffer_info info;
};

Activation activation_named(const std::string& name)
{
    require(name == "sigmoid" || name == "tanh" || name == "relu",
            "expected sigmoid, tanh or relu");
    return name == "sigmoid" ? Activation::sigmoid
        : name == "tanh"     ? Activation::tanh
                             : Activation::relu;
}

void set_cell(Layer& layer, const std::string& kind, const std::vector<bool>& reverse,
              const std::vector<std::vector<std::string>>& activations)
{
    require(kind == "rnn" || kind == "gru" || kind == "lstm", "expected rnn, gru or lstm");
    layer.gates = kind == "rnn" ? 1 : kind == "gru" ? 3 : 4;
    const size_t count = kind == "rnn" ? 1 : kind == "gru" ? 2 : 3;
    layer.directions = reverse.size();
    layer.reverse = reverse;
    require(activations.size() == layer.directions, "expected activations for each direction");
    for (const auto& names : activations) {
        require(names.size() == count, "expected all activations of a direction");
        layer.activations.emplace_back();
        for (const auto& name : names)
            layer.activations.back().push_back(activation_named(name));
    }
}

void set_operands(Layer& layer, const Array& gates, const Array& r, const Array& out)
{
    layer.time = gates.size(1);
    layer.batch = gates.size(2);
    layer.hidden = r.size(1);
    const size_t columns = layer.gates * layer.hidden;
    require(gates.size(0) == layer.directions && gates.size(3) == columns
                && r.size(0) == layer.directions && r.size(2) == columns,
            "expected gates (directions, time, batch, gates * hidden) and r (directions, hidden, "
            "gates * hidden)");
    require(out.size(0) == layer.time + (layer.gates == 4 ? 2 : 1)
                && out.size(1) == layer.directions && out.size(2) == layer.batch
                && out.size(3) == layer.hidden,
            "expected a result (time + states, directions, batch, hidden)");
    layer.inputs = static_cast<const float*>(gates.info.ptr);
    layer.inputs_direction = gates.stride(0);
    layer.inputs_time = gates.stride(1);
    layer.inputs_sequence = gates.stride(2);
    layer.r = static_cast<const float*>(r.info.ptr);
    layer.r_direction = r.stride(0);
    layer.r_row = r.size(1) < 2 ? 1 : r.stride(1);
    layer.r_column = r.size(2) < 2 ? 1 : r.stride(2);
    layer.out = static_cast<float*>(out.info.ptr);
    layer.out_time = out.stride(0);
    layer.out_direction = out.stride(1);
    layer.out_sequence = out.stride(2);
}

void rnn_scan(const std::string& kind, const std::vector<bool>& reverse,
               const std::vector<std::vector<std::string>>& activations, float clip, bool coupled,
               bool linear, const py::buffer& gates, const py::buffer& r, const py::buffer& state,
               const py::object& own, const py::object& lengths, const py::buffer& out, bool wide)
{
    const Array inputs(gates, 4, 3), weights(r, 3, 3), first(state, 4, 3), to(out, 4, 3, true);
    Layer layer{};
    set_cell(layer, kind, reverse, activations);
    set_operands(layer, inputs, weights, to);
    layer.clip = clip;
    layer.coupled = coupled;
    layer.linear = linear;
    const size_t states = to.size(0) - layer.time, columns = layer.gates * layer.hidden;
    require(first.size(0) == states && first.size(1) == layer.directions
                && first.size(2) == layer.batch && first.size(3) == layer.hidden,
            "expected a state (states, directions, batch, hidden)");
    std::vector<Array> views; // alive until the kernel has ended
    if (!own.is_none()) {
        views.emplace_back(py::cast<py::buffer>(own), 2, 1);
        require(views[0].size(0) == layer.directions && views[0].size(1) == columns,
                "expected own (directions, gates * hidden)");
        layer.own = static_cast<const float*>(views[0].info.ptr);
        layer.own_direction = views[0].stride(0);
    }
    py::buffer_info ends;
    if (!lengths.is_none()) {
        ends = py::cast<py::buffer>(lengths).request();
        require(ends.itemsize == 8 && ends.ndim == 1 && (ends.size < 2 || ends.strides[0] == 8)
                    && static_cast<size_t>(ends.size) == layer.batch,
                "expected an int64 for each sequence");
        layer.lengths = static_cast<const int64_t*>(ends.ptr);
    }
    const float* start = static_cast<const float*>(first.info.ptr);
    py::gil_scoped_release unlocked;
    scan(layer, start, first.stride(0), first.stride(1), first.stride(2), wide);
}

} // namespace
} // namespace rnn

void add_rnn(py::module_& m)
{
    m.attr("rnn_functions") = std::vector<std::string>{"sigmoid", "tanh", "relu"}; // by index
    m.def("rnn_scan", &rnn::rnn_scan, py::arg("kind"), py::arg("reverse"),
          py::arg("activations"), py::arg("clip"), py::arg("coupled"), py::arg("linear"),
          py::arg("gates"), py::arg("r"), py::arg("state"), py::arg("own"), py::arg("lengths"),
          py::arg("out"), py::arg("wide") = true);
}
#else
void add_rnn(py::module_&) {}
#endif
