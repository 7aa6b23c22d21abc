// Arrays of strings in a GGUF file. Each string follows its length, a little-endian uint64.
//
//   gguf_strings(data, at, count) -> (list of str, offset behind the last one)
//   skip_gguf_strings(data, at, count) -> (number of strings found, offset behind the last one)
//
// Bytes that are not UTF-8 are decoded with Python's `surrogateescape`. Fewer strings are returned
// if the data is truncated. Examples: tests/importers/test_gguf_reader.py.
#include "cpu_kernels/arrays.hpp"

namespace {

// Reads strings from the bytes of a file, one after the other.
class StringReader {
  public:
    StringReader(const py::buffer& data, size_t at) : info_(data.request()), at_(at)
    {
        require(info_.itemsize == 1 && info_.ndim == 1 && (info_.size < 2 || info_.strides[0] == 1),
                "expected bytes without gaps");
    }

    // Read the next string. Return false if the data is truncated.
    bool next()
    {
        const auto* bytes = static_cast<const unsigned char*>(info_.ptr);
        const size_t end = info_.size;
        uint64_t size = 0;
        if (at_ > end || end - at_ < sizeof size)
            return false;
        for (size_t byte = sizeof size; byte-- > 0;)
            size = size << 8 | bytes[at_ + byte];
        if (size > end - at_ - sizeof size)
            return false;
        text_ = reinterpret_cast<const char*>(bytes + at_ + sizeof size);
        size_ = size;
        at_ += sizeof size + size;
        return true;
    }

    const char* text() const { return text_; }
    size_t size() const { return size_; }
    size_t at() const { return at_; }

  private:
    py::buffer_info info_;
    size_t at_;
    const char* text_ = nullptr;
    size_t size_ = 0;
};

py::tuple gguf_strings(const py::buffer& data, size_t at, size_t count)
{
    StringReader reader(data, at);
    py::list result;
    while (result.size() < count && reader.next()) {
        PyObject* string = PyUnicode_DecodeUTF8(
            reader.text(), static_cast<Py_ssize_t>(reader.size()), "surrogateescape");
        if (string == nullptr)
            throw py::error_already_set();
        result.append(py::reinterpret_steal<py::object>(string));
    }
    return py::make_tuple(result, reader.at());
}

py::tuple skip_gguf_strings(const py::buffer& data, size_t at, size_t count)
{
    StringReader reader(data, at);
    size_t skipped = 0;
    while (skipped < count && reader.next())
        ++skipped;
    return py::make_tuple(skipped, reader.at());
}

} // namespace

void add_gguf_strings(py::module_& m)
{
    m.def("gguf_strings", &gguf_strings, py::arg("data"), py::arg("at"), py::arg("count"));
    m.def("skip_gguf_strings", &skip_gguf_strings, py::arg("data"), py::arg("at"),
          py::arg("count"));
}
