// Native programs: many loops in one call, without the interpreter lock.
//
//   p = Program([(name, slots, int_params, float_params, pieces), ...], slot_bytes, unbound_slots)
//   p.bind(slot, array)            the memory of a slot for all runs; the caller keeps it alive
//   p.run(arrays, start_helpers)   run all loops; arrays: memory of the unbound slots.
//                                  start_helpers() starts helper threads. Returns the seconds that
//                                  the run waited for helpers that had lost their core
//   p.help()                       compute pieces of loops until the run ends; on a helper thread
//
// vksched/ir/native_program.py lists the loops and their parameters. A slot is the memory of one
// contiguous value. Threads take pieces from one atomic ticket: a thread without a core takes none,
// and no run waits for it. The runner takes pieces from the front and helpers from the back, so
// that each finds parts of the previous loop's result in its own cache. A waiting thread spins for
// a moment, then sleeps: if another process uses its core, the thread that has the piece gets it. A
// helper that loses its core within a piece delays the run. After such a delay half of the helpers
// leave, or the last one pauses for a while, and `run` returns the sum of all delays. An index out
// of range raises IndexError with the number of the loop. A loop that would access memory beyond a
// slot raises ValueError when the program is built. Examples:
// tests/ops/native/test_native_programs.py, tests/runtime/test_busy_threads.py.
#include "cpu_kernels/arrays.hpp"
#include "cpu_kernels/elementwise/fused_program.hpp"
#include "cpu_kernels/program/gemm.hpp"
#include "cpu_kernels/program/waiting.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

namespace {

// Bits of a piece counter within a ticket.
constexpr int BITS = 22;
constexpr uint64_t FRONT = uint64_t{1} << BITS, MAX_PIECES = FRONT - 1;
constexpr uint64_t MAX_LOOPS = (uint64_t{1} << (64 - 2 * BITS)) - 1;

// A loop, and the slots of its operands and its result.
struct ProgramLoop {
    std::unique_ptr<Loop> loop;
    std::vector<uint32_t> slots;
    uint32_t pieces = 1;

    void run(char* const* at, size_t piece) const { loop->run({at, slots.data()}, piece); }
};

// Split "quantized_linear q4_K" into the name of the loop and of its callee.
std::pair<std::string, std::string> split_name(const std::string& name)
{
    const size_t at = name.find(' ');
    return {name.substr(0, at), at == std::string::npos ? "" : name.substr(at + 1)};
}

ProgramLoop make_program_loop(const py::handle& tuple, const std::vector<size_t>& slot_bytes,
                              bool wide)
{
    const auto fields = py::cast<py::tuple>(tuple);
    const auto [name, callee] = split_name(py::cast<std::string>(fields[0]));
    const auto int_params = py::cast<std::vector<int64_t>>(fields[2]);
    const auto float_params = py::cast<std::vector<float>>(fields[3]);
    ProgramLoop result;
    result.slots = py::cast<std::vector<uint32_t>>(fields[1]);
    result.pieces = py::cast<uint32_t>(fields[4]);
    require(result.pieces > 0 && result.pieces <= MAX_PIECES, "expected 1 to 4194303 pieces");
    for (const uint32_t slot : result.slots)
        require(slot < slot_bytes.size(), "expected slots in range");
    result.loop = make_loop(
        name, {int_params, float_params, result.slots.size(), result.pieces, wide, callee});
    Extents extents(result.slots.size());
    result.loop->add_extents(extents);
    for (size_t slot = 0; slot < result.slots.size(); ++slot)
        if (extents.end(slot) > static_cast<double>(slot_bytes[result.slots[slot]]))
            throw std::invalid_argument("expected slots that hold what loop " + name
                                        + " reads and writes, one is too small");
    return result;
}

// Holds an array's buffer for as long as this object lives.
struct BufferView {
    explicit BufferView(PyObject* of, bool writable)
    {
        if (PyObject_GetBuffer(of, &view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0)
            throw py::error_already_set();
    }
    ~BufferView() { PyBuffer_Release(&view); }
    BufferView(const BufferView&) = delete;
    BufferView& operator=(const BufferView&) = delete;
    Py_buffer view{};
};

class Program {
public:
    Program(const py::list& loops, std::vector<size_t> slot_bytes,
            std::vector<uint32_t> unbound_slots, bool wide)
      : slot_bytes_(std::move(slot_bytes)), unbound_slots_(std::move(unbound_slots)),
        slot_memory_(slot_bytes_.size())
    {
        for (const auto& each : loops)
            loops_.push_back(make_program_loop(each, slot_bytes_, wide));
        for (const ProgramLoop& loop : loops_)
            written_.push_back(loop.slots.back());
        require(loops_.size() < MAX_LOOPS, "expected fewer loops");
        for (const uint32_t slot : unbound_slots_)
            require(slot < slot_bytes_.size(), "expected slots in range");
    }

    void bind(uint32_t slot, const py::object& array)
    {
        require(slot < slot_bytes_.size(), "expected a slot in range");
        const BufferView views(array.ptr(), is_written(slot));
        slot_memory_[slot] = checked_memory(views.view, slot);
    }

    // start_helpers: called once helpers may join; None without helpers.
    double run(const py::list& arrays, const py::object& start_helpers)
    {
        require(arrays.size() == unbound_slots_.size(), "expected an array for each open slot");
        std::vector<std::unique_ptr<BufferView>> views(unbound_slots_.size());
        for (size_t i = 0; i < unbound_slots_.size(); ++i) {
            views[i] = std::make_unique<BufferView>(PyList_GET_ITEM(arrays.ptr(), i),
                                             is_written(unbound_slots_[i]));
            slot_memory_[unbound_slots_[i]] = checked_memory(views[i]->view, unbound_slots_[i]);
        }
        for (const char* each : slot_memory_)
            require(each, "expected an array in each slot");
        const bool is_solo = start_helpers.is_none();
        delayed_s_ = 0;
        helper_count_.store(0);
        max_helpers_.store(~uint32_t{0});
        const EndRun ended{*this};
        if (!is_solo) {
            ticket_.store(WAITING);
            start_helpers();
        }
        size_t number = 0;
        try {
            py::gil_scoped_release unlocked;
            for (; number < loops_.size(); ++number)
                run_loop(number, is_solo);
        } catch (const std::out_of_range& error) {
            throw py::index_error(std::to_string(number) + " " + error.what());
        }
        return delayed_s_;
    }

    void help()
    {
        py::gil_scoped_release unlocked;
        const uint32_t number = helper_count_.fetch_add(1);
        while (number < max_helpers_.load()) {
            const uint64_t ticket = ticket_.load();
            if (ticket == ENDED)
                return;
            if (!take_piece(ticket, BACK))
                helpers_.wait(SPIN_S, [&] { return ticket_.load() != ticket; });
        }
    }

private:
    // A ticket: the index of a loop, and the numbers of its pieces taken from the front and the
    // back.
    static constexpr uint64_t ENDED = ~uint64_t{0}, WAITING = ENDED - 1;
    static constexpr uint64_t BACK = 1;
    static constexpr double SPIN_S = 50e-6; // about the cost of a sleep and a wake-up
    // A wait that exceeds the longest piece by DELAY_S is a delay. The last helper then pauses
    // SOLO_FACTOR times as long (vksched/runtime/cpu/helper_backoff.py). Pieces of helpers are
    // measured in CPU time: a slower core is no delay, a lost core is one.
    static constexpr double DELAY_S = 3e-4, SOLO_FACTOR = 8, MAX_SOLO_S = 0.5;

    struct EndRun {
        Program& program;
        ~EndRun()
        {
            program.ticket_.store(ENDED);
            program.helpers_.wake();
        }
    };

    bool is_written(uint32_t slot) const
    {
        return std::find(written_.begin(), written_.end(), slot) != written_.end();
    }

    char* checked_memory(const Py_buffer& view, uint32_t slot) const
    {
        if (static_cast<size_t>(view.len) != slot_bytes_[slot]
            || reinterpret_cast<uintptr_t>(view.buf) % 4 != 0)
            throw py::buffer_error("expected aligned memory of the slot's size");
        return static_cast<char*>(view.buf);
    }

    void run_loop(size_t number, bool is_solo)
    {
        const ProgramLoop& loop = loops_[number];
        if (is_solo || loop.pieces == 1 || Clock::now() < solo_until_) {
            for (size_t piece = 0; piece < loop.pieces; ++piece)
                loop.run(slot_memory_.data(), piece);
            return;
        }
        done_.store(0);
        longest_piece_ns_.store(0);
        ticket_.store(static_cast<uint64_t>(number) << 2 * BITS);
        helpers_.wake();
        Seconds longest_piece{0};
        auto now = Clock::now();
        while (take_piece(ticket_.load(), FRONT)) {
            const auto before = std::exchange(now, Clock::now());
            longest_piece = std::max<Seconds>(longest_piece, now - before);
        }
        runner_.wait(SPIN_S, [&] { return done_.load() == loop.pieces; });
        const Seconds waited = Clock::now() - now;
        longest_piece =
            std::max<Seconds>(longest_piece, std::chrono::nanoseconds(longest_piece_ns_.load()));
        if (waited > longest_piece + Seconds(DELAY_S)) {
            delayed_s_ += waited.count();
            const uint32_t helpers = std::min(helper_count_.load(), max_helpers_.load());
            const Seconds is_solo{std::min(MAX_SOLO_S, SOLO_FACTOR * waited.count())};
            if (helpers > 1)
                max_helpers_.store(helpers / 2);
            else
                solo_until_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(is_solo);
        }
        if (failed_.exchange(false))
            std::rethrow_exception(std::exchange(failure_, nullptr));
    }

    // Return the CPU time of this thread; 0 if the system does not measure it.
    static int64_t core_ns()
    {
#ifdef _WIN32
        return 0;
#else
        timespec now{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
#endif
    }

    void record_piece_time(int64_t took_ns)
    {
        int64_t longest_piece = longest_piece_ns_.load();
        while (longest_piece < took_ns
               && !longest_piece_ns_.compare_exchange_weak(longest_piece, took_ns))
            ;
    }

    // Take and compute the next piece, from the FRONT or the BACK. Return false if none is left.
    bool take_piece(uint64_t ticket, uint64_t from)
    {
        if (ticket >= WAITING)
            return false;
        const ProgramLoop& loop = loops_[ticket >> 2 * BITS];
        const uint64_t front = ticket >> BITS & MAX_PIECES, back = ticket & MAX_PIECES;
        if (front + back >= loop.pieces)
            return false;
        if (!ticket_.compare_exchange_weak(ticket, ticket + from))
            return true; // another thread was first: retry
        const size_t piece = from == FRONT ? front : loop.pieces - 1 - back;
        const int64_t before = from == FRONT ? 0 : core_ns();
        try {
            loop.run(slot_memory_.data(), piece);
        } catch (...) { // the runner waits for this piece even if it fails
            if (!failure_lock_.test_and_set()) {
                failure_ = std::current_exception();
                failed_.store(true);
                failure_lock_.clear();
            }
        }
        if (from != FRONT)
            record_piece_time(core_ns() - before);
        const uint32_t pieces = loop.pieces;
        if (done_.fetch_add(1) + 1 == pieces)
            runner_.wake();
        return true;
    }

    std::vector<ProgramLoop> loops_;
    std::vector<size_t> slot_bytes_;
    std::vector<uint32_t> unbound_slots_, written_;
    std::vector<char*> slot_memory_;
    std::atomic<uint64_t> ticket_{ENDED};
    std::atomic<uint32_t> done_{0};
    std::atomic_flag failure_lock_ = ATOMIC_FLAG_INIT; // guards failure_
    std::exception_ptr failure_; // of a piece of this loop
    std::atomic<bool> failed_{false};
    SpinWait helpers_, runner_;
    std::atomic<int64_t> longest_piece_ns_{0}; // of a helper in this loop
    std::atomic<uint32_t> helper_count_{0}, max_helpers_{0}; // helpers of this run
    double delayed_s_ = 0; // of this run
    Clock::time_point solo_until_{};
};

} // namespace

void add_program(py::module_& m)
{
    py::list names;
    for (const std::string& name : instr_names())
        names.append(name);
    m.attr("fused_op_names") = names; // by opcode
    m.def("use_blas", &use_blas, py::arg("gemm"), py::arg("gemv"), py::arg("wide"));
    m.attr("gemm_block_units") = py::make_tuple(GEMM_BLOCK_UNITS[0], GEMM_BLOCK_UNITS[1]);
    m.attr("program_version") = 6; // as in vksched/ops/lowering/native_kernels.py
    py::class_<Program>(m, "Program")
        .def(py::init<const py::list&, std::vector<size_t>, std::vector<uint32_t>, bool>(),
             py::arg("loops"), py::arg("slot_bytes"), py::arg("unbound_slots"), py::arg("wide") = true)
        .def("bind", &Program::bind, py::arg("slot"), py::arg("array"))
        .def("run", &Program::run, py::arg("arrays"), py::arg("start_helpers") = py::none())
        .def("help", &Program::help);
}
