// Queues with a mutex and, if submissions wait for each other, a timeline semaphore.
#include "companion/queue.hpp"

#include <map>

namespace companion {

SharedQueue::SharedQueue(std::shared_ptr<kp::Manager> manager, VkQueue queue, std::mutex& mutex, bool ordered)
  : mutex(mutex), manager_(std::move(manager)),
    device_(raw<VkDevice>(get(*manager_, ManagerDevice{}))), queue_(queue)
{
    if (!ordered) {
        return;
    }
    VkSemaphoreTypeCreateInfo type{};
    type.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO;
    type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
    VkSemaphoreCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO;
    info.pNext = &type;
    check(vkCreateSemaphore(device_, &info, nullptr, &semaphore), "vkCreateSemaphore");
}

SharedQueue::~SharedQueue()
{
    if (semaphore && raw<VkDevice>(get(*manager_, ManagerDevice{})) == device_ && wait_until_idle()) {
        vkDestroySemaphore(device_, semaphore, nullptr);
    }
}

bool SharedQueue::wait_until_idle()
{
    VkFenceCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
    VkFence fence = VK_NULL_HANDLE;
    if (vkCreateFence(device_, &info, nullptr, &fence) != VK_SUCCESS) {
        return false;
    }
    VkResult result = VK_SUCCESS;
    {
        std::lock_guard<std::mutex> lock(mutex); // a later SharedQueue of this VkQueue may be in use
        result = vkQueueSubmit(queue_, 0, nullptr, fence);
    }
    const bool submitted = result == VK_SUCCESS;
    if (submitted) {
        result = vkWaitForFences(device_, 1, &fence, VK_TRUE, uint64_t(CLOSE_LIMIT_S * 1e9));
    }
    const bool is_idle = result == VK_SUCCESS || result == VK_ERROR_DEVICE_LOST;
    if (is_idle || !submitted) {
        vkDestroyFence(device_, fence, nullptr);
    }
    return is_idle;
}

std::shared_ptr<SharedQueue> shared_queue_of(VkQueue queue, std::shared_ptr<kp::Manager> manager, bool ordered)
{
    static std::mutex guard;
    static std::map<VkQueue, std::mutex> mutexes;
    static std::map<VkQueue, std::weak_ptr<SharedQueue>> shared_queues;
    std::lock_guard<std::mutex> lock(guard);
    std::shared_ptr<SharedQueue> shared_queue = shared_queues[queue].lock();
    if (!shared_queue || !shared_queue->is_of(manager)) {
        shared_queue = std::make_shared<SharedQueue>(std::move(manager), queue, mutexes[queue], ordered);
        shared_queues[queue] = shared_queue;
    }
    return shared_queue;
}

} // namespace companion
