// The short way through an op call, for what most calls are: ordinary dense
// tensors with storages of their own. No boxing, no traits to walk, no heap.
// Whatever is special about an operand (views with lazy bits, shared storages,
// other devices, empty tensors) goes the general way of op_call.h; an op that
// ran out of memory inside its kernel goes on there, if it may run again.
//
// direct_kernel.h puts calls together from it, one per C++ signature.
//
// Tests: direct_kernel_test.cpp, test_direct_kernels.py.
//
// Thread safety: belongs to the thread of its call.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "backend/torch/autocast.h"
#include "backend/torch/device.h"
#include "backend/torch/in_kernel_allocator.h"
#include "kernels/adoption.h"
#include "kernels/op_call.h"
#include "kernels/op_traits.h"
#include "kernels/reruns/recorded_op.h"
#include "kernels/thread_state.h"
#include "memory/pager_call.h"

namespace chameleon::kernels {

// What a direct call knows of an argument.
struct DirectSlot {
  using Number = std::uint16_t; // of a tensor among those collected
  static constexpr Number kRefused = 0xffff;
  static constexpr Number kNone = 0xfffe; // an argument without a tensor
};

// One direct call: its operands, from collecting them to letting go of them.
// `kMaxListed`: tensors in lists that it has room for. An op without lists
// keeps its stack frame small.
template <std::size_t kMaxListed>
class DirectCall {
 public:
  static constexpr std::size_t kMaxArguments = 32; // beside lists
  using Slot = DirectSlot::Number;
  static constexpr Slot kRefused = DirectSlot::kRefused;
  static constexpr Slot kNone = DirectSlot::kNone;

  [[gnu::always_inline]] explicit DirectCall(const OpTraits& traits)
      : traits_(traits) {}
  [[gnu::flatten]] ~DirectCall(); // lets go of alias tensors, then unpins
  DirectCall(const DirectCall&) = delete;
  DirectCall& operator=(const DirectCall&) = delete;

  // ---- collecting: the tensors among the arguments, in their order
  Slot add(const at::Tensor& outer, const ArgumentTraits& argument) noexcept {
    collected_[collected_count_] = {&outer, &argument};
    return static_cast<Slot>(collected_count_++);
  }
  // Tensors in a row; the slot of the first. kRefused: too many.
  template <typename List>
  Slot addAll(const List& outers, const ArgumentTraits& argument) noexcept {
    if (outers.size() == 0) return kNone;
    if (collected_count_ + outers.size() > kMaxListed) return kRefused;
    const std::size_t first = collected_count_;
    for (const at::Tensor& outer : outers) add(outer, argument);
    return static_cast<Slot>(first);
  }

  // ---- running
  // Pins and makes alias tensors. False: not for the short way. Throws
  // OutOfMemoryError; nothing changed then.
  bool begin();
  // What the kernel gets for a collected tensor: its alias tensor, or where it
  // stays on the CPU itself.
  const at::Tensor& native(Slot slot, const at::Tensor& outer) const noexcept {
    const Slot operand = operand_of_[slot];
    return operand == kNone ? outer : alias_tensors_[operand];
  }
  at::Tensor& alias_tensor(Slot slot) const noexcept {
    return alias_tensors_[operand_of_[slot]];
  }
  at::TensorList alias_tensors(Slot first, std::size_t count) const noexcept {
    return {&alias_tensor(first), count};
  }
  // What the kernel did to the operands that it wrote.
  void finishWrites() {
    if (writes_) finishWritten();
  }
  // A result of the kernel becomes a chameleon tensor.
  void finish(at::Tensor& result);
  // The kernel threw what a GPU had reported.
  void reportLateError(c10::AcceleratorError& error) const {
    report_late_error(*device_, traits_.name, error);
  }

  // ---- after the kernel ran out of memory
  bool mayRetry() const noexcept {
    return traits_.mayRetry() && call_.worthRetrying();
  }
  // Lets go of all that it has, and runs the op the general way; see
  // retry_native(). REQUIRES: mayRetry().
  void retry(const c10::OperatorHandle& op, torch::jit::Stack& stack);

  // ---- calls that are to be recorded (recorded_op.h)
  bool isRecorded() const noexcept { return call_.wantsRecord(); }
  // `arguments` are the caller's. Null: it may not run again.
  std::unique_ptr<RecordedCall> startRecord(
      at::ArrayRef<c10::IValue> arguments) const;
  void finishRecord(std::unique_ptr<RecordedCall> record,
                    at::ArrayRef<c10::IValue> arguments,
                    at::ArrayRef<at::Tensor> results);

  // What the kernel runs in.
  class Scope {
   public:
    [[gnu::always_inline]] explicit Scope(DirectCall& call)
        : below_(call.thread_->keys),
          autocast_(below_.excluded()),
          memory_(call.device_->pager, &call.call_, call.thread_->in_kernel) {}
    [[gnu::always_inline]] ~Scope() = default;
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    // Throws if the kernel passed over a failed allocation.
    void throwIfFailed() const { memory_.throwIfFailed(); }

   private:
    BelowAutograd below_;
    backend::TargetAutocast autocast_;
    backend::InKernelScope memory_;
  };

 private:
  struct Collected {
    const at::Tensor* outer;
    const ArgumentTraits* argument;
  };
  static constexpr std::size_t kMaxOperands = kMaxListed + kMaxArguments;
  // So many are looked through one by one.
  static constexpr std::size_t kFew = 32;

  [[gnu::always_inline]] bool findOperands() noexcept;
  [[gnu::always_inline]] std::size_t numberOf(const memory::Block* block,
                                              std::size_t count) noexcept;
  bool writesInference() const noexcept;
  bool mayGoInChunks(std::span<const memory::Operand> operands) const noexcept;
  void finishDeferredWork() const;
  void finishWritten();
  [[gnu::cold, gnu::noinline]] void finishWritten(std::size_t operand);
  void endCall() noexcept;
  void finishOther(at::Tensor& result, const Adoption& adoption);
  static profiler::Token tokenOf(const void* call);

  const OpTraits& traits_;
  profiler::QuickToken quick_; // of the op and its operands
  std::size_t collected_count_ = 0;
  std::size_t count_ = 0; // of operands: one tensor twice is one
  bool writes_ = false;   // any operand
  bool held_ = false;
  bool counts_versions_ = false; // of what is written, here
  ThreadState* thread_ = nullptr;
  at::Tensor* alias_tensors_ = nullptr; // of the operands
  backend::DeviceContext* device_ = nullptr;
  memory::Call call_;
  // The first collected_count_:
  std::array<Collected, kMaxOperands> collected_;
  std::array<Slot, kMaxOperands> operand_of_; // kNone: stays on the CPU
  // The first count_:
  std::array<memory::Operand, kMaxOperands> operands_;
  std::array<c10::TensorImpl*, kMaxOperands> outers_;
  // Where more than kFew were collected: operands' numbers plus one, by a hash
  // of the block's address; 0: empty.
  std::array<Slot, std::bit_ceil(2 * kMaxOperands)> by_block_;
};

inline constexpr std::size_t kMaxListedTensors = 1024;
extern template class DirectCall<0>;
extern template class DirectCall<kMaxListedTensors>;

} // namespace chameleon::kernels
