// An op call that is kept so that it can be run again: its arguments, with each
// tensor replaced by its geometry and the number of its operand, the state of
// its generator and the settings that decide bits. A re-run goes the general
// way of op_call.h on borrowed storages, below autograd, modes and hooks; it
// emits no warning, shows itself to no profiler and leaves the user's generator
// as it was.
//
// Tests: test_recompute.py, test_reruns.py.
//
// Thread safety: made by the thread of its call; run() any thread, also two at
// once.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "kernels/op_traits.h"
#include "kernels/reruns/bit_settings.h"
#include "memory/pager.h"
#include "memory/recompute/fixed_array.h"

namespace chameleon::kernels {

class RecordedCall final : public memory::RecordedOp {
 public:
  // `arguments` are the caller's, `operands` what the call pins. Called before
  // the kernel, outside of InKernelScope. Null: it may not run again.
  static std::unique_ptr<RecordedCall> make(
      const OpTraits& traits, at::ArrayRef<c10::IValue> arguments,
      std::span<const memory::Operand> operands, c10::DeviceIndex index);

  // After the kernel: false if it gave what it wrote other memory or another
  // shape.
  bool leftOperandsInPlace(at::ArrayRef<c10::IValue> arguments) const;

  runtime::Error run(std::span<memory::Block* const> operands,
                     std::vector<memory::Block*>& results) override;
  bool isSideEffect(std::size_t operand) const override;

 private:
  // One tensor among the arguments, in their order.
  struct Shown {
    at::Tensor shell; // ours: without memory; else the tensor itself
    std::size_t storage_bytes = 0;
    std::int32_t operand = -1; // -1: it has no bytes, or is not ours
    bool written = false;
    bool side_effect = false;
  };
  struct Drawn {
    at::Generator generator; // the call's own; undefined: the default one
    at::Tensor state;        // before it did; undefined: there is none
  };
  struct Surroundings { // of the call: mostly the same as those of many others
    BitSettings settings;
    c10::DeviceIndex index;
    bool operator==(const Surroundings&) const = default;
  };
  class Taker;

  explicit RecordedCall(const OpTraits& traits) : traits_(traits) {}
  static std::shared_ptr<const Surroundings> surroundings(c10::DeviceIndex);
  // recorded_op_rerun.cpp: the arguments again, on storages that are lent.
  class Borrowed;
  torch::jit::Stack argumentsOn(const Borrowed& storages) const;
  void runOnce(std::span<memory::Block* const> operands,
               std::vector<memory::Block*>& results) const;

  const OpTraits& traits_;
  // Tensors are in shown_, and lists of them have as many elements as None.
  std::unique_ptr<c10::IValue[]> arguments_; // as many as the op has
  memory::FixedArray<Shown> shown_;
  std::unique_ptr<Drawn> drawn_; // null: it draws no random numbers
  std::shared_ptr<const Surroundings> surroundings_;
};

// Adds the block of `result` to `created`, if it is none of the operands' and
// not there yet.
bool add_created(const at::Tensor& result,
                 std::span<memory::Block* const> operands,
                 std::vector<memory::Block*>& created);

// After the kernel: gives `record` to the pager, unless it is null or the
// kernel gave an operand other memory or another shape. `arguments` are the
// caller's, `results` the tensors that the op returns and that are none of
// them.
void finish_record(std::unique_ptr<RecordedCall> record,
                   at::ArrayRef<c10::IValue> arguments,
                   at::ArrayRef<at::Tensor> results,
                   std::span<const memory::Operand> operands,
                   memory::Pager& pager, memory::Call& call);

} // namespace chameleon::kernels
