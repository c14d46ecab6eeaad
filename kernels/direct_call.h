// The short way through an op call, for what most calls are: a few ordinary
// dense tensors with storages of their own. No boxing, no plan to walk, no
// heap. Whatever is special about an operand (views with lazy bits, shared
// storages, other devices, empty tensors) goes the general way of op_call.h; so
// does an op that ran out of memory inside its kernel, if it may run again.
//
// direct_kernel.h puts calls together from it, one per C++ signature.
#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "backend/torch/autocast.h"
#include "backend/torch/device.h"
#include "backend/torch/in_kernel_allocator.h"
#include "kernels/adoption.h"
#include "kernels/op_call.h"
#include "kernels/op_plan.h"
#include "kernels/twin_stack.h"
#include "memory/pager.h"

namespace chameleon::kernels {

// One direct call: its operands, from collecting them to letting go of them.
class DirectCall {
 public:
  static constexpr std::size_t kMaxOperands = 64;
  using Slot = std::uint8_t; // an operand's number
  static constexpr Slot kRefused = 0xff;
  static constexpr Slot kNone = 0xfe; // an argument without a tensor

  explicit DirectCall(const OpPlan& plan) : plan_(plan), quick_(plan.number) {}
  ~DirectCall(); // lets go of twins, then unpins
  DirectCall(const DirectCall&) = delete;
  DirectCall& operator=(const DirectCall&) = delete;

  // ---- collecting. kRefused: this call is not for the short way.
  // An operand on the CPU, where the op takes one, stays as it is.
  Slot add(const at::Tensor& outer, const ArgumentPlan& argument) noexcept;
  // Tensors in a row; the slot of the first.
  template <typename List>
  Slot addAll(const List& outers, const ArgumentPlan& argument) noexcept {
    if (outers.size() == 0) return kNone;
    const std::size_t first = count_;
    for (const at::Tensor& outer : outers) {
      const std::size_t expected = count_;
      if (add(outer, argument) != expected) return kRefused;
    }
    return static_cast<Slot>(first);
  }

  // ---- running
  // Pins and makes twins. False: not for the short way. Throws
  // OutOfMemoryError; nothing changed then.
  bool begin();
  at::Tensor& twin(Slot slot) const noexcept {
    return (*twins_)[first_ + slot];
  }
  at::TensorList twins(Slot first, std::size_t count) const noexcept {
    return {&twin(first), count};
  }
  // What the kernel did to the operands that it wrote.
  void finishWrites();
  // A result of the kernel becomes a chameleon tensor.
  void finish(at::Tensor& result);

  // What the kernel runs in.
  class Scope {
   public:
    [[gnu::always_inline]] explicit Scope(DirectCall& call)
        : below_(kKeysAboveKernels),
          memory_(call.device_->pager, &call.call_) {}
    // Throws if the kernel passed over a failed allocation.
    void throwIfFailed() const { memory_.throwIfFailed(); }

   private:
    c10::impl::ExcludeDispatchKeyGuard below_;
    backend::TargetAutocast autocast_;
    backend::InKernelScope memory_;
  };

 private:
  void finishOther(at::Tensor& result, const Adoption& adoption);
  static profiler::Token tokenOf(const void* call);

  const OpPlan& plan_;
  profiler::QuickHasher quick_;
  std::size_t count_ = 0;
  bool writes_ = false; // any operand
  bool held_ = false;
  bool counts_versions_ = false; // of what is written, here
  std::size_t first_ = 0;        // depth of the first twin
  TwinStack* twins_ = nullptr;
  backend::DeviceContext* device_ = nullptr;
  memory::Call call_;
  std::array<memory::Operand, kMaxOperands> operands_; // the first count_
  std::array<const at::Tensor*, kMaxOperands> outers_;
};

} // namespace chameleon::kernels
