// Submissions of recordings: in the order of their queue; waits and timestamps.
#include "companion/recording.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace companion {
namespace {

constexpr uint64_t SLICE_NS = 100'000'000; // between two checks for Ctrl-C

// A thread that sleeps in vkWaitForFences returns some tens of microseconds after the fence is
// signalled, which each token of a language model would pay. A thread therefore polls from POLL
// before to POLL after the expected end, which the last submission of the recording tells. It does
// not poll in waits longer than LONGEST_POLLED, of which this is less than a hundredth, and not on
// CPU drivers, which need the core.
constexpr auto POLL = std::chrono::microseconds(100);
constexpr auto LONGEST_POLLED = std::chrono::milliseconds(10);

} // namespace

FencePolling fence_polling;

void Recording::submit(const std::vector<std::shared_ptr<Recording>>& after)
{
    std::map<std::shared_ptr<SharedQueue>, uint64_t> wait_points;
    for (const auto& other : after) {
        const TimelinePoint timeline_point = other->timeline_point();
        if (!timeline_point.first->semaphore) {
            throw std::runtime_error("[submit] expected recordings that are ordered, got another");
        }
        wait_points[timeline_point.first] = std::max(wait_points[timeline_point.first], timeline_point.second);
    }
    std::unique_lock<std::mutex> lock(mutex_);
    require_usable("submit");
    if (state_ != State::recorded) {
        throw std::runtime_error("[submit] expected a finished recording, got an unfinished one; call end()");
    }
    if (pending_) {
        throw std::runtime_error("[submit] expected an idle recording, got a pending one; wait for it");
    }
    // Other threads may be leaving a wait for the last submission and still use the fence.
    waiters_left_.wait(lock, [this] { return waiters_ == 0; });
    require_usable("submit");
    if (pending_) {
        throw std::runtime_error("[submit] expected an idle recording, got a pending one; wait for it");
    }
    check_result(vkResetFences(device_, 1, &fence_), "vkResetFences");
    if (queries_ != VK_NULL_HANDLE && reset_query_pool_ != nullptr) {
        reset_query_pool_(device_, queries_, 0, 2);
    }
    VkSubmitInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
    info.commandBufferCount = 1;
    info.pCommandBuffers = &commands_;
    std::vector<VkSemaphore> semaphores;
    std::vector<uint64_t> values;
    for (const auto& [queue, value] : wait_points) {
        semaphores.push_back(queue->semaphore);
        values.push_back(value);
    }
    const std::vector<VkPipelineStageFlags> stages(wait_points.size(),
                                                   VK_PIPELINE_STAGE_ALL_COMMANDS_BIT);
    uint64_t value = 0;
    VkTimelineSemaphoreSubmitInfo timeline{};
    timeline.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
    timeline.waitSemaphoreValueCount = static_cast<uint32_t>(values.size());
    timeline.pWaitSemaphoreValues = values.data();
    timeline.signalSemaphoreValueCount = 1;
    timeline.pSignalSemaphoreValues = &value;
    if (shared_queue_->semaphore) {
        info.pNext = &timeline;
        info.waitSemaphoreCount = static_cast<uint32_t>(semaphores.size());
        info.pWaitSemaphores = semaphores.data();
        info.pWaitDstStageMask = stages.data();
        info.signalSemaphoreCount = 1;
        info.pSignalSemaphores = &shared_queue_->semaphore;
    }
    submitted_ = false;
    VkResult result = VK_SUCCESS;
    {
        std::lock_guard<std::mutex> queue_lock(shared_queue_->mutex);
        value = ++shared_queue_->last_value; // increasing in the order of submission
        result = vkQueueSubmit(queue_, 1, &info, fence_);
    }
    check_result(result, "vkQueueSubmit");
    submitted_at_ = Clock::now();
    timeline_value_ = value;
    wait_points_ = std::move(wait_points);
    submitted_ = true;
    pending_ = true;
    ++generation_;
}

void Recording::wait(double timeout_s)
{
    if (std::isnan(timeout_s) || timeout_s < 0) {
        throw py::value_error("[wait] expected a time of 0 s or more, got " +
                              std::to_string(timeout_s));
    }
    const double longest_s = 1e9; // thirty years: no overflow of the clock
    const auto until =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(
                       std::chrono::duration<double>(std::min(timeout_s, longest_s)));
    std::optional<uint64_t> generation;
    while (true) {
        const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until - Clock::now());
        const uint64_t left_ns = left.count() > 0 ? static_cast<uint64_t>(left.count()) : 0;
        bool ended = false;
        {
            py::gil_scoped_release no_gil;
            ended = wait_slice(std::min(left_ns, SLICE_NS), generation);
        }
        if (ended) {
            return;
        }
        if (PyErr_CheckSignals() != 0) {
            throw py::error_already_set();
        }
        if (left_ns <= SLICE_NS) {
            throw Failure("[wait] not ended after " + std::to_string(timeout_s) + " s", VK_TIMEOUT);
        }
    }
}

bool Recording::done()
{
    std::lock_guard<std::mutex> lock(mutex_);
    require_usable("done");
    if (!pending_) {
        return submitted_;
    }
    const VkResult result = vkGetFenceStatus(device_, fence_);
    check_result(result, "vkGetFenceStatus");
    if (result == VK_SUCCESS) {
        pending_ = false;
    }
    return !pending_;
}

bool Recording::pending()
{
    std::lock_guard<std::mutex> lock(mutex_);
    return pending_;
}

std::optional<double> Recording::duration_s()
{
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_ || lost_ || pending_ || !submitted_ || queries_ == VK_NULL_HANDLE) {
        return std::nullopt;
    }
    std::array<uint64_t, 2> ticks{};
    const VkResult result =
      vkGetQueryPoolResults(device_, queries_, 0, 2, sizeof ticks, ticks.data(),
                            sizeof(uint64_t), VK_QUERY_RESULT_64_BIT);
    check_result(result, "vkGetQueryPoolResults");
    if (result != VK_SUCCESS) {
        return std::nullopt;
    }
    const uint64_t mask = timestamp_valid_bits_ >= 64 ? ~uint64_t{ 0 } : (uint64_t{ 1 } << timestamp_valid_bits_) - 1;
    return static_cast<double>((ticks[1] - ticks[0]) & mask) * timestamp_period_ns_ * 1e-9;
}

bool Recording::wait_slice(uint64_t limit_ns, std::optional<uint64_t>& generation)
{
    std::unique_lock<std::mutex> lock(mutex_);
    require_usable("wait");
    if (generation && *generation != generation_) {
        return true; // ended, and already submitted again
    }
    if (!pending_) {
        return true;
    }
    const bool is_first = !generation;
    generation = generation_;
    const auto poll_from = is_first ? poll_begin() : std::nullopt;
    ++waiters_;
    lock.unlock();
    const bool had_ended = poll_from && vkGetFenceStatus(device_, fence_) == VK_SUCCESS;
    fence_polling.ended_waits += had_ended;
    const VkResult result = had_ended ? VK_SUCCESS : wait_for_fence(limit_ns, poll_from);
    lock.lock();
    if (--waiters_ == 0) {
        waiters_left_.notify_all();
    }
    if (result == VK_SUCCESS && *generation == generation_) {
        pending_ = false;
        const auto taken = Clock::now() - submitted_at_;
        // a late wait tells only the most that the submission took
        last_duration_ = had_ended ? std::min(last_duration_.value_or(taken), taken) : taken;
    }
    check_result(result, "vkWaitForFences");
    return result == VK_SUCCESS;
}

std::optional<Clock::time_point> Recording::poll_begin() const
{
    const Clock::duration expected = last_duration_.value_or(Clock::duration::zero());
    if ((is_software_ && !fence_polling.of_software) || expected > LONGEST_POLLED) {
        return std::nullopt;
    }
    return std::max(Clock::now(), submitted_at_ + expected - POLL);
}

VkResult Recording::wait_for_fence(uint64_t limit_ns, std::optional<Clock::time_point> poll_from)
{
    if (!poll_from) {
        return vkWaitForFences(device_, 1, &fence_, VK_TRUE, limit_ns);
    }
    const auto until = Clock::now() + std::chrono::nanoseconds(limit_ns);
    const auto sleep = [&](Clock::time_point end) {
        const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(end - Clock::now());
        const auto left_ns = static_cast<uint64_t>(std::max<int64_t>(left.count(), 0));
        return vkWaitForFences(device_, 1, &fence_, VK_TRUE, left_ns);
    };
    if (*poll_from < until) {
        VkResult result = VK_TIMEOUT;
        if (Clock::now() < *poll_from) {
            result = sleep(*poll_from);
        }
        const auto poll_until = std::min(until, *poll_from + 2 * POLL);
        while (result == VK_TIMEOUT && Clock::now() < poll_until) {
            const VkResult status = vkGetFenceStatus(device_, fence_);
            result = status == VK_NOT_READY ? VK_TIMEOUT : status;
            fence_polling.ended_waits += status == VK_SUCCESS;
        }
        if (result != VK_TIMEOUT) {
            return result;
        }
    }
    return sleep(until);
}

} // namespace companion
