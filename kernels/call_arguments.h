// The arguments of an op call that goes the general way: which of them are
// tensors of the device, and what the native kernel gets in their place.
//
// After collect() it is known what to pin. From replace() on the stack has
// alias tensors, and saved() what the caller gave; restore() takes that back.
//
// Tests: conformance.
//
// Thread safety: belongs to the thread of its call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "backend/torch/storage.h"
#include "kernels/alias_tensors.h"
#include "kernels/op_traits.h"
#include "profiler/token.h"

namespace chameleon::kernels {

// A tensor of the device.
inline bool is_device_tensor(const c10::IValue& value) {
  return value.isTensor() && backend::is_chameleon(*value.unsafeToTensorImpl());
}

class CallArguments {
 public:
  // REQUIRES: all outlive it. The arguments are on top of `stack`.
  CallArguments(const OpTraits& traits, const c10::OperatorHandle& op,
                torch::jit::Stack& stack)
      : traits_(traits),
        op_(op),
        stack_(stack),
        base_(stack.size() - traits.argument_count) {}
  CallArguments(const CallArguments&) = delete;
  CallArguments& operator=(const CallArguments&) = delete;

  // ---- before pinning ------------------------------------------------------
  // Finds the operands. Throws RuntimeError where devices mix that CUDA would
  // not mix, NotImplementedError for layouts that the device does not have.
  void collect();
  // What the caller gave. REQUIRES: not replaced.
  c10::ArrayRef<c10::IValue> given() const {
    return c10::ArrayRef<c10::IValue>(stack_).slice(base_);
  }
  c10::DeviceIndex index() const noexcept { return index_; }
  // A Device argument names another device.
  bool namesOtherDevice() const noexcept { return names_other_device_; }
  bool areSparse() const noexcept { return sparse_; } // one of the tensors
  // Where the native kernel for these tensors is.
  c10::DispatchKeySet kernelKey() const;
  // What the profiler knows the call by: the quick half; the whole, of the
  // CallArguments at this address, which must not be replaced.
  profiler::QuickToken quickToken() const noexcept { return quick_.token(); }
  static profiler::Token tokenOf(const void* arguments);

  // ---- while operands are pinned -------------------------------------------
  AliasTensorSet& aliasTensors() noexcept { return alias_tensors_; }
  // REQUIRES: aliasTensors() are bound.
  void replace();
  void restore();
  c10::ArrayRef<c10::IValue> saved() const noexcept { return saved_; }

  // A dense tensor that the op writes.
  struct Written {
    c10::TensorImpl* outer;
    c10::TensorImpl* alias_tensor;
    std::uint32_t entry; // of aliasTensors()
  };
  const c10::SmallVectorImpl<Written>& written() const noexcept {
    return written_;
  }
  struct SparseOperand {
    c10::TensorImpl* outer;
    at::Tensor alias_tensor;
    bool writes;
    c10::SmallVector<c10::TensorImpl*, 3> given; // the alias tensor's parts
  };
  const std::vector<SparseOperand>& sparseOperands() const noexcept {
    return sparse_operands_;
  }

 private:
  // An operand on another device: legal where CUDA allows it.
  struct CrossDeviceOperand {
    const c10::TensorImpl* tensor;
    const ArgumentTraits* argument;
  };
  void collectList(const c10::IValue& list, const ArgumentTraits& argument);
  void collectTensor(const c10::IValue& value, const ArgumentTraits& argument,
                     bool writes);
  void collectSparse(const c10::TensorImpl& tensor,
                     const ArgumentTraits& argument);
  void checkIndex(c10::DeviceIndex index);
  void checkCrossDevice(const CrossDeviceOperand& cross_device) const;
  void replaceOther(c10::IValue& value, const ArgumentTraits& argument,
                    std::size_t& slot);
  template <typename Element>
  void replaceList(c10::IValue& value, const ArgumentTraits& argument,
                   std::size_t& slot);
  at::Tensor aliasTensorOf(const c10::IValue& value,
                           const ArgumentTraits& argument, std::size_t& slot);
  at::Tensor denseAliasTensor(c10::TensorImpl& outer, bool writes,
                              std::size_t& slot);
  at::Tensor sparseAliasTensor(c10::TensorImpl& outer, bool writes,
                               std::size_t& slot);

  const OpTraits& traits_;
  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  const std::size_t base_; // of the arguments on the stack
  c10::DeviceIndex index_ = -1;
  bool names_other_device_ = false;
  bool has_generator_ = false; // one of ours among the arguments
  bool nested_ = false;        // one of the tensors
  bool sparse_ = false;        // one of the tensors
  bool compressed_ = false;    // one of these
  profiler::QuickHasher quick_{traits_.quick};
  AliasTensorSet alias_tensors_;
  c10::SmallVector<std::uint32_t, 8> slots_; // operand -> entry, in order
  c10::SmallVector<CrossDeviceOperand, 2> cross_device_operands_;
  c10::SmallVector<Written, 4> written_;
  std::vector<SparseOperand> sparse_operands_;
  c10::SmallVector<c10::IValue, 8> saved_; // what the caller gave
};

} // namespace chameleon::kernels
