// Queues with a mutex and, where submissions wait for each other, a timeline semaphore.
#include "companion/queue.hpp"

#include <map>

namespace companion {

Line::Line(std::shared_ptr<kp::Manager> manager, VkQueue queue, std::mutex& mutex, bool ordered)
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

Line::~Line()
{
    if (semaphore && raw<VkDevice>(get(*manager_, ManagerDevice{})) == device_ && settle()) {
        vkDestroySemaphore(device_, semaphore, nullptr);
    }
}

bool Line::settle()
{
    VkFenceCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
    VkFence fence = VK_NULL_HANDLE;
    if (vkCreateFence(device_, &info, nullptr, &fence) != VK_SUCCESS) {
        return false;
    }
    VkResult result = VK_SUCCESS;
    {
        std::lock_guard<std::mutex> lock(mutex); // a later line of this queue may be at work
        result = vkQueueSubmit(queue_, 0, nullptr, fence);
    }
    const bool submitted = result == VK_SUCCESS;
    if (submitted) {
        result = vkWaitForFences(device_, 1, &fence, VK_TRUE, uint64_t(CLOSE_LIMIT_S * 1e9));
    }
    const bool settled = result == VK_SUCCESS || result == VK_ERROR_DEVICE_LOST;
    if (settled || !submitted) {
        vkDestroyFence(device_, fence, nullptr);
    }
    return settled;
}

std::shared_ptr<Line> line_of(VkQueue queue, std::shared_ptr<kp::Manager> manager, bool ordered)
{
    static std::mutex guard;
    static std::map<VkQueue, std::mutex> mutexes;
    static std::map<VkQueue, std::weak_ptr<Line>> lines;
    std::lock_guard<std::mutex> lock(guard);
    std::shared_ptr<Line> line = lines[queue].lock();
    if (!line || !line->is_of(manager)) {
        line = std::make_shared<Line>(std::move(manager), queue, mutexes[queue], ordered);
        lines[queue] = line;
    }
    return line;
}

} // namespace companion
