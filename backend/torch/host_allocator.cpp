#include "backend/torch/host_allocator.h"

#include <map>
#include <mutex>

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include "backend/torch/device.h"

namespace chameleon::backend {
namespace {

class HostAllocator final : public at::HostAllocator {
 public:
  static HostAllocator& instance() {
    static auto* allocator = new HostAllocator; // leaked: outlives its tensors
    return *allocator;
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    if (at::HostAllocator* cuda = cuda_host_allocator("pinned memory")) {
      return cuda->allocate(bytes);
    }
    void* data = bytes == 0 ? nullptr : c10::alloc_cpu(bytes);
    if (data != nullptr) {
      const std::lock_guard lock(mutex_);
      ranges_.emplace(static_cast<std::byte*>(data), bytes);
    }
    return {data, data, &release, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t n) const override {
    default_copy_data(to, from, n);
  }
  // Copies to the device are complete when they return, so nothing is pending;
  // on CUDA, copies find its allocator by themselves.
  bool record_event(void* /*ptr*/, void* /*ctx*/, c10::Stream) override {
    return true;
  }
  void empty_cache() override {
    if (auto* cuda = used_cuda()) cuda->empty_cache();
  }
  at::HostStats get_stats() override {
    auto* cuda = used_cuda();
    return cuda != nullptr ? cuda->get_stats() : at::HostStats();
  }
  void reset_accumulated_stats() override {
    if (auto* cuda = used_cuda()) cuda->reset_accumulated_stats();
  }
  void reset_peak_stats() override {
    if (auto* cuda = used_cuda()) cuda->reset_peak_stats();
  }

  bool owns(const void* address) noexcept {
    const auto* byte = static_cast<const std::byte*>(address);
    const std::lock_guard lock(mutex_);
    auto after = ranges_.upper_bound(byte);
    if (after == ranges_.begin()) return false;
    const auto& [begin, bytes] = *--after;
    return byte < begin + bytes;
  }

 private:
  static void release(void* data);
  static at::HostAllocator* used_cuda() {
    return is_used() ? cuda_host_allocator({}) : nullptr;
  }

  std::mutex mutex_;
  std::map<const std::byte*, std::size_t> ranges_; // guarded by mutex_
};

void HostAllocator::release(void* data) {
  if (data == nullptr) return;
  {
    const std::lock_guard lock(instance().mutex_);
    instance().ranges_.erase(static_cast<std::byte*>(data));
  }
  c10::free_cpu(data);
}

const bool host_allocator_set = [] {
  at::setHostAllocator(kChameleon, &HostAllocator::instance());
  return true;
}();

} // namespace

at::HostAllocator* cuda_host_allocator(std::string_view use) {
  return targets_cuda(use) ? at::getHostAllocator(c10::DeviceType::CUDA)
                           : nullptr;
}

at::HostAllocator* host_allocator() {
  at::HostAllocator* const cuda = cuda_host_allocator("pinned memory");
  return cuda != nullptr ? cuda : &HostAllocator::instance();
}

bool is_pinned(const void* address) {
  if (is_used() && target().type == c10::DeviceType::CUDA) {
    return at::detail::getCUDAHooks().isPinnedPtr(address);
  }
  return HostAllocator::instance().owns(address);
}

} // namespace chameleon::backend
