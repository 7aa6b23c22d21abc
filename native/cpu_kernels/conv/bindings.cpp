// What Python calls of the loops over windows of float32:
//
//   Sliding(stride, dilation, begin)           how windows lie; sizes come from the operands
//   Steps(operands, constants, steps)          what follows: (name, register a, register b, p, q)
//   conv(x, w, bias, residual, out, sliding, steps)      as many groups as x has channels for w
//   pool("max", x, out, kernel, sliding, counts)         counts: of a mean, one array an axis
#include "cpu_kernels/arrays.hpp"
#include "cpu_kernels/conv/conv.hpp"

#include <pybind11/stl.h>

#include <tuple>

#ifdef HAS_VECTORS
namespace {

struct Sliding {
    std::vector<ptrdiff_t> stride, dilation, begin;
};

Sliding sliding(std::vector<ptrdiff_t> stride, std::vector<ptrdiff_t> dilation,
                std::vector<ptrdiff_t> begin)
{
    const size_t axes = stride.size();
    require(axes > 0 && axes <= AXES && dilation.size() == axes && begin.size() == axes,
            "expected a stride, dilation and begin for each of one to three axes");
    for (size_t axis = 0; axis < axes; ++axis)
        require(stride[axis] > 0 && dilation[axis] > 0 && begin[axis] >= 0,
                "expected strides and dilations above 0, and a begin of 0 or more");
    return {std::move(stride), std::move(dilation), std::move(begin)};
}

py::list function_names()
{
    py::list made;
    for (const std::string& name : step_names())
        if (step_named(name, false).of_floats())
            made.append(name);
    return made;
}

using GivenStep = std::tuple<std::string, size_t, size_t, float, float>;

Steps steps_of(size_t operands, std::vector<float> constants, const std::vector<GivenStep>& given)
{
    require(operands == 1 || (operands == 2 && !given.empty()),
            "expected one operand, or a residual too and steps that read it");
    Steps made{operands, std::move(constants), {}};
    size_t there = operands + made.constants.size();
    for (const auto& [name, a, b, p, q] : given) {
        ChainStep step = step_named(name, true);
        require(a < there && b < there, "expected registers that are there");
        step.a = a;
        step.b = b;
        step.p = p;
        step.q = q;
        made.steps.push_back(step);
        ++there;
    }
    return made;
}

Window window_of(const py::buffer_info& x, const py::buffer_info& out, const size_t* kernel,
                 const Sliding& given)
{
    const size_t axes = given.stride.size(), first = AXES - axes;
    require(static_cast<size_t>(x.ndim) == 2 + axes && out.ndim == x.ndim,
            "expected x and a result of (N, C, spatial...)");
    Window window{{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}};
    for (size_t axis = 0; axis < axes; ++axis) {
        window.sizes[first + axis] = x.shape[2 + axis];
        window.out[first + axis] = out.shape[2 + axis];
        window.kernel[first + axis] = kernel[axis];
        window.stride[first + axis] = given.stride[axis];
        window.dilation[first + axis] = given.dilation[axis];
        window.begin[first + axis] = given.begin[axis];
    }
    require(x.shape[0] == out.shape[0] && window.taps() && window.planes(),
            "expected as many images in the result as in x, and no empty axis");
    if (window.results())
        check_window(window, window.out);
    return window;
}

const float* values(const py::buffer_info& info) { return static_cast<const float*>(info.ptr); }

void conv(const py::buffer& x, const py::buffer& w, const py::object& bias,
          const py::object& residual, const py::buffer& out, const Sliding& sliding,
          const Steps& steps, int wide)
{
    const py::buffer_info from = floats(x), weights = floats(w, false, true), to = floats(out, true);
    require(weights.ndim == from.ndim && weights.ndim > 2, "expected w of (C_out, C, kernel...)");
    std::vector<size_t> kernel(weights.shape.begin() + 2, weights.shape.end());
    require(kernel.size() == sliding.stride.size(), "expected a kernel of as many axes");
    Conv told{};
    told.window = window_of(from, to, kernel.data(), sliding);
    told.channels = weights.shape[1];
    require(told.channels > 0 && from.shape[1] % told.channels == 0, "expected whole groups of x");
    told.groups = from.shape[1] / told.channels;
    require(told.groups > 0 && weights.shape[0] % told.groups == 0 && weights.shape[0] == to.shape[1],
            "expected w for whole groups of the result");
    told.results = weights.shape[0] / told.groups;
    py::buffer_info shift, beside;
    if (!bias.is_none()) {
        shift = floats(py::cast<py::buffer>(bias));
        require(shift.size == to.shape[1], "expected a bias for each channel");
        told.bias = values(shift);
    }
    require(residual.is_none() == (steps.operands == 1), "expected a residual as the steps do");
    if (!residual.is_none()) {
        beside = floats(py::cast<py::buffer>(residual));
        require(beside.size == to.size, "expected a residual like the result");
        told.residual = values(beside);
    }
    told.w = static_cast<const Anywhere*>(weights.ptr);
    told.steps = &steps;
    told.count = told.window.planes();
    const size_t x_image = from.shape[1] * told.window.planes();
    const size_t image = to.shape[1] * told.window.results();
    py::gil_scoped_release unlocked;
    for (py::ssize_t number = 0; number < to.shape[0] && image; ++number) {
        Conv one = told;
        one.x = values(from) + number * x_image;
        one.out = static_cast<float*>(to.ptr) + number * image;
        one.residual = told.residual ? told.residual + number * image : nullptr;
        convolve(one, wide);
    }
}

void pool(const std::string& kind, const py::buffer& x, const py::buffer& out,
          const std::vector<size_t>& kernel, const Sliding& sliding,
          const std::vector<std::vector<float>>& counts, int wide)
{
    const py::buffer_info from = floats(x), to = floats(out, true);
    require(kernel.size() == sliding.stride.size(), "expected a kernel of as many axes");
    require(kind == "max" || kind == "mean", "expected max or mean");
    Pool told{};
    told.window = window_of(from, to, kernel.data(), sliding);
    require(from.shape[1] == to.shape[1], "expected the channels of x");
    told.kind = kind == "max" ? LARGEST : MEAN;
    told.planes = from.shape[0] * from.shape[1];
    told.counts.fill({1.0f});
    const size_t first = AXES - kernel.size();
    require(counts.size() == (told.kind == MEAN ? kernel.size() : 0), "expected counts of a mean");
    for (size_t axis = 0; axis < counts.size(); ++axis) {
        require(counts[axis].size() == told.window.out[first + axis],
                "expected a count for each result of an axis");
        told.counts[first + axis] = counts[axis];
    }
    told.x = values(from);
    told.out = static_cast<float*>(to.ptr);
    py::gil_scoped_release unlocked;
    if (to.size)
        combine(told, wide);
}

} // namespace

void add_conv(py::module_& m)
{
    py::class_<Sliding>(m, "Sliding").def(py::init(&sliding));
    py::class_<Steps>(m, "Steps").def(py::init(&steps_of));
    m.attr("conv_functions") = function_names();
    m.def("conv", &conv, py::arg("x"), py::arg("w"), py::arg("bias"), py::arg("residual"),
          py::arg("out"), py::arg("sliding"), py::arg("steps"), py::arg("wide") = 2);
    m.def("pool", &pool, py::arg("kind"), py::arg("x"), py::arg("out"), py::arg("kernel"),
          py::arg("sliding"), py::arg("counts"), py::arg("wide") = 2);
}
#else
void add_conv(py::module_&) {}
#endif
