// Native tensors that show chameleon tensors' bytes for as long as the object
// lives: pinned, for work that no kernel call contains. resident() and the
// collectives of several GPUs are made of it.
//
// Tests: test_resident.py.
//
// Thread safety: made by one thread and destroyed by one, which may be another.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "memory/pager.h"

namespace chameleon::kernels {

class NativeView {
 public:
  struct Use {
    at::Tensor tensor; // chameleon
    memory::Access access;
  };
  // Pins the tensors, all of one device, for work on the current stream. With
  // `op_number` (profiler::op_names()) the profiler sees it as an op, and on a
  // device without data it has Meta tensors; else it is refused there. Throws
  // OutOfMemoryError; nothing changed then.
  NativeView(const std::vector<Use>& uses, const memory::OpKind& kind,
             std::optional<std::uint32_t> op_number);
  // The same use of each; `purpose` is for messages and
  // outlives the view.
  NativeView(const std::vector<at::Tensor>& tensors, memory::Access access,
             std::string_view purpose);
  // Unpins. What the work did is ordered before later work on the stream that
  // was current.
  ~NativeView();
  NativeView(const NativeView&) = delete;
  NativeView& operator=(const NativeView&) = delete;

  // In the order of the uses. Their storages lose their memory when this
  // object dies.
  const std::vector<at::Tensor>& natives() const noexcept { return natives_; }
  // What works on the bytes destroys this object when it is done. An op that
  // lacks memory waits for that.
  void endsByItself() noexcept {
    if (call_) pager_->endsByItself(*call_);
  }
  // What was to be overwritten has been. Else it keeps its old value.
  void overwritten() noexcept {
    if (call_) call_->overwritten();
  }

 private:
  std::vector<at::Tensor> outers_;
  std::vector<at::Tensor> natives_;
  std::unique_ptr<memory::Call> call_;
  memory::Pager* pager_ = nullptr;
};

} // namespace chameleon::kernels
