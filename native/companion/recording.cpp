// Recordings: construction, destruction, and Python bindings.
#include "companion/host_import.hpp"
#include "companion/recording.hpp"

#include <algorithm>
#include <chrono>

namespace companion {

Recording::Recording(std::shared_ptr<kp::Manager> manager, std::shared_ptr<kp::Sequence> sequence,
                     uint32_t queue, bool ordered)
  : manager_(std::move(manager)), sequence_(std::move(sequence))
{
    require_open(*manager_);
    device_ = raw<VkDevice>(get(*manager_, ManagerDevice{}));
    commands_ = raw<VkCommandBuffer>(get(*sequence_, SequenceCommands{}));
    pool_ = raw<VkCommandPool>(get(*sequence_, SequencePool{}));
    queue_ = raw<VkQueue>(get(*sequence_, SequenceQueue{}));
    if (raw<VkDevice>(get(*sequence_, SequenceDevice{})) != device_) {
        throw py::value_error("[recording] expected a sequence of this manager, got another's");
    }
    if (pool_ == VK_NULL_HANDLE || commands_ == VK_NULL_HANDLE) {
        throw Failure("vkAllocateCommandBuffers", VK_ERROR_OUT_OF_HOST_MEMORY);
    }
    shared_queue_ = shared_queue_of(queue_, manager_, ordered);

    const auto physical = raw<VkPhysicalDevice>(get(*manager_, ManagerPhysical{}));
    const auto families = queue_families(physical);
    const uint32_t family = get(*manager_, ManagerFamilies{}).at(queue);
    is_transfer_only_ = (families.at(family).queueFlags & VK_QUEUE_COMPUTE_BIT) == 0;
    if (ordered && kp_hooks.host_query_reset_enabled(device_)) {
        reset_query_pool_ = reinterpret_cast<PFN_vkResetQueryPoolEXT>(
          vkGetDeviceProcAddr(device_, "vkResetQueryPoolEXT"));
    }
    // a transfer-only queue cannot reset queries
    timestamp_valid_bits_ =
      is_transfer_only_ && reset_query_pool_ == nullptr ? 0 : families.at(family).timestampValidBits;
    VkPhysicalDeviceProperties properties{};
    vkGetPhysicalDeviceProperties(physical, &properties);
    timestamp_period_ns_ = properties.limits.timestampPeriod;
    std::copy_n(properties.limits.maxComputeWorkGroupCount, 3, max_groups_.begin());
    is_software_ = properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;

    VkFenceCreateInfo fence_info{};
    fence_info.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
    check(vkCreateFence(device_, &fence_info, nullptr, &fence_), "vkCreateFence");
    if (timestamp_valid_bits_ > 0) {
        VkQueryPoolCreateInfo query_info{};
        query_info.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO;
        query_info.queryType = VK_QUERY_TYPE_TIMESTAMP;
        query_info.queryCount = 2;
        const VkResult result = vkCreateQueryPool(device_, &query_info, nullptr, &queries_);
        if (result < VK_SUCCESS) {
            vkDestroyFence(device_, fence_, nullptr); // no destructor runs after a throw
            throw Failure("vkCreateQueryPool", result);
        }
    }
}

Recording::~Recording() { close_within(CLOSE_LIMIT_S); }

bool Recording::close_within(double limit_s)
{
    std::unique_lock<std::mutex> lock(mutex_);
    if (closed_) {
        return true;
    }
    closed_ = true;
    if (raw<VkDevice>(get(*manager_, ManagerDevice{})) != device_) {
        return true; // the device is destroyed, and the fence with it
    }
    const auto limit = std::chrono::duration<double>(limit_s);
    bool idle = true;
    if (pending_) {
        const VkResult result = vkWaitForFences(
          device_, 1, &fence_, VK_TRUE, static_cast<uint64_t>(std::max(limit_s, 0.0) * 1e9));
        idle = result == VK_SUCCESS || result == VK_ERROR_DEVICE_LOST;
    }
    idle = waiters_left_.wait_for(lock, limit, [this] { return waiters_ == 0; }) && idle;
    if (!idle) {
        new LeakedResources{ manager_,
                  sequence_,
                  std::move(algorithms_),
                  std::move(tensors_),
                  std::move(host_imports_),
                  std::move(wait_points_),
                  shared_queue_ };
        end_without_destructors();
        return false;
    }
    pending_ = false;
    vkDestroyFence(device_, fence_, nullptr);
    vkDestroyQueryPool(device_, queries_, nullptr);
    algorithms_.clear();
    tensors_.clear();
    host_imports_.clear();
    wait_points_.clear();
    shared_queue_.reset();
    return true;
}

TimelinePoint Recording::timeline_point()
{
    std::lock_guard<std::mutex> lock(mutex_);
    require_usable("submit");
    if (!submitted_) {
        throw std::runtime_error("[submit] expected a submitted recording to wait for, got another");
    }
    return { shared_queue_, timeline_value_ };
}

void Recording::require_usable(const char* what) const
{
    if (closed_ || raw<VkDevice>(get(*manager_, ManagerDevice{})) != device_) {
        throw std::runtime_error(std::string("[") + what + "] expected an open recording, got a closed one");
    }
    if (lost_) {
        throw Failure(what, VK_ERROR_DEVICE_LOST);
    }
}

void Recording::require_recording(const char* what) const
{
    require_usable(what);
    if (state_ != State::recording) {
        throw std::runtime_error(std::string("[") + what + "] expected a begun recording, got another; call begin()");
    }
}

void Recording::check_result(VkResult result, const char* call)
{
    if (result == VK_ERROR_DEVICE_LOST) {
        lost_ = true;
        pending_ = false;
    }
    check(result, call);
}

void bind_recording(py::module_& m)
{
    using no_gil = py::call_guard<py::gil_scoped_release>;
    py::class_<HostImport, std::shared_ptr<HostImport>>(m, "HostImport")
      .def(py::init<std::shared_ptr<kp::Manager>, uint64_t, uint64_t>(), py::arg("manager"),
           py::arg("address"), py::arg("size_bytes"), no_gil());
    py::class_<Recording, std::shared_ptr<Recording>>(m, "Recording")
      .def(py::init<std::shared_ptr<kp::Manager>, std::shared_ptr<kp::Sequence>, uint32_t, bool>(),
           py::arg("manager"), py::arg("sequence"), py::arg("queue") = 0, py::arg("ordered") = false)
      .def("begin", &Recording::begin)
      .def("dispatch", &Recording::dispatch, py::arg("algorithm"), py::arg("groups"), py::arg("push"))
      .def("copy", &Recording::copy, py::arg("source"), py::arg("target"), py::arg("source_word"),
           py::arg("target_word"), py::arg("words"))
      .def("copy_host_import", &Recording::copy_host_import, py::arg("source"), py::arg("target"),
           py::arg("source_byte"), py::arg("target_word"), py::arg("words"))
      .def("barrier", &Recording::barrier, py::arg("source"), py::arg("destination"))
      .def("end", &Recording::end)
      .def("submit", &Recording::submit,
           py::arg("after") = std::vector<std::shared_ptr<Recording>>{}, no_gil())
      .def("wait", &Recording::wait, py::arg("timeout_s"))
      .def("done", &Recording::done, no_gil())
      .def_property_readonly("pending", &Recording::pending, no_gil())
      .def("duration_s", &Recording::duration_s, no_gil())
      .def("close", &Recording::close_within, py::arg("limit_s") = CLOSE_LIMIT_S, no_gil());
    m.def("poll_software_fences", [](bool on) { fence_polling.of_software = on; }, py::arg("on"),
          "For tests: poll the fences of CPU drivers like those of GPUs.");
    m.def("polled_waits", [] { return fence_polling.ended_waits.load(); },
          "Return the number of waits that a query of the fence ended, the first one included.");
}

} // namespace companion
