// How the threads of a program wait for each other.
#pragma once

#include "cpu_kernels/operands.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

INLINED void cpu_relax()
{
#if defined(__x86_64__)
    _mm_pause();
#endif
}

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// A wait for a short time: each thread spins for a while, then sleeps until `wake`.
class SpinWait {
public:
    // Return once `is_over` holds. It reads atomics; a thread that changes them calls `wake`
    // afterwards.
    template <class IsOver>
    void wait(double spin_s, IsOver is_over)
    {
        const auto until = Clock::now() + Seconds(spin_s);
        do {
            for (uint32_t spins = 0; spins < SPINS; ++spins) {
                if (is_over())
                    return;
                cpu_relax();
            }
        } while (Clock::now() < until);
        std::unique_lock<std::mutex> lock(mutex_);
        sleeping_.fetch_add(
            1); // before is_over is evaluated, as `wake` checks this after the change
        changed_.wait(lock, is_over);
        sleeping_.fetch_sub(1);
    }
    void wake()
    {
        if (sleeping_.load() == 0)
            return;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
        } // a thread that has evaluated is_over sleeps by now
        changed_.notify_all();
    }

private:
    static constexpr uint32_t SPINS = 64; // between two reads of the clock

    std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<uint32_t> sleeping_{0};
};
