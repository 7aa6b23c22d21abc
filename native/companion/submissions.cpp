// Submissions of recordings: in the order of their queue, waited for, timed.
#include "companion/recording.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace companion {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t SLICE_NS = 100'000'000; // between two looks at Ctrl-C

} // namespace

void Recording::submit(const std::vector<std::shared_ptr<Recording>>& after)
{
    std::map<std::shared_ptr<Line>, uint64_t> marks;
    for (const auto& other : after) {
        const Mark mark = other->mark();
        if (!mark.first->semaphore) {
            throw std::runtime_error("[submit] expected recordings that are ordered, got another");
        }
        marks[mark.first] = std::max(marks[mark.first], mark.second);
    }
    std::unique_lock<std::mutex> lock(mutex_);
    require_usable("submit");
    if (state_ != State::recorded) {
        throw std::runtime_error("[submit] expected a finished recording, got an unfinished one; call end()");
    }
    if (pending_) {
        throw std::runtime_error("[submit] expected an idle recording, got a pending one; wait for it");
    }
    // Others may just be leaving a wait for the last submission: the fence is theirs until then.
    left_.wait(lock, [this] { return waiters_ == 0; });
    require_usable("submit");
    if (pending_) {
        throw std::runtime_error("[submit] expected an idle recording, got a pending one; wait for it");
    }
    note_lost(vkResetFences(device_, 1, &fence_), "vkResetFences");
    if (queries_ != VK_NULL_HANDLE && reset_on_host_ != nullptr) {
        reset_on_host_(device_, queries_, 0, 2);
    }
    VkSubmitInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
    info.commandBufferCount = 1;
    info.pCommandBuffers = &commands_;
    std::vector<VkSemaphore> semaphores;
    std::vector<uint64_t> values;
    for (const auto& [line, value] : marks) {
        semaphores.push_back(line->semaphore);
        values.push_back(value);
    }
    const std::vector<VkPipelineStageFlags> stages(marks.size(),
                                                   VK_PIPELINE_STAGE_ALL_COMMANDS_BIT);
    uint64_t number = 0;
    VkTimelineSemaphoreSubmitInfo timeline{};
    timeline.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
    timeline.waitSemaphoreValueCount = static_cast<uint32_t>(values.size());
    timeline.pWaitSemaphoreValues = values.data();
    timeline.signalSemaphoreValueCount = 1;
    timeline.pSignalSemaphoreValues = &number;
    if (line_->semaphore) {
        info.pNext = &timeline;
        info.waitSemaphoreCount = static_cast<uint32_t>(semaphores.size());
        info.pWaitSemaphores = semaphores.data();
        info.pWaitDstStageMask = stages.data();
        info.signalSemaphoreCount = 1;
        info.pSignalSemaphores = &line_->semaphore;
    }
    submitted_ = false;
    VkResult result = VK_SUCCESS;
    {
        std::lock_guard<std::mutex> queue_lock(line_->mutex);
        number = ++line_->last; // in the order in which the queue gets them
        result = vkQueueSubmit(queue_, 1, &info, fence_);
    }
    note_lost(result, "vkQueueSubmit");
    number_ = number;
    waited_for_ = std::move(marks);
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
    const double longest_s = 1e9; // thirty years, and no overflow in the clock
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
    note_lost(result, "vkGetFenceStatus");
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
    note_lost(result, "vkGetQueryPoolResults");
    if (result != VK_SUCCESS) {
        return std::nullopt;
    }
    const uint64_t mask = valid_bits_ >= 64 ? ~uint64_t{ 0 } : (uint64_t{ 1 } << valid_bits_) - 1;
    return static_cast<double>((ticks[1] - ticks[0]) & mask) * period_ns_ * 1e-9;
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
    generation = generation_;
    ++waiters_;
    lock.unlock();
    const VkResult result = vkWaitForFences(device_, 1, &fence_, VK_TRUE, limit_ns);
    lock.lock();
    if (--waiters_ == 0) {
        left_.notify_all();
    }
    if (result == VK_SUCCESS && *generation == generation_) {
        pending_ = false;
    }
    note_lost(result, "vkWaitForFences");
    return result == VK_SUCCESS;
}

} // namespace companion
