// The tensors of one collective: collected in the order of its arguments, and
// then handed out again, in the same order, as their native tensors.
//
// Tests: test_process_group.py.
//
// Thread safety: belongs to the thread of the call.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "kernels/native_view.h"

namespace chameleon::distributed {

using TensorLists = std::vector<std::vector<at::Tensor>>;

// REQUIRES: the tensors outlive it.
class Operands {
 public:
  // kOverwrite: every element, unread, so that it need not be in HBM.
  Operands& add(const at::Tensor& tensor, memory::Access access) {
    uses_.push_back({&tensor, access});
    return *this;
  }
  Operands& add(const std::vector<at::Tensor>& tensors, memory::Access access) {
    for (const at::Tensor& tensor : tensors) add(tensor, access);
    return *this;
  }
  Operands& add(const TensorLists& lists, memory::Access access) {
    for (const auto& tensors : lists) add(tensors, access);
    return *this;
  }

  c10::ArrayRef<kernels::NativeView::Use> uses() const noexcept {
    return uses_;
  }

 private:
  c10::SmallVector<kernels::NativeView::Use, 4> uses_;
};

// The native tensors of a collective's operands, one after the other.
class Natives {
 public:
  explicit Natives(std::vector<at::Tensor>& natives) : natives_(natives) {}

  std::vector<at::Tensor>& all() const noexcept { return natives_; }
  at::Tensor next() { return natives_[at_++]; }
  at::Tensor like(const at::Tensor& /*tensor*/) { return next(); }
  std::vector<at::Tensor> like(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> result;
    result.reserve(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) result.push_back(next());
    return result;
  }
  TensorLists like(const TensorLists& lists) {
    TensorLists result;
    result.reserve(lists.size());
    for (const auto& tensors : lists) result.push_back(like(tensors));
    return result;
  }

 private:
  std::vector<at::Tensor>& natives_;
  std::size_t at_ = 0;
};

} // namespace chameleon::distributed
