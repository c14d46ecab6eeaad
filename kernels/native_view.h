// A native tensor that shows a chameleon tensor's bytes for as long as it
// lives: pinned, for kernels written by hand and for resident().
//
// Tests: test_resident.py.
//
// Thread safety: belongs to the thread that makes it.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "memory/pager.h"

namespace chameleon::kernels {

class NativeView {
 public:
  // Pins all tensors (chameleon, one device). Throws OutOfMemoryError.
  NativeView(const std::vector<at::Tensor>& tensors, memory::Access access,
             std::string_view purpose);
  ~NativeView();
  NativeView(const NativeView&) = delete;
  NativeView& operator=(const NativeView&) = delete;

  // In the order of the tensors. Their storages lose their memory when this
  // object dies.
  const std::vector<at::Tensor>& natives() const noexcept { return natives_; }

 private:
  std::vector<at::Tensor> outers_;
  std::vector<at::Tensor> natives_;
  std::unique_ptr<memory::Call> call_;
  memory::Pager* pager_ = nullptr;
};

} // namespace chameleon::kernels
