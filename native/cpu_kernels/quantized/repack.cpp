// Words of weights of few bits, from blocks as GGUF files hold them:
//
//   repack("q4_K", blocks, words)    blocks: (rows, bytes of a row), words: (rows, words of a row)
//   repack_file(file, [(start, "q4_K", row_bytes, words), ...]) -> how many of them were there:
//       the same from the bytes of an open file, with one way back to Python for all
//   Repacking([(file, start, "q4_K", row_bytes, words), ...])    the same by several threads:
//       work(bytes) takes so many bytes of it, and says whether anything is left to begin;
//       end() begins no more, waits for those at work, and says whether all is there
//
// Compiled as quant_matmul.cpp is; without such a compiler numpy does it.
// Examples: tests/ops/test_gguf_formats.py.
#include "cpu_kernels/quantized/quant_arrays.hpp"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#ifndef _WIN32
#include <cerrno>
#include <unistd.h>
#endif

#ifdef HAS_VECTORS
namespace {

// Rows of blocks, and how far the rows of words lie apart.
struct Blocks {
    const uint8_t* bytes;
    size_t rows, columns, row_words;
};

// A block is a run: scales, fifth bits, codes. Or a tile, of a type of that name.
enum Kind { RUNS_ALONE, K2, K3, K4, K5, K6, IQ4_XS };

// FLIPPED: bits that make a code one in two's complement. BLOCK: bytes of a block.
template <Kind KIND, uint32_t LOW, uint32_t HIGH, uint32_t HEAD, uint32_t BLOCK,
          uint32_t FLIPPED = 0>
struct Format {
    static constexpr Kind kind = KIND;
    static constexpr uint32_t low = LOW, high = HIGH, head = HEAD, tail = HEAD % 4,
                              block = BLOCK;
    static constexpr uint8_t flipped = FLIPPED;
};

struct Way {
    void (*repack)(const Blocks&, uint32_t*);
    uint32_t block, values, low, tile_words;
};

// clang-format off
#define REPACKING(NAME, KIND, LOW, HIGH, HEAD, ...) \
    {NAME, {repack<Format<KIND, LOW, HIGH, HEAD, __VA_ARGS__>>, \
            Format<KIND, LOW, HIGH, HEAD, __VA_ARGS__>::block, KIND == RUNS_ALONE ? RUN : TILE, \
            LOW, HEAD + RUNS * (LOW + HIGH)}},
#define ALL_REPACKING \
    REPACKING("q8_0", RUNS_ALONE, 8, 0, 4, 34) REPACKING("q4_0", RUNS_ALONE, 4, 0, 4, 18, 8) \
    REPACKING("q4_1", RUNS_ALONE, 4, 0, 8, 20) REPACKING("q5_0", RUNS_ALONE, 4, 1, 4, 22) \
    REPACKING("q5_1", RUNS_ALONE, 4, 1, 8, 24) REPACKING("iq4_nl", RUNS_ALONE, 4, 0, 4, 18) \
    REPACKING("mxfp4", RUNS_ALONE, 4, 0, 2, 17) REPACKING("q2_K", K2, 2, 0, 6, 84) \
    REPACKING("q3_K", K3, 2, 1, 4, 110) REPACKING("q4_K", K4, 4, 0, 4, 144) \
    REPACKING("q5_K", K5, 4, 1, 4, 176) REPACKING("q6_K", K6, 4, 2, 6, 210) \
    REPACKING("iq4_xs", IQ4_XS, 4, 0, 2, 136)
// clang-format on

namespace plain {
#include "cpu_kernels/quantized/repack_simd.hpp"
const std::map<std::string, Way> all{ALL_REPACKING};
} // namespace plain

#ifdef COMPILED_TWICE
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace wider {
#include "cpu_kernels/quantized/repack_simd.hpp"
const std::map<std::string, Way> all{ALL_REPACKING};
} // namespace wider
#pragma GCC pop_options
#else
namespace wider = plain;
#endif

const Way& way_of(const std::string& name, bool wide)
{
    const auto& ways = wide && has_wider() ? wider::all : plain::all;
    const auto found = ways.find(name);
    if (found == ways.end())
        throw KeyError(name);
    return found->second;
}

// Returns the columns of rows of so many bytes.
size_t columns_of(const Way& way, size_t row_bytes, const Matrix<uint32_t>& to)
{
    require(row_bytes % way.block == 0, "expected rows of whole blocks, without gaps");
    const size_t columns = row_bytes / way.block * way.values;
    require(to.columns() == row_words(columns, way.tile_words, way.low),
            "expected a row of words for each row of blocks");
    return columns;
}

void repack(const std::string& name, const py::buffer& blocks, const py::buffer& words, bool wide)
{
    const Way& way = way_of(name, wide);
    const py::buffer_info from = blocks.request();
    const Matrix<uint32_t> to(words);
    require(from.itemsize == 1 && from.ndim == 2
                && (from.shape[1] < 2 || from.strides[1] == 1)
                && (from.shape[0] < 2 || from.strides[0] == from.shape[1]),
            "expected rows of whole blocks, without gaps");
    const size_t columns = columns_of(way, from.shape[1], to);
    require(to.rows() == static_cast<size_t>(from.shape[0]),
            "expected a row of words for each row of blocks");
    const Blocks told{static_cast<const uint8_t*>(from.ptr), to.rows(), columns, to.row()};
    py::gil_scoped_release unlocked;
    way.repack(told, to.data());
}

#ifndef _WIN32
// Of a file, read at a time: it stays in a core's cache.
constexpr size_t PIECE_BYTES = size_t{1} << 18;

struct Part {
    const Way* way;
    int file;
    uint64_t start;
    size_t row_bytes, columns;
    Matrix<uint32_t> to;

    // How many rows are read at a time.
    size_t step() const { return std::max<size_t>(1, PIECE_BYTES / row_bytes); }
};

// Returns whether all bytes were there.
bool read_all(int file, uint8_t* to, size_t size, uint64_t start)
{
    while (size > 0) {
        const ssize_t count = pread(file, to, size, static_cast<off_t>(start));
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return false;
        to += count, start += count, size -= count;
    }
    return true;
}

// Returns room for the bytes that are read at a time, of any of some parts.
std::vector<uint8_t> room_for(const std::vector<Part>& parts)
{
    size_t most = 0;
    for (const Part& part : parts)
        most = std::max(most, part.step() * part.row_bytes);
    return std::vector<uint8_t>(most);
}

// Repacks rows from one on; returns whether they were there.
bool repack_rows(const Part& part, size_t first, size_t rows, std::vector<uint8_t>& piece)
{
    const size_t size = rows * part.row_bytes;
    if (!read_all(part.file, piece.data(), size, part.start + first * part.row_bytes))
        return false;
    const Blocks told{piece.data(), rows, part.columns, part.to.row()};
    part.way->repack(told, part.to.data() + first * part.to.row());
    return true;
}

bool repack_part(const Part& part, std::vector<uint8_t>& piece)
{
    for (size_t row = 0; row < part.to.rows(); row += part.step())
        if (!repack_rows(part, row, std::min(part.step(), part.to.rows() - row), piece))
            return false;
    return true;
}

using Given = std::tuple<uint64_t, std::string, size_t, py::buffer>;

Part part_of(int file, const Given& given, bool wide)
{
    const auto& [start, name, row_bytes, words] = given;
    const Way& way = way_of(name, wide);
    Matrix<uint32_t> to(words);
    require(row_bytes > 0, "expected rows of whole blocks, without gaps");
    const size_t columns = columns_of(way, row_bytes, to);
    return {&way, file, start, row_bytes, columns, std::move(to)};
}

size_t repack_file(int file, const py::list& given, bool wide)
{
    std::vector<Part> parts;
    for (const py::handle each : given)
        parts.push_back(part_of(file, each.cast<Given>(), wide));
    py::gil_scoped_release unlocked;
    std::vector<uint8_t> piece = room_for(parts);
    size_t done = 0;
    while (done < parts.size() && repack_part(parts[done], piece))
        ++done;
    return done;
}

// Parts of files, of which each thread that works takes the next rows that nobody has taken.
class Repacking {
public:
    Repacking(const py::list& given, bool wide)
    {
        for (const py::handle each : given) {
            const auto [file, start, name, row_bytes, words] =
                each.cast<std::tuple<int, uint64_t, std::string, size_t, py::buffer>>();
            parts_.push_back(part_of(file, {start, name, row_bytes, words}, wide));
        }
    }

    bool work(size_t most_bytes)
    {
        py::gil_scoped_release unlocked;
        std::vector<uint8_t> piece = room_for(parts_);
        std::unique_lock lock(changing_);
        for (size_t done = 0; done < most_bytes && at_ < parts_.size();) {
            const Part& part = parts_[at_];
            const size_t first = row_, rows = std::min(part.step(), part.to.rows() - first);
            row_ += rows;
            if (row_ == part.to.rows())
                ++at_, row_ = 0;
            ++at_work_;
            lock.unlock();
            const bool there = repack_rows(part, first, rows, piece);
            lock.lock();
            --at_work_;
            if (!there)
                stop();
            changed_.notify_all();
            done += rows * part.row_bytes;
        }
        return at_ < parts_.size();
    }

    bool end()
    {
        py::gil_scoped_release unlocked;
        std::unique_lock lock(changing_);
        if (at_ < parts_.size())
            stop();
        changed_.wait(lock, [this] { return at_work_ == 0; });
        return whole_;
    }

private:
    void stop() { whole_ = false, at_ = parts_.size(); }

    std::vector<Part> parts_;
    std::mutex changing_;
    std::condition_variable changed_;
    size_t at_ = 0, row_ = 0; // what is taken next
    size_t at_work_ = 0;
    bool whole_ = true;
};
#endif

} // namespace

void add_repack(py::module_& m)
{
    m.def("repack", &repack, py::arg("format"), py::arg("blocks"), py::arg("words"),
          py::arg("wide") = true);
#ifndef _WIN32
    m.def("repack_file", &repack_file, py::arg("file"), py::arg("parts"), py::arg("wide") = true);
    py::class_<Repacking>(m, "Repacking")
        .def(py::init<const py::list&, bool>(), py::arg("parts"), py::arg("wide") = true)
        .def("work", &Repacking::work, py::arg("most_bytes"))
        .def("end", &Repacking::end);
#endif
}
#else
void add_repack(py::module_&) {}
#endif
