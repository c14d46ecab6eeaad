// What generic PyTorch code asks of an accelerator.
//
// Tests: test_backend_contract.py.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "backend/torch/device.h"
#include "backend/torch/generator.h"
#include "backend/torch/host_allocator.h"
#include "backend/torch/storage.h"

namespace chameleon::backend {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return context_if_used(index) != nullptr;
  }
  void init() const override {
    context(current_device(), "an explicit init()");
  }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    set_current_device(index);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex previous = current_device();
    set_current_device(index);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device() : exchangeDevice(index);
  }

  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return host_allocator();
  }
  c10::Device getDeviceFromPtr(void* /*data*/) const override {
    TORCH_CHECK(false,
                "chameleon: a raw pointer names no chameleon tensor; use "
                "torch_chameleon.resident(...) to work on tensors in place");
  }

  const at::Generator& getDefaultGenerator(
      c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(index);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage,
                              std::size_t bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

const bool hooks_set = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks); // leaked, as all hooks are
  return true;
}();

} // namespace
} // namespace chameleon::backend
