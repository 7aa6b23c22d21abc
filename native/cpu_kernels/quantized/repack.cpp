// Repacking of GGUF blocks into the layout of quantized weights:
//
//   repack("q4_K", blocks, words)    blocks: (rows, bytes of a row), words: (rows, words of a row)
//   repack_file(file, [(start, "q4_K", row_bytes, words), ...])      repack from an open file
//       -> number of parts that the file contained
//   RepackJob([(file, start, "q4_K", row_bytes, words), ...])        the same by several threads:
//       work(most_bytes) repacks up to this size; returns whether parts are left to begin
//       end() begins no more parts, waits for other threads; returns whether all were complete
//
// Compiled as quant_matmul.cpp. Without vector extensions numpy repacks. Examples:
// tests/ops/test_gguf_formats.py.
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

#ifdef HAS_VECTOR_EXTENSIONS
namespace {

// Rows of blocks, and the stride of the rows of words.
struct Blocks {
    const uint8_t* bytes;
    size_t rows, columns, row_words;
};

// RUN_BLOCKS: a block is a run with scales, fifth bits and quants. Others: a block is a tile of the
// type of that name.
enum BlockKind { RUN_BLOCKS, K2, K3, K4, K5, K6, IQ4_XS };

// FLIPPED: bits that turn a quant into two's complement. BLOCK: bytes of a block.
template <BlockKind KIND, uint32_t LOW, uint32_t HIGH, uint32_t HEAD, uint32_t BLOCK,
          uint32_t FLIPPED = 0>
struct Format {
    static constexpr BlockKind kind = KIND;
    static constexpr uint32_t low = LOW, high = HIGH, head = HEAD, tail = HEAD % 4,
                              block = BLOCK;
    static constexpr uint8_t flipped = FLIPPED;
};

struct Repacker {
    void (*repack)(const Blocks&, uint32_t*);
    uint32_t block, values, low, tile_words;
};

// clang-format off
#define REPACKER(NAME, KIND, LOW, HIGH, HEAD, ...) \
    {NAME, {repack<Format<KIND, LOW, HIGH, HEAD, __VA_ARGS__>>, \
            Format<KIND, LOW, HIGH, HEAD, __VA_ARGS__>::block, KIND == RUN_BLOCKS ? RUN : TILE, \
            LOW, HEAD + RUNS * (LOW + HIGH)}},
#define ALL_REPACKERS \
    REPACKER("q8_0", RUN_BLOCKS, 8, 0, 4, 34) REPACKER("q4_0", RUN_BLOCKS, 4, 0, 4, 18, 8) \
    REPACKER("q4_1", RUN_BLOCKS, 4, 0, 8, 20) REPACKER("q5_0", RUN_BLOCKS, 4, 1, 4, 22) \
    REPACKER("q5_1", RUN_BLOCKS, 4, 1, 8, 24) REPACKER("iq4_nl", RUN_BLOCKS, 4, 0, 4, 18) \
    REPACKER("mxfp4", RUN_BLOCKS, 4, 0, 2, 17) REPACKER("q2_K", K2, 2, 0, 6, 84) \
    REPACKER("q3_K", K3, 2, 1, 4, 110) REPACKER("q4_K", K4, 4, 0, 4, 144) \
    REPACKER("q5_K", K5, 4, 1, 4, 176) REPACKER("q6_K", K6, 4, 2, 6, 210) \
    REPACKER("iq4_xs", IQ4_XS, 4, 0, 2, 136)
// clang-format on

namespace baseline {
#include "cpu_kernels/quantized/repack_simd.hpp"
const std::map<std::string, Repacker> formats{ALL_REPACKERS};
} // namespace baseline

#ifdef MULTIVERSION
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace avx2 {
#include "cpu_kernels/quantized/repack_simd.hpp"
const std::map<std::string, Repacker> formats{ALL_REPACKERS};
} // namespace avx2
#pragma GCC pop_options
#else
namespace avx2 = baseline;
#endif

const Repacker& repacker_for(const std::string& name, bool wide)
{
    const auto& repackers = wide && has_avx2_f16c() ? avx2::formats : baseline::formats;
    const auto entry = repackers.find(name);
    if (entry == repackers.end())
        throw KeyError(name);
    return entry->second;
}

// Return the columns of rows of `row_bytes`.
size_t checked_columns(const Repacker& repacker, size_t row_bytes, const Matrix<uint32_t>& to)
{
    require(row_bytes % repacker.block == 0, "expected rows of whole blocks, without gaps");
    const size_t columns = row_bytes / repacker.block * repacker.values;
    require(to.columns() == row_words(columns, repacker.tile_words, repacker.low),
            "expected a row of words for each row of blocks");
    return columns;
}

void repack(const std::string& name, const py::buffer& blocks, const py::buffer& words, bool wide)
{
    const Repacker& repacker = repacker_for(name, wide);
    const py::buffer_info from = blocks.request();
    const Matrix<uint32_t> to(words);
    require(from.itemsize == 1 && from.ndim == 2
                && (from.shape[1] < 2 || from.strides[1] == 1)
                && (from.shape[0] < 2 || from.strides[0] == from.shape[1]),
            "expected rows of whole blocks, without gaps");
    const size_t columns = checked_columns(repacker, from.shape[1], to);
    require(to.rows() == static_cast<size_t>(from.shape[0]),
            "expected a row of words for each row of blocks");
    const Blocks block_rows{static_cast<const uint8_t*>(from.ptr), to.rows(), columns, to.row()};
    py::gil_scoped_release unlocked;
    repacker.repack(block_rows, to.data());
}

#ifndef _WIN32
// Bytes that are read at a time: they stay in the L2 cache.
constexpr size_t PIECE_BYTES = size_t{1} << 18;

struct FilePart {
    const Repacker* repacker;
    int file;
    uint64_t start;
    size_t row_bytes, columns;
    Matrix<uint32_t> to;

    // Return how many rows are read at a time.
    size_t step() const { return std::max<size_t>(1, PIECE_BYTES / row_bytes); }
};

// Return whether all bytes were read.
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

// Return a buffer for the largest read of these parts.
std::vector<uint8_t> make_read_buffer(const std::vector<FilePart>& parts)
{
    size_t max_bytes = 0;
    for (const FilePart& part : parts)
        max_bytes = std::max(max_bytes, part.step() * part.row_bytes);
    return std::vector<uint8_t>(max_bytes);
}

// Repack a range of rows. Return whether the file contained them.
bool repack_rows(const FilePart& part, size_t first, size_t rows, std::vector<uint8_t>& buffer)
{
    const size_t size = rows * part.row_bytes;
    if (!read_all(part.file, buffer.data(), size, part.start + first * part.row_bytes))
        return false;
    const Blocks block_rows{buffer.data(), rows, part.columns, part.to.row()};
    part.repacker->repack(block_rows, part.to.data() + first * part.to.row());
    return true;
}

bool repack_part(const FilePart& part, std::vector<uint8_t>& buffer)
{
    for (size_t row = 0; row < part.to.rows(); row += part.step())
        if (!repack_rows(part, row, std::min(part.step(), part.to.rows() - row), buffer))
            return false;
    return true;
}

using FilePartArgs = std::tuple<uint64_t, std::string, size_t, py::buffer>;

FilePart make_file_part(int file, const FilePartArgs& args, bool wide)
{
    const auto& [start, name, row_bytes, words] = args;
    const Repacker& repacker = repacker_for(name, wide);
    Matrix<uint32_t> to(words);
    require(row_bytes > 0, "expected rows of whole blocks, without gaps");
    const size_t columns = checked_columns(repacker, row_bytes, to);
    return {&repacker, file, start, row_bytes, columns, std::move(to)};
}

size_t repack_file(int file, const py::list& args, bool wide)
{
    std::vector<FilePart> parts;
    for (const py::handle each : args)
        parts.push_back(make_file_part(file, each.cast<FilePartArgs>(), wide));
    py::gil_scoped_release unlocked;
    std::vector<uint8_t> buffer = make_read_buffer(parts);
    size_t done = 0;
    while (done < parts.size() && repack_part(parts[done], buffer))
        ++done;
    return done;
}

// Parts of files. Each thread that calls `work` takes the next rows.
class RepackJob {
public:
    RepackJob(const py::list& args, bool wide)
    {
        for (const py::handle each : args) {
            const auto [file, start, name, row_bytes, words] =
                each.cast<std::tuple<int, uint64_t, std::string, size_t, py::buffer>>();
            parts_.push_back(make_file_part(file, {start, name, row_bytes, words}, wide));
        }
    }

    bool work(size_t most_bytes)
    {
        py::gil_scoped_release unlocked;
        std::vector<uint8_t> buffer = make_read_buffer(parts_);
        std::unique_lock lock(changing_);
        for (size_t done = 0; done < most_bytes && at_ < parts_.size();) {
            const FilePart& part = parts_[at_];
            const size_t first = row_, rows = std::min(part.step(), part.to.rows() - first);
            row_ += rows;
            if (row_ == part.to.rows())
                ++at_, row_ = 0;
            ++at_work_;
            lock.unlock();
            const bool was_read = repack_rows(part, first, rows, buffer);
            lock.lock();
            --at_work_;
            if (!was_read)
                cancel();
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
            cancel();
        changed_.wait(lock, [this] { return at_work_ == 0; });
        return is_complete_;
    }

private:
    void cancel() { is_complete_ = false, at_ = parts_.size(); }

    std::vector<FilePart> parts_;
    std::mutex changing_;
    std::condition_variable changed_;
    size_t at_ = 0, row_ = 0; // the next part and row
    size_t at_work_ = 0;
    bool is_complete_ = true;
};
#endif

} // namespace

void add_repack(py::module_& m)
{
    m.def("repack", &repack, py::arg("format"), py::arg("blocks"), py::arg("words"),
          py::arg("wide") = true);
#ifndef _WIN32
    m.def("repack_file", &repack_file, py::arg("file"), py::arg("parts"), py::arg("wide") = true);
    py::class_<RepackJob>(m, "RepackJob")
        .def(py::init<const py::list&, bool>(), py::arg("parts"), py::arg("wide") = true)
        .def("work", &RepackJob::work, py::arg("most_bytes"))
        .def("end", &RepackJob::end);
#endif
}
#else
void add_repack(py::module_&) {}
#endif
