// A kp.Sequence recorded with barriers, submitted without blocking, waited for without the GIL,
// timed, every VkResult checked.
#pragma once

#include "companion/queue.hpp"

#include <array>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace companion {

class Imported;

// One command buffer, one fence used again for every submission, two timestamps.
//
// empty -> recording -> recorded -> pending -> recorded ...
class Recording {
  public:
    // queue: which of the manager's the sequence is of. ordered: whether submissions wait for each
    // other on the device, which takes timeline semaphores.
    Recording(std::shared_ptr<kp::Manager> manager, std::shared_ptr<kp::Sequence> sequence,
              uint32_t queue, bool ordered);
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    ~Recording();

    void begin();

    void dispatch(std::shared_ptr<kp::Algorithm> algorithm, const std::array<int64_t, 3>& groups,
                  const py::bytes& push);

    // Copies words between buffers; a copy, for barriers.
    void copy(std::shared_ptr<kp::Tensor> source, std::shared_ptr<kp::Tensor> target,
              int64_t source_word, int64_t target_word, int64_t words);

    // Copies words from host memory, from a byte on, to a buffer.
    void copy_imported(std::shared_ptr<Imported> source, std::shared_ptr<kp::Tensor> target,
                       int64_t source_byte, int64_t target_word, int64_t words);

    void barrier(const std::string& source, const std::string& destination);

    void end();

    // after: recordings of this device; what their last submissions do is complete, and seen, before
    // this one begins. Without the GIL.
    void submit(const std::vector<std::shared_ptr<Recording>>& after);

    void wait(double timeout_s);

    // Without the GIL.
    bool done();

    bool pending();

    std::optional<double> duration_s();

    // Without the GIL. Returns false where the device did not end in time: then what it may still
    // use is leaked, and the Manager must not be destroyed either.
    bool close_within(double limit_s);

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
    Mark mark();

    // Queues that only copy know no shaders.
    std::string here(const std::string& name) const;

    void require_usable(const char* what) const;

    void require_recording(const char* what) const;

    // A lost device runs nothing any more: there is nothing left to wait for.
    void note_lost(VkResult result, const char* call);

    // Returns whether the submission that was pending at first has ended. The lock is not held
    // during the wait: several threads may wait for one fence.
    bool wait_slice(uint64_t limit_ns, std::optional<uint64_t>& generation);

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

} // namespace companion
