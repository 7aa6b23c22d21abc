// Python bindings of float32 convolution and pooling:
//
//   SlidingWindow(stride, dilation, pad_begin)   one value for each spatial axis
//   FusedProgram(operands, constants, instrs)    an epilogue: (name, register a, register b, p, q)
//   conv(x, w, bias, residual, out, sliding, epilogue)   the shapes determine the number of groups
//   pool("max", x, out, kernel, sliding, counts)         counts: divisors of a mean for each axis
#include "cpu_kernels/arrays.hpp"
#include "cpu_kernels/conv/conv.hpp"

#include <pybind11/stl.h>

#include <tuple>

#ifdef HAS_VECTOR_EXTENSIONS
namespace {

struct SlidingWindow {
    std::vector<ptrdiff_t> stride, dilation, pad_begin;
};

SlidingWindow make_sliding_window(std::vector<ptrdiff_t> stride, std::vector<ptrdiff_t> dilation,
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

py::list epilogue_op_names()
{
    py::list names;
    for (const std::string& name : instr_names())
        if (instr_named(name, false).is_float_op())
            names.append(name);
    return names;
}

using InstrArgs = std::tuple<std::string, size_t, size_t, float, float>;

FusedProgram make_fused_program(size_t operands, std::vector<float> constants,
                                const std::vector<InstrArgs>& instrs)
{
    require(operands == 1 || (operands == 2 && !instrs.empty()),
            "expected one operand, or a residual and steps that read it");
    FusedProgram program{operands, std::move(constants), {}};
    size_t register_count = operands + program.constants.size();
    for (const auto& [name, a, b, p, q] : instrs) {
        Instr instr = instr_named(name, true);
        require(a < register_count && b < register_count, "expected registers in range");
        instr.a = a;
        instr.b = b;
        instr.p = p;
        instr.q = q;
        program.instrs.push_back(instr);
        ++register_count;
    }
    return program;
}

Window window_of(const py::buffer_info& x, const py::buffer_info& out, const size_t* kernel,
                 const SlidingWindow& sliding)
{
    const size_t axes = sliding.stride.size(), first = AXES - axes;
    require(static_cast<size_t>(x.ndim) == 2 + axes && out.ndim == x.ndim,
            "expected x and a result of (N, C, spatial...)");
    Window window{{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}};
    for (size_t axis = 0; axis < axes; ++axis) {
        window.sizes[first + axis] = x.shape[2 + axis];
        window.out[first + axis] = out.shape[2 + axis];
        window.kernel[first + axis] = kernel[axis];
        window.stride[first + axis] = sliding.stride[axis];
        window.dilation[first + axis] = sliding.dilation[axis];
        window.pad_begin[first + axis] = sliding.pad_begin[axis];
    }
    require(x.shape[0] == out.shape[0] && window.taps() && window.input_size(),
            "expected as many images in the result as in x, and no empty axis");
    if (window.output_size())
        check_window(window, window.out);
    return window;
}

const float* floats_of(const py::buffer_info& info) { return static_cast<const float*>(info.ptr); }

void conv(const py::buffer& x, const py::buffer& w, const py::object& bias,
          const py::object& residual, const py::buffer& out, const SlidingWindow& sliding,
          const FusedProgram& program, int wide)
{
    const py::buffer_info from = floats(x), weights = floats(w, false, true),
                          to = floats(out, true);
    require(weights.ndim == from.ndim && weights.ndim > 2, "expected w of (C_out, C, kernel...)");
    std::vector<size_t> kernel(weights.shape.begin() + 2, weights.shape.end());
    require(kernel.size() == sliding.stride.size(), "expected a kernel of as many axes");
    Conv params{};
    params.window = window_of(from, to, kernel.data(), sliding);
    params.channels = weights.shape[1];
    require(params.channels > 0 && from.shape[1] % params.channels == 0,
            "expected whole groups of x");
    params.groups = from.shape[1] / params.channels;
    require(params.groups > 0 && weights.shape[0] % params.groups == 0
                && weights.shape[0] == to.shape[1],
            "expected w for whole groups of the result");
    params.out_channels = weights.shape[0] / params.groups;
    py::buffer_info bias_view, residual_view;
    if (!bias.is_none()) {
        bias_view = floats(py::cast<py::buffer>(bias));
        require(bias_view.size == to.shape[1], "expected a bias for each channel");
        params.bias = floats_of(bias_view);
    }
    require(residual.is_none() == (program.operands == 1),
            "expected a residual if and only if the epilogue reads one");
    if (!residual.is_none()) {
        residual_view = floats(py::cast<py::buffer>(residual));
        require(residual_view.size == to.size, "expected a residual like the result");
        params.residual = floats_of(residual_view);
    }
    params.w = static_cast<const UnalignedFloat*>(weights.ptr);
    params.program = &program;
    params.count = params.window.input_size();
    const size_t x_image = from.shape[1] * params.window.input_size();
    const size_t image = to.shape[1] * params.window.output_size();
    py::gil_scoped_release unlocked;
    for (py::ssize_t number = 0; number < to.shape[0] && image; ++number) {
        Conv image_params = params;
        image_params.x = floats_of(from) + number * x_image;
        image_params.out = static_cast<float*>(to.ptr) + number * image;
        image_params.residual = params.residual ? params.residual + number * image : nullptr;
        convolve(image_params, wide);
    }
}

void pool(const std::string& kind, const py::buffer& x, const py::buffer& out,
          const std::vector<size_t>& kernel, const SlidingWindow& sliding,
          const std::vector<std::vector<float>>& counts, int wide)
{
    const py::buffer_info from = floats(x), to = floats(out, true);
    require(kernel.size() == sliding.stride.size(), "expected a kernel of as many axes");
    require(kind == "max" || kind == "mean", "expected max or mean");
    Pool params{};
    params.window = window_of(from, to, kernel.data(), sliding);
    require(from.shape[1] == to.shape[1], "expected the channels of x");
    params.kind = kind == "max" ? MAX : MEAN;
    params.planes = from.shape[0] * from.shape[1];
    params.counts.fill({1.0f});
    const size_t first = AXES - kernel.size();
    require(counts.size() == (params.kind == MEAN ? kernel.size() : 0),
            "expected counts of a mean");
    for (size_t axis = 0; axis < counts.size(); ++axis) {
        require(counts[axis].size() == params.window.out[first + axis],
                "expected a count for each result of an axis");
        params.counts[first + axis] = counts[axis];
    }
    params.x = floats_of(from);
    params.out = static_cast<float*>(to.ptr);
    py::gil_scoped_release unlocked;
    if (to.size)
        pool_planes(params, wide);
}

} // namespace

void add_conv(py::module_& m)
{
    py::class_<SlidingWindow>(m, "SlidingWindow").def(py::init(&make_sliding_window));
    py::class_<FusedProgram>(m, "FusedProgram").def(py::init(&make_fused_program));
    m.attr("conv_epilogue_ops") = epilogue_op_names();
    m.def("conv", &conv, py::arg("x"), py::arg("w"), py::arg("bias"), py::arg("residual"),
          py::arg("out"), py::arg("sliding"), py::arg("epilogue"), py::arg("wide") = 2);
    m.def("pool", &pool, py::arg("kind"), py::arg("x"), py::arg("out"), py::arg("kernel"),
          py::arg("sliding"), py::arg("counts"), py::arg("wide") = 2);
}
#else
void add_conv(py::module_&) {}
#endif
