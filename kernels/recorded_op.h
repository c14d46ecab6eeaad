// An op call that is kept so that it can be run again: its arguments, with each
// tensor replaced by its geometry and the number of its operand, the state of
// its generator and the settings that decide bits. A re-run goes the general
// way of op_call.h on borrowed storages, below autograd, modes and hooks; it
// emits no warning, shows itself to no profiler and leaves the user's generator
// as it was.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "kernels/op_plan.h"
#include "memory/pager.h"

namespace chameleon::kernels {

class BitSettings;

class RecordedCall final : public memory::RecordedOp {
 public:
  // `arguments` are the caller's, `operands` what the call pins. Called before
  // the kernel, outside of InKernelScope. Null: it may not run again.
  static std::unique_ptr<RecordedCall> make(
      const OpPlan& plan, const c10::OperatorHandle& op,
      at::ArrayRef<c10::IValue> arguments,
      std::span<const memory::Operand> operands, c10::DeviceIndex index);

  // After the kernel: false if it gave what it wrote other memory or another
  // shape.
  bool leftOperandsInPlace(at::ArrayRef<c10::IValue> arguments) const;

  runtime::Error run(std::span<memory::Block* const> operands,
                     std::vector<memory::Block*>& results) override;
  bool isSideEffect(std::size_t operand) const override {
    return operand < side_effects_.size() && side_effects_[operand];
  }

 private:
  // One tensor among the arguments, in their order.
  struct Shown {
    at::Tensor shell;     // ours: without memory; else the tensor itself
    std::int32_t operand; // -1: it has no bytes, or is not ours
    bool written;
  };
  RecordedCall(const OpPlan& plan, const c10::OperatorHandle& op,
               c10::DeviceIndex index);
  bool take(at::ArrayRef<c10::IValue> arguments,
            std::span<const memory::Operand> operands);
  bool takeTensor(const c10::IValue& value, const ArgumentPlan& argument,
                  std::span<const memory::Operand> operands);
  bool keep(const c10::IValue& value);
  void takeGenerator();
  void runOnce(std::span<memory::Block* const> operands,
               std::vector<memory::Block*>& results) const;

  const OpPlan& plan_;
  const c10::OperatorHandle op_;
  const c10::DeviceIndex index_;
  // Tensors are in shown_, and lists of them have as many elements as None.
  std::vector<c10::IValue> arguments_;
  std::vector<Shown> shown_;
  std::vector<std::size_t> storage_bytes_; // of the operands
  std::vector<bool> side_effects_;
  at::Generator generator_;    // that it drew from; none: undefined
  at::Tensor generator_state_; // before it did
  std::shared_ptr<const BitSettings> settings_; // mostly those of many calls
};

// Tells the pager, if the call is such a one. `arguments` are the caller's,
// `results` what it gets that it has not given.
void finish_record(std::unique_ptr<RecordedCall> record,
                   at::ArrayRef<c10::IValue> arguments,
                   at::ArrayRef<at::Tensor> results,
                   std::span<const memory::Operand> operands,
                   memory::Pager& pager, memory::Call& call);

} // namespace chameleon::kernels
