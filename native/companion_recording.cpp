// Recording: a kp.Sequence recorded with barriers, submitted without blocking, waited for without
// the GIL, timed, every VkResult checked.
#include "companion.hpp"
#include "imported.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace companion {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double CLOSE_LIMIT_S = 10.0;
constexpr uint64_t SLICE_NS = 100'000'000; // between two looks at Ctrl-C

// A queue as recordings share it. A VkQueue must be used by one thread at a time. Where submissions
// to several queues wait for each other, each one sets the timeline semaphore of its queue to the
// number that it has there.
class Line {
  public:
    // mutex: of the queue, which outlives the line.
    Line(std::shared_ptr<kp::Manager> manager, VkQueue queue, std::mutex& mutex, bool ordered)
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

    Line(const Line&) = delete;
    Line& operator=(const Line&) = delete;

    ~Line()
    {
        if (semaphore && raw<VkDevice>(get(*manager_, ManagerDevice{})) == device_ && settle()) {
            vkDestroySemaphore(device_, semaphore, nullptr);
        }
    }

    // A driver may give a queue of a later device the handle of one that is gone.
    bool is_of(const std::shared_ptr<kp::Manager>& manager) const { return manager_ == manager; }

    std::mutex& mutex;
    VkSemaphore semaphore = VK_NULL_HANDLE; // none where nothing waits for it
    uint64_t last = 0; // what the newest submission sets it to

  private:
    // Returns whether the queue is through with the semaphore. Fences say so, but Mesa's software
    // driver still touches a semaphore after them, until it turns to the next submission.
    bool settle()
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

    std::shared_ptr<kp::Manager> manager_;
    VkDevice device_;
    VkQueue queue_;
};

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

// What a submission has to wait for on the device: a queue's submission, by its number.
using Mark = std::pair<std::shared_ptr<Line>, uint64_t>;

struct Access {
    VkPipelineStageFlags stage;
    VkAccessFlags access;
};

Access named_access(const std::string& name, bool before)
{
    const VkPipelineStageFlags shader = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
    const VkPipelineStageFlags copy = VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkAccessFlags shader_access =
      VK_ACCESS_SHADER_WRITE_BIT | (before ? 0 : VK_ACCESS_SHADER_READ_BIT);
    const VkAccessFlags copy_access =
      VK_ACCESS_TRANSFER_WRITE_BIT | (before ? 0 : VK_ACCESS_TRANSFER_READ_BIT);
    if (name == "shader") {
        return { shader, shader_access };
    }
    if (name == "copy") {
        return { copy, copy_access };
    }
    if (name == "device") {
        return { shader | copy, shader_access | copy_access };
    }
    if (name == "host") {
        return { VK_PIPELINE_STAGE_HOST_BIT,
                 VkAccessFlags(before ? VK_ACCESS_HOST_WRITE_BIT : VK_ACCESS_HOST_READ_BIT) };
    }
    throw py::value_error("[barrier] expected \"copy\", \"device\" (both), \"shader\" or \"host\", got \"" +
                          name + "\"");
}

// One command buffer, one fence used again for every submission, two timestamps.
//
// empty -> recording -> recorded -> pending -> recorded ...
class Recording {
  public:
    // queue: which of the manager's the sequence is of. ordered: whether submissions wait for each
    // other on the device, which takes timeline semaphores.
    Recording(std::shared_ptr<kp::Manager> manager, std::shared_ptr<kp::Sequence> sequence,
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
        line_ = line_of(queue_, manager_, ordered);

        const auto physical = raw<VkPhysicalDevice>(get(*manager_, ManagerPhysical{}));
        const auto families = queue_families(physical);
        const uint32_t family = get(*manager_, ManagerFamilies{}).at(queue);
        copies_only_ = (families.at(family).queueFlags & VK_QUEUE_COMPUTE_BIT) == 0;
        if (ordered && in_kp.host_query_reset(device_)) {
            reset_on_host_ = reinterpret_cast<PFN_vkResetQueryPoolEXT>(
              vkGetDeviceProcAddr(device_, "vkResetQueryPoolEXT"));
        }
        // a queue that only copies cannot reset queries
        valid_bits_ =
          copies_only_ && reset_on_host_ == nullptr ? 0 : families.at(family).timestampValidBits;
        VkPhysicalDeviceProperties properties{};
        vkGetPhysicalDeviceProperties(physical, &properties);
        period_ns_ = properties.limits.timestampPeriod;
        std::copy_n(properties.limits.maxComputeWorkGroupCount, 3, max_groups_.begin());

        VkFenceCreateInfo fence_info{};
        fence_info.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
        check(vkCreateFence(device_, &fence_info, nullptr, &fence_), "vkCreateFence");
        if (valid_bits_ > 0) {
            VkQueryPoolCreateInfo query_info{};
            query_info.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO;
            query_info.queryType = VK_QUERY_TYPE_TIMESTAMP;
            query_info.queryCount = 2;
            const VkResult result = vkCreateQueryPool(device_, &query_info, nullptr, &queries_);
            if (result < VK_SUCCESS) {
                vkDestroyFence(device_, fence_, nullptr); // no destructor runs after this
                throw Failure("vkCreateQueryPool", result);
            }
        }
    }

    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

    ~Recording() { close_within(CLOSE_LIMIT_S); }

    void begin()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        require_usable("begin");
        if (pending_) {
            throw std::runtime_error("[begin] expected an idle recording, got a pending one; wait for it");
        }
        if (state_ != State::empty) {
            check(vkResetCommandPool(device_, pool_, 0), "vkResetCommandPool");
        }
        algorithms_.clear();
        tensors_.clear();
        imported_.clear();
        bound_pipeline_ = VK_NULL_HANDLE;
        bound_set_ = VK_NULL_HANDLE;
        state_ = State::empty;
        submitted_ = false;
        VkCommandBufferBeginInfo info{};
        info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
        check(vkBeginCommandBuffer(commands_, &info), "vkBeginCommandBuffer");
        state_ = State::recording;
        if (queries_ != VK_NULL_HANDLE) {
            if (reset_on_host_ == nullptr) {
                vkCmdResetQueryPool(commands_, queries_, 0, 2);
            }
            // not before what was submitted earlier has ended: times of submissions never overlap
            vkCmdWriteTimestamp(commands_, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries_, 0);
        }
    }

    void dispatch(std::shared_ptr<kp::Algorithm> algorithm, const std::array<int64_t, 3>& groups,
                  const py::bytes& push)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        require_recording("dispatch");
        const auto pipeline = raw<VkPipeline>(get(*algorithm, AlgorithmPipeline{}));
        const auto layout = raw<VkPipelineLayout>(get(*algorithm, AlgorithmLayout{}));
        const auto set = raw<VkDescriptorSet>(get(*algorithm, AlgorithmSet{}));
        if (pipeline == VK_NULL_HANDLE ||
            raw<VkDevice>(get(*algorithm, AlgorithmDevice{})) != device_) {
            throw py::value_error("[dispatch] expected a pipeline of this device, got one that is "
                                  "closed or another device's");
        }
        for (int i = 0; i < 3; ++i) {
            if (groups[i] < 1 || groups[i] > max_groups_[i]) {
                throw py::value_error("[dispatch] expected 1 to " + std::to_string(max_groups_[i]) +
                                      " groups in dimension " + std::to_string(i) + ", got " +
                                      std::to_string(groups[i]));
            }
        }
        char* data = nullptr;
        Py_ssize_t size = 0;
        if (PyBytes_AsStringAndSize(push.ptr(), &data, &size) != 0) {
            throw py::error_already_set();
        }
        const Py_ssize_t expected = Py_ssize_t(get(*algorithm, AlgorithmPushCount{})) *
                                    get(*algorithm, AlgorithmPushSize{});
        if (size != expected) {
            throw py::value_error("[dispatch] expected " + std::to_string(expected) +
                                  " bytes of push constants, got " + std::to_string(size));
        }
        // kp's own record functions go through values kept in the Algorithm, which others share.
        if (pipeline != bound_pipeline_) {
            vkCmdBindPipeline(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
            bound_pipeline_ = pipeline;
        }
        if (set != bound_set_) { // with the layout of its own Algorithm, which fits its pipeline's
            vkCmdBindDescriptorSets(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &set,
                                    0, nullptr);
            bound_set_ = set;
        }
        if (size > 0) {
            vkCmdPushConstants(commands_, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                               static_cast<uint32_t>(size), data);
        }
        vkCmdDispatch(commands_, static_cast<uint32_t>(groups[0]), static_cast<uint32_t>(groups[1]),
                      static_cast<uint32_t>(groups[2]));
        if (algorithms_.empty() || algorithms_.back() != algorithm) {
            algorithms_.push_back(std::move(algorithm));
        }
    }

    // Copies words between buffers; a copy, for barriers.
    void copy(std::shared_ptr<kp::Tensor> source, std::shared_ptr<kp::Tensor> target,
              int64_t source_word, int64_t target_word, int64_t words)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        require_recording("copy");
        const auto from = raw<VkBuffer>(get(*source, TensorBuffer{}));
        const auto to = raw<VkBuffer>(get(*target, TensorBuffer{}));
        if (from == VK_NULL_HANDLE || to == VK_NULL_HANDLE ||
            raw<VkDevice>(get(*source, TensorDevice{})) != device_ ||
            raw<VkDevice>(get(*target, TensorDevice{})) != device_) {
            throw py::value_error("[copy] expected buffers of this device, got one that is closed or "
                                  "another device's");
        }
        const int64_t source_words = source->size(), target_words = target->size();
        if (words < 1 || source_word < 0 || target_word < 0 || source_word > source_words - words ||
            target_word > target_words - words) {
            throw py::value_error("[copy] expected words within buffers of " +
                                  std::to_string(source_words) + " and " +
                                  std::to_string(target_words) + ", got " + std::to_string(words) +
                                  " from " + std::to_string(source_word) + " to " +
                                  std::to_string(target_word));
        }
        if (from == to && std::abs(source_word - target_word) < words) {
            throw py::value_error("[copy] expected words that do not overlap");
        }
        const VkBufferCopy region{ 4 * VkDeviceSize(source_word), 4 * VkDeviceSize(target_word),
                                   4 * VkDeviceSize(words) };
        vkCmdCopyBuffer(commands_, from, to, 1, &region);
        for (auto& tensor : { source, target }) {
            if (std::find(tensors_.begin(), tensors_.end(), tensor) == tensors_.end()) {
                tensors_.push_back(tensor);
            }
        }
    }

    // Copies words from host memory, from a byte on, to a buffer.
    void copy_imported(std::shared_ptr<Imported> source, std::shared_ptr<kp::Tensor> target,
                       int64_t source_byte, int64_t target_word, int64_t words)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        require_recording("copy");
        const auto to = raw<VkBuffer>(get(*target, TensorBuffer{}));
        if (to == VK_NULL_HANDLE || source->device() != device_ ||
            raw<VkDevice>(get(*target, TensorDevice{})) != device_) {
            throw py::value_error("[copy] expected buffers of this device, got one that is closed or "
                                  "another device's");
        }
        const int64_t source_bytes = int64_t(source->size()), target_words = target->size();
        if (words < 1 || source_byte < 0 || source_byte % 4 || target_word < 0 ||
            source_byte > source_bytes - 4 * words || target_word > target_words - words) {
            throw py::value_error("[copy] expected words within host memory of " +
                                  std::to_string(source_bytes) + " bytes and a buffer of " +
                                  std::to_string(target_words) + " words");
        }
        const VkBufferCopy region{ VkDeviceSize(source_byte), 4 * VkDeviceSize(target_word),
                                   4 * VkDeviceSize(words) };
        vkCmdCopyBuffer(commands_, source->buffer(), to, 1, &region);
        imported_.push_back(std::move(source));
        tensors_.push_back(std::move(target));
    }

    void barrier(const std::string& source, const std::string& destination)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        require_recording("barrier");
        const Access from = named_access(here(source), true);
        const Access to = named_access(here(destination), false);
        VkMemoryBarrier barrier{};
        barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
        barrier.srcAccessMask = from.access;
        barrier.dstAccessMask = to.access;
        vkCmdPipelineBarrier(commands_, from.stage, to.stage, 0, 1, &barrier, 0, nullptr, 0,
                             nullptr);
    }

    void end()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        require_recording("end");
        if (queries_ != VK_NULL_HANDLE) {
            vkCmdWriteTimestamp(commands_, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries_, 1);
        }
        state_ = State::failed; // a buffer whose end failed is invalid until the next begin
        check(vkEndCommandBuffer(commands_), "vkEndCommandBuffer");
        state_ = State::recorded;
    }

    // after: recordings of this device; what their last submissions do is complete, and seen, before
    // this one begins. Without the GIL.
    void submit(const std::vector<std::shared_ptr<Recording>>& after)
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

    void wait(double timeout_s)
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

    // Without the GIL.
    bool done()
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

    bool pending()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        return pending_;
    }

    std::optional<double> duration_s()
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

    // Without the GIL. Returns false where the device did not end in time: then what it may still
    // use is leaked, and the Manager must not be destroyed either.
    bool close_within(double limit_s)
    {
        std::unique_lock<std::mutex> lock(mutex_);
        if (closed_) {
            return true;
        }
        closed_ = true;
        if (raw<VkDevice>(get(*manager_, ManagerDevice{})) != device_) {
            return true; // the device is gone, and the fence with it
        }
        const auto limit = std::chrono::duration<double>(limit_s);
        bool idle = true;
        if (pending_) {
            const VkResult result = vkWaitForFences(
              device_, 1, &fence_, VK_TRUE, static_cast<uint64_t>(std::max(limit_s, 0.0) * 1e9));
            idle = result == VK_SUCCESS || result == VK_ERROR_DEVICE_LOST;
        }
        idle = left_.wait_for(lock, limit, [this] { return waiters_ == 0; }) && idle;
        if (!idle) {
            new Kept{ manager_,
                      sequence_,
                      std::move(algorithms_),
                      std::move(tensors_),
                      std::move(imported_),
                      std::move(waited_for_),
                      line_ };
            end_without_destructors();
            return false;
        }
        pending_ = false;
        vkDestroyFence(device_, fence_, nullptr);
        vkDestroyQueryPool(device_, queries_, nullptr);
        algorithms_.clear();
        tensors_.clear();
        imported_.clear();
        waited_for_.clear();
        line_.reset();
        return true;
    }

  private:
    enum class State { empty, recording, recorded, failed };
    struct Kept {
        std::shared_ptr<kp::Manager> manager;
        std::shared_ptr<kp::Sequence> sequence;
        std::vector<std::shared_ptr<kp::Algorithm>> algorithms;
        std::vector<std::shared_ptr<kp::Tensor>> tensors;
        std::vector<std::shared_ptr<Imported>> imported;
        std::map<std::shared_ptr<Line>, uint64_t> waited_for;
        std::shared_ptr<Line> line;
    };

    // What another submission waits for to come after the last one of this.
    Mark mark()
    {
        std::lock_guard<std::mutex> lock(mutex_);
        require_usable("submit");
        if (!submitted_) {
            throw std::runtime_error("[submit] expected a submitted recording to wait for, got another");
        }
        return { line_, number_ };
    }

    // Queues that only copy know no shaders.
    std::string here(const std::string& name) const
    {
        return copies_only_ && (name == "device" || name == "shader") ? "copy" : name;
    }

    void require_usable(const char* what) const
    {
        if (closed_ || raw<VkDevice>(get(*manager_, ManagerDevice{})) != device_) {
            throw std::runtime_error(std::string("[") + what + "] expected an open recording, got a closed one");
        }
        if (lost_) {
            throw Failure(what, VK_ERROR_DEVICE_LOST);
        }
    }

    void require_recording(const char* what) const
    {
        require_usable(what);
        if (state_ != State::recording) {
            throw std::runtime_error(std::string("[") + what + "] expected a begun recording, got another; call begin()");
        }
    }

    // A lost device runs nothing any more: there is nothing left to wait for.
    void note_lost(VkResult result, const char* call)
    {
        if (result == VK_ERROR_DEVICE_LOST) {
            lost_ = true;
            pending_ = false;
        }
        check(result, call);
    }

    // Returns whether the submission that was pending at first has ended. The lock is not held
    // during the wait: several threads may wait for one fence.
    bool wait_slice(uint64_t limit_ns, std::optional<uint64_t>& generation)
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

    std::shared_ptr<kp::Manager> manager_;
    std::shared_ptr<kp::Sequence> sequence_;
    std::vector<std::shared_ptr<kp::Algorithm>> algorithms_; // those of all dispatches
    std::vector<std::shared_ptr<kp::Tensor>> tensors_;       // those of all copies
    std::vector<std::shared_ptr<Imported>> imported_;
    VkPipeline bound_pipeline_ = VK_NULL_HANDLE;
    VkDescriptorSet bound_set_ = VK_NULL_HANDLE;
    std::shared_ptr<Line> line_;
    bool copies_only_ = false;
    VkDevice device_ = VK_NULL_HANDLE;
    VkQueue queue_ = VK_NULL_HANDLE;
    VkCommandPool pool_ = VK_NULL_HANDLE;
    VkCommandBuffer commands_ = VK_NULL_HANDLE;
    VkFence fence_ = VK_NULL_HANDLE;
    VkQueryPool queries_ = VK_NULL_HANDLE;
    PFN_vkResetQueryPoolEXT reset_on_host_ = nullptr; // else the commands reset them
    uint32_t valid_bits_ = 0;
    double period_ns_ = 0;
    std::array<uint32_t, 3> max_groups_{};

    std::mutex mutex_; // guards all below
    std::condition_variable left_;
    State state_ = State::empty;
    int waiters_ = 0;
    uint64_t generation_ = 0;
    uint64_t number_ = 0; // of the last submission, in its line
    std::map<std::shared_ptr<Line>, uint64_t> waited_for_; // by that submission
    bool submitted_ = false;
    bool pending_ = false;
    bool lost_ = false;
    bool closed_ = false;
};

} // namespace

void bind_recording(py::module_& m)
{
    using no_gil = py::call_guard<py::gil_scoped_release>;
    py::class_<Imported, std::shared_ptr<Imported>>(m, "Imported")
      .def(py::init<std::shared_ptr<kp::Manager>, uint64_t, uint64_t>(), py::arg("manager"),
           py::arg("address"), py::arg("size_bytes"), no_gil());
    py::class_<Recording, std::shared_ptr<Recording>>(m, "Recording")
      .def(py::init<std::shared_ptr<kp::Manager>, std::shared_ptr<kp::Sequence>, uint32_t, bool>(),
           py::arg("manager"), py::arg("sequence"), py::arg("queue") = 0, py::arg("ordered") = false)
      .def("begin", &Recording::begin)
      .def("dispatch", &Recording::dispatch, py::arg("algorithm"), py::arg("groups"), py::arg("push"))
      .def("copy", &Recording::copy, py::arg("source"), py::arg("target"), py::arg("source_word"),
           py::arg("target_word"), py::arg("words"))
      .def("copy_imported", &Recording::copy_imported, py::arg("source"), py::arg("target"),
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
}

} // namespace companion
