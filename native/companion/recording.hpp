// A kp.Sequence with explicit barriers, asynchronous submission, waits without the GIL, timestamps,
// and checked VkResults.
#pragma once

#include "companion/queue.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace companion {

class HostImport;

using Clock = std::chrono::steady_clock;

// How threads wait for fences, see submissions.cpp.
struct FencePolling {
    std::atomic<bool> of_software{ false }; // for tests: poll fences of CPU drivers, too
    std::atomic<uint64_t> ended_waits{ 0 }; // waits that a query of the fence ended, the first one included
};

extern FencePolling fence_polling;

// One command buffer, one fence that all submissions reuse, two timestamps.
//
//   empty -> recording -> recorded -> pending -> recorded ...
class Recording {
  public:
    // queue: index of the sequence's queue in the manager. ordered: submissions wait for each other
    // on the device, by timeline semaphores.
    Recording(std::shared_ptr<kp::Manager> manager, std::shared_ptr<kp::Sequence> sequence,
              uint32_t queue, bool ordered);
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    ~Recording();

    void begin();

    void dispatch(std::shared_ptr<kp::Algorithm> algorithm, const std::array<int64_t, 3>& groups,
                  const py::bytes& push);

    // Copy words between buffers: a "copy" access for barriers.
    void copy(std::shared_ptr<kp::Tensor> source, std::shared_ptr<kp::Tensor> target,
              int64_t source_word, int64_t target_word, int64_t words);

    // Copy words from imported host memory, from a byte offset, to a buffer.
    void copy_host_import(std::shared_ptr<HostImport> source, std::shared_ptr<kp::Tensor> target,
                       int64_t source_byte, int64_t target_word, int64_t words);

    void barrier(const std::string& source, const std::string& destination);

    void end();

    // after: recordings of this device. Their last submissions are complete, and their writes
    // visible, before this one begins. Without the GIL.
    void submit(const std::vector<std::shared_ptr<Recording>>& after);

    void wait(double timeout_s);

    // Without the GIL.
    bool done();

    bool pending();

    std::optional<double> duration_s();

    // Without the GIL. Return false on a timeout: resources that the device may still use are
    // leaked, and the Manager must not be destroyed either.
    bool close_within(double limit_s);

  private:
    enum class State { empty, recording, recorded, failed };
    struct LeakedResources {
        std::shared_ptr<kp::Manager> manager;
        std::shared_ptr<kp::Sequence> sequence;
        std::vector<std::shared_ptr<kp::Algorithm>> algorithms;
        std::vector<std::shared_ptr<kp::Tensor>> tensors;
        std::vector<std::shared_ptr<HostImport>> host_imports;
        std::map<std::shared_ptr<SharedQueue>, uint64_t> wait_points;
        std::shared_ptr<SharedQueue> shared_queue;
    };

    // Return the point that another submission waits for to run after the last one of this
    // recording.
    TimelinePoint timeline_point();

    // Return the access name on this queue: "copy" on a transfer-only one, which has no shaders.
    std::string access_name(const std::string& name) const;

    void require_usable(const char* what) const;

    void require_recording(const char* what) const;

    // Throw if a call failed. A lost device ends the recording: nothing is pending any more.
    void check_result(VkResult result, const char* call);

    // Return whether the submission that was pending at first has ended. The lock is not held
    // during the wait: several threads may wait for one fence.
    bool wait_slice(uint64_t limit_ns, std::optional<uint64_t>& generation);

    // Wait for the fence, without the lock. poll_from: begin of the polling; nothing: no polling.
    VkResult wait_for_fence(uint64_t limit_ns, std::optional<Clock::time_point> poll_from);

    // Return when polling begins in a wait that begins now; nothing if a thread sleeps only.
    std::optional<Clock::time_point> poll_begin() const;

    std::shared_ptr<kp::Manager> manager_;
    std::shared_ptr<kp::Sequence> sequence_;
    std::vector<std::shared_ptr<kp::Algorithm>> algorithms_; // of all dispatches
    std::vector<std::shared_ptr<kp::Tensor>> tensors_;       // of all copies
    std::vector<std::shared_ptr<HostImport>> host_imports_;
    VkPipeline bound_pipeline_ = VK_NULL_HANDLE;
    VkDescriptorSet bound_set_ = VK_NULL_HANDLE;
    std::shared_ptr<SharedQueue> shared_queue_;
    bool is_transfer_only_ = false;
    VkDevice device_ = VK_NULL_HANDLE;
    VkQueue queue_ = VK_NULL_HANDLE;
    VkCommandPool pool_ = VK_NULL_HANDLE;
    VkCommandBuffer commands_ = VK_NULL_HANDLE;
    VkFence fence_ = VK_NULL_HANDLE;
    VkQueryPool queries_ = VK_NULL_HANDLE;
    PFN_vkResetQueryPoolEXT reset_query_pool_ = nullptr; // null: commands reset the queries
    uint32_t timestamp_valid_bits_ = 0;
    double timestamp_period_ns_ = 0;
    std::array<uint32_t, 3> max_groups_{};
    bool is_software_ = false;

    std::mutex mutex_; // guards all members below
    std::condition_variable waiters_left_;
    State state_ = State::empty;
    int waiters_ = 0;
    uint64_t generation_ = 0;
    uint64_t timeline_value_ = 0; // of the last submission
    std::map<std::shared_ptr<SharedQueue>, uint64_t> wait_points_; // of the last submission
    Clock::time_point submitted_at_{};
    std::optional<Clock::duration> last_duration_; // of a submission that a thread waited for
    bool submitted_ = false;
    bool pending_ = false;
    bool lost_ = false;
    bool closed_ = false;
};

} // namespace companion
