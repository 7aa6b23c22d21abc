// Strings of a file, as GGUF files hold them, each behind its length:
//
//   texts(data, at, count) -> list of str, the byte behind the last one
//   skip_texts(data, at, count) -> how many there are, the byte behind the last one
//
// Bytes that are no UTF-8 come as Python's `surrogateescape` makes them. There are fewer where the
// data ends before. Examples: tests/importers/test_gguf_reader.py.
#include "cpu_kernels/arrays.hpp"

namespace {

// The bytes of a file, and how many are read so far.
class Lengths {
  public:
    Lengths(const py::buffer& data, size_t at) : info_(data.request()), at_(at)
    {
        require(info_.itemsize == 1 && info_.ndim == 1 && (info_.size < 2 || info_.strides[0] == 1),
                "expected bytes without gaps");
    }

    // Goes behind the next string; false where the data ends before.
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

py::tuple texts(const py::buffer& data, size_t at, size_t count)
{
    Lengths lengths(data, at);
    py::list made;
    while (made.size() < count && lengths.next()) {
        PyObject* one = PyUnicode_DecodeUTF8(
            lengths.text(), static_cast<Py_ssize_t>(lengths.size()), "surrogateescape");
        if (one == nullptr)
            throw py::error_already_set();
        made.append(py::reinterpret_steal<py::object>(one));
    }
    return py::make_tuple(made, lengths.at());
}

py::tuple skip_texts(const py::buffer& data, size_t at, size_t count)
{
    Lengths lengths(data, at);
    size_t found = 0;
    while (found < count && lengths.next())
        ++found;
    return py::make_tuple(found, lengths.at());
}

} // namespace

void add_texts(py::module_& m)
{
    m.def("texts", &texts, py::arg("data"), py::arg("at"), py::arg("count"));
    m.def("skip_texts", &skip_texts, py::arg("data"), py::arg("at"), py::arg("count"));
}
