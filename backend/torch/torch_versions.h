// What differs between the releases of PyTorch that are supported, 2.11 to
// 2.15. No other file asks for a release: to add one means to look here.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#define CHAMELEON_TORCH_AT_LEAST(minor) \
  (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

namespace chameleon::backend {

// An allocator in front of PyTorch's own: forwards what the interface gained
// after 2.11. Thread safety: as the native one, and without state.
class ForwardsNewerCudaCalls
    : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 protected:
  using Native = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  explicit ForwardsNewerCudaCalls(Native& native) : native_(native) {}

 public:
#if CHAMELEON_TORCH_AT_LEAST(12)
  void attachOomRejectionObserver(
      c10::cuda::CUDACachingAllocator::OomRejectionObserver observer) override {
    native_.attachOomRejectionObserver(std::move(observer));
  }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(
      const void* data) override {
    return native_.getContextForPointer(data);
  }
#endif
#if CHAMELEON_TORCH_AT_LEAST(13)
  void markCaptureBegin(c10::DeviceIndex device) override {
    native_.markCaptureBegin(device);
  }
  void markCaptureEnd(c10::DeviceIndex device) override {
    native_.markCaptureEnd(device);
  }
  c10::DataPtr allocateWithAddress(std::size_t bytes, void* data) override {
    return native_.allocateWithAddress(bytes, data);
  }
#endif
#if CHAMELEON_TORCH_AT_LEAST(14)
  bool supportsUserMetadata() override {
    return native_.supportsUserMetadata();
  }
  void annotateMemory(const void* data, const std::string& text) override {
    native_.annotateMemory(data, text);
  }
#endif

 protected:
  Native& native_;
};

} // namespace chameleon::backend
