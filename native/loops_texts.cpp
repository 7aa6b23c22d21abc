// Strings of a file, as GGUF files hold them, each behind its length:
//
//   texts(data, at, count) -> list of str, the byte behind the last one
//
// Bytes that are no UTF-8 come as Python's `surrogateescape` makes them. The list is shorter where
// the data ends before. Examples: tests/importers/test_gguf_reader.py.
#include "loops.hpp"

namespace {

py::tuple texts(const py::buffer& data, size_t at, size_t count)
{
    const py::buffer_info info = data.request();
    require(info.itemsize == 1 && info.ndim == 1 && (info.size < 2 || info.strides[0] == 1),
            "expected bytes without gaps");
    const auto* bytes = static_cast<const unsigned char*>(info.ptr);
    const size_t end = info.size;
    py::list made;
    for (size_t number = 0; number < count; ++number) {
        uint64_t size = 0;
        if (at > end || end - at < sizeof size)
            break;
        for (size_t byte = sizeof size; byte-- > 0;)
            size = size << 8 | bytes[at + byte];
        if (size > end - at - sizeof size)
            break;
        at += sizeof size;
        const auto* text = reinterpret_cast<const char*>(bytes + at);
        PyObject* one =
            PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(size), "surrogateescape");
        if (one == nullptr)
            throw py::error_already_set();
        made.append(py::reinterpret_steal<py::object>(one));
        at += size;
    }
    return py::make_tuple(made, at);
}

} // namespace

void add_texts(py::module_& m)
{
    m.def("texts", &texts, py::arg("data"), py::arg("at"), py::arg("count"));
}
