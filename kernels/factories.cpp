// Empty tensors: a block without bytes. Physical memory is given at first
// touch, so an empty tensor costs address space and nothing else, except in
// deterministic mode, which fills it.
//
// Tests: test_storage.py.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <torch/library.h>

#include "backend/torch/device.h"
#include "backend/torch/device_allocator.h"
#include "kernels/late_ops.h"

namespace chameleon::kernels {
namespace {

// The allocator asks for the current device; `device` may name another.
class OnDevice {
 public:
  explicit OnDevice(std::optional<at::Device> device)
      : previous_(backend::current_device()) {
    if (device && device->has_index()) {
      backend::set_current_device(device->index());
    }
  }
  ~OnDevice() { backend::set_current_device(previous_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  c10::DeviceIndex previous_;
};

void check_options(std::optional<at::Layout> layout,
                   std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      layout.value_or(at::kStrided) == at::kStrided,
      "chameleon works on dense (strided) tensors; layout ", *layout,
      " was asked for");
  TORCH_CHECK(!pin_memory.value_or(false),
              "Only dense CPU tensors can be pinned");
}

// Deterministic mode leaves no tensor with whatever was in memory.
at::Tensor filled_if_deterministic(at::Tensor tensor) {
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() &&
      context.deterministicFillUninitializedMemory()) [[unlikely]] {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout,
                 std::optional<at::Device> device,
                 std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> memory_format) {
  redirect_new_kernels_if_any(); // every use of the device comes by here
  check_options(layout, pin_memory);
  const OnDevice guard(device);
  return filled_if_deterministic(
      at::detail::empty_generic(size, backend::device_allocator(), kKeys,
                                c10::dtype_or_default(dtype), memory_format));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout,
                         std::optional<at::Device> device,
                         std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  const OnDevice guard(device);
  return filled_if_deterministic(at::detail::empty_strided_generic(
      size, stride, backend::device_allocator(), kKeys,
      c10::dtype_or_default(dtype)));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
}

} // namespace
} // namespace chameleon::kernels
