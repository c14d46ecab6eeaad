// The short way through an op call, for what most calls are: a few ordinary
// dense tensors with storages of their own, nothing written, one fresh result.
// No boxing, no plan to walk, no allocation. Whatever is special about an
// operand (views with lazy bits, shared storages, other devices, empty
// tensors) goes the general way of op_call.h; so does an op that ran out of
// memory inside its kernel.
#pragma once

#include <array>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include "backend/torch/device.h"
#include "backend/torch/in_kernel_allocator.h"
#include "kernels/op_call.h"
#include "kernels/op_plan.h"
#include "kernels/twins.h"
#include "memory/pager.h"

namespace chameleon::kernels {

// The operands of one direct call, from pin to unpin.
class DirectCall {
 public:
  static constexpr std::size_t kMaxOperands = 4;

  DirectCall() = default;
  ~DirectCall(); // lets go of twins, then unpins
  DirectCall(const DirectCall&) = delete;
  DirectCall& operator=(const DirectCall&) = delete;

  // False: this call is not for the short way.
  bool add(const at::Tensor& outer) noexcept;
  // Pins and makes twins. Throws OutOfMemoryError; nothing changed then.
  void begin(const OpPlan& plan);
  const at::Tensor& twin(std::size_t i) const noexcept { return twins_[i]; }
  memory::Pager& pager() noexcept { return *device_->pager; }
  memory::Call& call() noexcept { return call_; }
  // The kernel's result as a chameleon tensor.
  at::Tensor finish(at::Tensor native);

 private:
  std::size_t count_ = 0;
  std::array<memory::Operand, kMaxOperands> operands_;
  std::array<const at::Tensor*, kMaxOperands> outers_;
  std::array<at::Tensor, kMaxOperands> twins_;
  backend::DeviceContext* device_ = nullptr;
  Shells* shells_ = nullptr;
  memory::Call call_;
  bool held_ = false;
};

// Registers the direct kernel of `op` if its signature is one of those that
// are instantiated. `plan` must outlive the library.
bool register_direct(torch::Library& library, const char* name,
                     const c10::OperatorHandle& op, const OpPlan* plan);

} // namespace chameleon::kernels
