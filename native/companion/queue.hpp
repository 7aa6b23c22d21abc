// A queue as recordings share it.
#pragma once

#include "companion/companion.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace companion {

constexpr double CLOSE_LIMIT_S = 10.0; // for what is still pending when its owner goes

// A VkQueue must be used by one thread at a time. Where submissions to several queues wait for each
// other, each one sets the timeline semaphore of its queue to the number that it has there.
class Line {
  public:
    // mutex: of the queue, which outlives the line.
    Line(std::shared_ptr<kp::Manager> manager, VkQueue queue, std::mutex& mutex, bool ordered);
    Line(const Line&) = delete;
    Line& operator=(const Line&) = delete;
    ~Line();

    // A driver may give a queue of a later device the handle of one that is gone.
    bool is_of(const std::shared_ptr<kp::Manager>& manager) const { return manager_ == manager; }

    std::mutex& mutex;
    VkSemaphore semaphore = VK_NULL_HANDLE; // none where nothing waits for it
    uint64_t last = 0; // what the newest submission sets it to

  private:
    // Returns whether the queue is through with the semaphore. Fences say so, but Mesa's software
    // driver still touches a semaphore after them, until it turns to the next submission.
    bool settle();

    std::shared_ptr<kp::Manager> manager_;
    VkDevice device_;
    VkQueue queue_;
};

// ordered: whether it has a timeline semaphore.
std::shared_ptr<Line> line_of(VkQueue queue, std::shared_ptr<kp::Manager> manager, bool ordered);

// What a submission has to wait for on the device: a queue's submission, by its number.
using Mark = std::pair<std::shared_ptr<Line>, uint64_t>;

} // namespace companion
