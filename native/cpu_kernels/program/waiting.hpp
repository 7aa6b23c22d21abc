// How threads of a program wait for each other.
#pragma once

#include "cpu_kernels/operands.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

INLINED void rest()
{
#if defined(__x86_64__)
    _mm_pause();
#endif
}

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// Threads that wait for a moment: each spins for a while, then sleeps until `wake`.
class Waiting {
public:
    // Returns once `is_over` holds. It reads atomics, and who changes them calls `wake` afterwards.
    template <class IsOver>
    void wait(double spin_s, IsOver is_over)
    {
        const auto until = Clock::now() + Seconds(spin_s);
        do {
            for (uint32_t turns = 0; turns < TURNS; ++turns) {
                if (is_over())
                    return;
                rest();
            }
        } while (Clock::now() < until);
        std::unique_lock<std::mutex> lock(mutex_);
        sleeping_.fetch_add(1); // before the look at what `wake` comes behind
        changed_.wait(lock, is_over);
        sleeping_.fetch_sub(1);
    }
    void wake()
    {
        if (sleeping_.load() == 0)
            return;
        { const std::lock_guard<std::mutex> lock(mutex_); } // who has looked sleeps by now
        changed_.notify_all();
    }

private:
    static constexpr uint32_t TURNS = 64; // between two looks at the clock

    std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<uint32_t> sleeping_{0};
};
