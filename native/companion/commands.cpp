// The commands that a recording accepts.
#include "companion/host_import.hpp"
#include "companion/recording.hpp"

#include <algorithm>
#include <cstdlib>

namespace companion {
namespace {

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

} // namespace

void Recording::begin()
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
    host_imports_.clear();
    bound_pipeline_ = VK_NULL_HANDLE;
    bound_set_ = VK_NULL_HANDLE;
    state_ = State::empty;
    submitted_ = false;
    VkCommandBufferBeginInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
    check(vkBeginCommandBuffer(commands_, &info), "vkBeginCommandBuffer");
    state_ = State::recording;
    if (queries_ != VK_NULL_HANDLE) {
        if (reset_query_pool_ == nullptr) {
            vkCmdResetQueryPool(commands_, queries_, 0, 2);
        }
        // bottom of pipe: earlier submissions have ended, so that the times of submissions never
        // overlap
        vkCmdWriteTimestamp(commands_, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries_, 0);
    }
}

void Recording::dispatch(std::shared_ptr<kp::Algorithm> algorithm,
                         const std::array<int64_t, 3>& groups, const py::bytes& push)
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
    // kp's own record functions use values stored in the Algorithm, which other recordings share
    if (pipeline != bound_pipeline_) {
        vkCmdBindPipeline(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
        bound_pipeline_ = pipeline;
    }
    if (set != bound_set_) { // the layout of its Algorithm is compatible with the pipeline
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

void Recording::copy(std::shared_ptr<kp::Tensor> source, std::shared_ptr<kp::Tensor> target,
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

void Recording::copy_host_import(std::shared_ptr<HostImport> source, std::shared_ptr<kp::Tensor> target,
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
    host_imports_.push_back(std::move(source));
    tensors_.push_back(std::move(target));
}

void Recording::barrier(const std::string& source, const std::string& destination)
{
    std::lock_guard<std::mutex> lock(mutex_);
    require_recording("barrier");
    const Access from = named_access(access_name(source), true);
    const Access to = named_access(access_name(destination), false);
    VkMemoryBarrier barrier{};
    barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
    barrier.srcAccessMask = from.access;
    barrier.dstAccessMask = to.access;
    vkCmdPipelineBarrier(commands_, from.stage, to.stage, 0, 1, &barrier, 0, nullptr, 0,
                         nullptr);
}

std::string Recording::access_name(const std::string& name) const
{
    return is_transfer_only_ && (name == "device" || name == "shader") ? "copy" : name;
}

void Recording::end()
{
    std::lock_guard<std::mutex> lock(mutex_);
    require_recording("end");
    if (queries_ != VK_NULL_HANDLE) {
        vkCmdWriteTimestamp(commands_, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, queries_, 1);
    }
    state_ = State::failed; // if the end fails, the buffer is invalid until the next begin
    check(vkEndCommandBuffer(commands_), "vkEndCommandBuffer");
    state_ = State::recorded;
}

} // namespace companion
