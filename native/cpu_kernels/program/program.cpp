// Programs: many loops one after the other in one call, without the interpreter lock.
//
//   p = Program([("add", slots, numbers, reals, pieces), ...], [bytes of each slot], [open slots])
//   p.bind(slot, array)       where a value lies in each run; the caller keeps it
//   p.run(arrays, begin)      those of the open slots, then all loops; begin() calls helpers; returns
//                             how long it waited for helpers without a core
//   p.help()                  takes pieces of loops until the run ends; on any thread
//
// vksched/ir/native_program.py says what loops there are and how they are told of sizes; a slot is
// where one value lies, without gaps. Threads take pieces from one counter, so a thread that gets no
// core takes none, and a run never waits for it. The runner takes them from the front, helpers from
// the back: each then finds in its own caches some of what it made by the loop before. Who waits
// spins for a moment, then sleeps: a core on which another program works goes to the thread that has
// the piece. A helper that loses its core within a piece delays the run; after such a delay half of
// the helpers leave, or the last one rests for a while, and the run returns the seconds of all
// delays. An index outside its axis raises IndexError with the number of the loop, and what was
// expected. A loop that would reach beyond a slot raises ValueError when the program is made.
// Examples: tests/ops/native/test_native_programs.py, tests/runtime/test_busy_threads.py.
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

// Of the number of a piece in a ticket.
constexpr int BITS = 22;
constexpr uint64_t FRONT = uint64_t{1} << BITS, MOST_PIECES = FRONT - 1;
constexpr uint64_t MOST_STEPS = (uint64_t{1} << (64 - 2 * BITS)) - 1;

// One loop, and where its operands and its result lie.
struct Step {
    std::unique_ptr<Loop> loop;
    std::vector<uint32_t> slots;
    uint32_t pieces = 1;

    void run(char* const* at, size_t piece) const { loop->run({at, slots.data()}, piece); }
};

// "linear_packed q4_K": the loop, and what it calls.
std::pair<std::string, std::string> parted(const std::string& name)
{
    const size_t at = name.find(' ');
    return {name.substr(0, at), at == std::string::npos ? "" : name.substr(at + 1)};
}

Step step_of(const py::handle& given, const std::vector<size_t>& bytes, bool wide)
{
    const auto told = py::cast<py::tuple>(given);
    const auto [name, calls] = parted(py::cast<std::string>(told[0]));
    const auto numbers = py::cast<std::vector<int64_t>>(told[2]);
    const auto reals = py::cast<std::vector<float>>(told[3]);
    Step made;
    made.slots = py::cast<std::vector<uint32_t>>(told[1]);
    made.pieces = py::cast<uint32_t>(told[4]);
    require(made.pieces > 0 && made.pieces <= MOST_PIECES, "expected 1 to 4194303 pieces");
    for (const uint32_t slot : made.slots)
        require(slot < bytes.size(), "expected slots that there are");
    made.loop = loop_named(name, {numbers, reals, made.slots.size(), made.pieces, wide, calls});
    Extents extents(made.slots.size());
    made.loop->reach(extents);
    for (size_t at = 0; at < made.slots.size(); ++at)
        if (extents.end(at) > static_cast<double>(bytes[made.slots[at]]))
            throw std::invalid_argument("expected slots that hold what loop " + name
                                        + " reads and writes, one is too small");
    return made;
}

// An array's memory, for as long as this lives.
struct Held {
    explicit Held(PyObject* of, bool writable)
    {
        if (PyObject_GetBuffer(of, &view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0)
            throw py::error_already_set();
    }
    ~Held() { PyBuffer_Release(&view); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    Py_buffer view{};
};

class Program {
public:
    Program(const py::list& steps, std::vector<size_t> bytes, std::vector<uint32_t> open,
            bool wide)
      : bytes_(std::move(bytes)), open_(std::move(open)), at_(bytes_.size())
    {
        for (const auto& each : steps)
            steps_.push_back(step_of(each, bytes_, wide));
        for (const Step& step : steps_)
            written_.push_back(step.slots.back());
        require(steps_.size() < MOST_STEPS, "expected fewer loops");
        for (const uint32_t slot : open_)
            require(slot < bytes_.size(), "expected slots that there are");
    }

    void bind(uint32_t slot, const py::object& array)
    {
        require(slot < bytes_.size(), "expected a slot that there is");
        const Held held(array.ptr(), is_written(slot));
        at_[slot] = checked(held.view, slot);
    }

    // begin: called once helpers may come; None without.
    double run(const py::list& arrays, const py::object& begin)
    {
        require(arrays.size() == open_.size(), "expected an array for each open slot");
        std::vector<std::unique_ptr<Held>> held(open_.size());
        for (size_t i = 0; i < open_.size(); ++i) {
            held[i] = std::make_unique<Held>(PyList_GET_ITEM(arrays.ptr(), i),
                                             is_written(open_[i]));
            at_[open_[i]] = checked(held[i]->view, open_[i]);
        }
        for (const char* each : at_)
            require(each, "expected an array in each slot");
        const bool alone = begin.is_none();
        delayed_s_ = 0;
        inside_.store(0);
        allowed_.store(~uint32_t{0});
        const Ended ended{*this};
        if (!alone) {
            ticket_.store(WAITING);
            begin();
        }
        size_t number = 0;
        try {
            py::gil_scoped_release unlocked;
            for (; number < steps_.size(); ++number)
                perform(number, alone);
        } catch (const std::out_of_range& error) {
            throw py::index_error(std::to_string(number) + " " + error.what());
        }
        return delayed_s_;
    }

    void help()
    {
        py::gil_scoped_release unlocked;
        const uint32_t number = inside_.fetch_add(1);
        while (number < allowed_.load()) {
            const uint64_t ticket = ticket_.load();
            if (ticket == ENDED)
                return;
            if (!take(ticket, BACK))
                helpers_.wait(SPIN_S, [&] { return ticket_.load() != ticket; });
        }
    }

private:
    // A ticket: the number of a step, and of its pieces that were taken from the front and the back.
    static constexpr uint64_t ENDED = ~uint64_t{0}, WAITING = ENDED - 1;
    static constexpr uint64_t BACK = 1;
    static constexpr double SPIN_S = 50e-6; // to sleep and to wake up takes as long
    // A wait that is longer than a piece by this is a delay; the last helper rests ALONE times as
    // long (vksched/runtime/cpu/helper_backoff.py). Helpers' pieces count by the time of their cores: one
    // that is slower than the caller's delays nobody, one that is lost does.
    static constexpr double DELAY_S = 3e-4, ALONE = 8, MOST_ALONE_S = 0.5;

    struct Ended {
        Program& program;
        ~Ended()
        {
            program.ticket_.store(ENDED);
            program.helpers_.wake();
        }
    };

    bool is_written(uint32_t slot) const
    {
        return std::find(written_.begin(), written_.end(), slot) != written_.end();
    }

    char* checked(const Py_buffer& view, uint32_t slot) const
    {
        if (static_cast<size_t>(view.len) != bytes_[slot]
            || reinterpret_cast<uintptr_t>(view.buf) % 4 != 0)
            throw py::buffer_error("expected aligned memory of the slot's size");
        return static_cast<char*>(view.buf);
    }

    void perform(size_t number, bool alone)
    {
        const Step& step = steps_[number];
        if (alone || step.pieces == 1 || Clock::now() < alone_until_) {
            for (size_t piece = 0; piece < step.pieces; ++piece)
                step.run(at_.data(), piece);
            return;
        }
        done_.store(0);
        longest_ns_.store(0);
        ticket_.store(static_cast<uint64_t>(number) << 2 * BITS);
        helpers_.wake();
        Seconds longest{0};
        auto now = Clock::now();
        while (take(ticket_.load(), FRONT)) {
            const auto before = std::exchange(now, Clock::now());
            longest = std::max<Seconds>(longest, now - before);
        }
        runner_.wait(SPIN_S, [&] { return done_.load() == step.pieces; });
        const Seconds waited = Clock::now() - now;
        longest = std::max<Seconds>(longest, std::chrono::nanoseconds(longest_ns_.load()));
        if (waited > longest + Seconds(DELAY_S)) {
            delayed_s_ += waited.count();
            const uint32_t helpers = std::min(inside_.load(), allowed_.load());
            const Seconds alone{std::min(MOST_ALONE_S, ALONE * waited.count())};
            if (helpers > 1)
                allowed_.store(helpers / 2);
            else
                alone_until_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(alone);
        }
        if (failed_.exchange(false))
            std::rethrow_exception(std::exchange(failure_, nullptr));
    }

    // What this thread had of a core so far; always 0 where the system does not say it for pieces.
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

    void count(int64_t took_ns)
    {
        int64_t longest = longest_ns_.load();
        while (longest < took_ns && !longest_ns_.compare_exchange_weak(longest, took_ns))
            ;
    }

    // Takes the next piece from an end, 1 the back or FRONT, and makes it; returns false where there
    // is none.
    bool take(uint64_t ticket, uint64_t from)
    {
        if (ticket >= WAITING)
            return false;
        const Step& step = steps_[ticket >> 2 * BITS];
        const uint64_t front = ticket >> BITS & MOST_PIECES, back = ticket & MOST_PIECES;
        if (front + back >= step.pieces)
            return false;
        if (!ticket_.compare_exchange_weak(ticket, ticket + from))
            return true; // another one was first: look again
        const size_t piece = from == FRONT ? front : step.pieces - 1 - back;
        const int64_t before = from == FRONT ? 0 : core_ns();
        try {
            step.run(at_.data(), piece);
        } catch (...) { // others wait for this piece, whatever becomes of it
            if (!failing_.test_and_set()) {
                failure_ = std::current_exception();
                failed_.store(true);
                failing_.clear();
            }
        }
        if (from != FRONT)
            count(core_ns() - before);
        const uint32_t pieces = step.pieces;
        if (done_.fetch_add(1) + 1 == pieces)
            runner_.wake();
        return true;
    }

    std::vector<Step> steps_;
    std::vector<size_t> bytes_;
    std::vector<uint32_t> open_, written_;
    std::vector<char*> at_;
    std::atomic<uint64_t> ticket_{ENDED};
    std::atomic<uint32_t> done_{0};
    std::atomic_flag failing_ = ATOMIC_FLAG_INIT; // one thread at a time tells why
    std::exception_ptr failure_;                  // of a piece of this step
    std::atomic<bool> failed_{false};
    Waiting helpers_, runner_;
    std::atomic<int64_t> longest_ns_{0};           // of a helper's piece in this step
    std::atomic<uint32_t> inside_{0}, allowed_{0}; // helpers of this run
    double delayed_s_ = 0;                         // of this run
    Clock::time_point alone_until_{};
};

} // namespace

void add_program(py::module_& m)
{
    py::list steps;
    for (const std::string& name : step_names())
        steps.append(name);
    m.attr("program_steps") = steps; // of chains, by number
    m.def("use_blas", &use_blas, py::arg("gemm"), py::arg("gemv"), py::arg("wide"));
    m.attr("product_units") = py::make_tuple(PRODUCT_UNITS[0], PRODUCT_UNITS[1]);
    m.attr("program_version") = 3;   // of what loops are told, as vksched/ir/native_program.py has it
    py::class_<Program>(m, "Program")
        .def(py::init<const py::list&, std::vector<size_t>, std::vector<uint32_t>, bool>(),
             py::arg("steps"), py::arg("bytes"), py::arg("open"), py::arg("wide") = true)
        .def("bind", &Program::bind, py::arg("slot"), py::arg("array"))
        .def("run", &Program::run, py::arg("arrays"), py::arg("begin") = py::none())
        .def("help", &Program::help);
}
