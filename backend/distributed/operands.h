// The tensors of one collective: collected in the order of its arguments, and
// then handed out again, in the same order, as their native tensors.
//
// Tests: test_process_group.py.
//
// Thread safety: belongs to the thread of the call.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/native_view.h"

namespace chameleon::distributed {

using TensorLists = std::vector<std::vector<at::Tensor>>;

class Operands {
 public:
  Operands& reads(const at::Tensor& tensor) {
    return add(tensor, memory::Access::kRead);
  }
  Operands& writes(const at::Tensor& tensor) {
    return add(tensor, memory::Access::kWrite);
  }
  // Every element, unread: what it held need not be in HBM.
  Operands& overwrites(const at::Tensor& tensor) {
    return add(tensor, memory::Access::kOverwrite);
  }
  Operands& reads(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) reads(tensor);
    return *this;
  }
  Operands& writes(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) writes(tensor);
    return *this;
  }
  Operands& overwrites(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) overwrites(tensor);
    return *this;
  }
  Operands& reads(const TensorLists& lists) {
    for (const auto& tensors : lists) reads(tensors);
    return *this;
  }
  Operands& overwrites(const TensorLists& lists) {
    for (const auto& tensors : lists) overwrites(tensors);
    return *this;
  }

  const std::vector<kernels::NativeView::Use>& uses() const noexcept {
    return uses_;
  }

 private:
  Operands& add(const at::Tensor& tensor, memory::Access access) {
    uses_.push_back({tensor, access});
    return *this;
  }

  std::vector<kernels::NativeView::Use> uses_;
};

// The native tensors of a collective's operands, one after the other.
class Natives {
 public:
  explicit Natives(const std::vector<at::Tensor>& natives)
      : natives_(natives) {}

  at::Tensor next() { return natives_[at_++]; }
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
  const std::vector<at::Tensor>& natives_;
  std::size_t at_ = 0;
};

} // namespace chameleon::distributed
