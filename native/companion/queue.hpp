// A queue that recordings share.
#pragma once

#include "companion/companion.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace companion {

constexpr double CLOSE_LIMIT_S = 10.0; // limit of waits in destructors

// A VkQueue is externally synchronized. If submissions to several queues wait for each other, each
// one signals the timeline semaphore of its queue with its own value.
class SharedQueue {
  public:
    // mutex: of the VkQueue; it outlives this object.
    SharedQueue(std::shared_ptr<kp::Manager> manager, VkQueue queue, std::mutex& mutex, bool ordered);
    SharedQueue(const SharedQueue&) = delete;
    SharedQueue& operator=(const SharedQueue&) = delete;
    ~SharedQueue();

    // The handle of a VkQueue may be reused for a later device.
    bool is_of(const std::shared_ptr<kp::Manager>& manager) const { return manager_ == manager; }

    std::mutex& mutex;
    VkSemaphore semaphore = VK_NULL_HANDLE; // null if not ordered
    uint64_t last_value = 0; // signalled by the newest submission

  private:
    // Return whether the queue no longer uses the semaphore. A fence is not enough: Mesa's software
    // driver touches a semaphore after it, until the next submission.
    bool wait_until_idle();

    std::shared_ptr<kp::Manager> manager_;
    VkDevice device_;
    VkQueue queue_;
};

// ordered: create a timeline semaphore.
std::shared_ptr<SharedQueue> shared_queue_of(VkQueue queue, std::shared_ptr<kp::Manager> manager, bool ordered);

// A point that a submission waits for: a queue, and the semaphore value of its submission.
using TimelinePoint = std::pair<std::shared_ptr<SharedQueue>, uint64_t>;

} // namespace companion
