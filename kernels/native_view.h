// Native tensors that show chameleon tensors' bytes for as long as the object
// lives, or until end(): pinned, for work that no kernel call contains.
// resident() and the collectives of several GPUs are made of it.
//
// Tests: test_resident.py.
//
// Thread safety: none; may be made, ended and destroyed by different threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include "memory/pager.h"

namespace chameleon::kernels {

class NativeView {
 public:
  struct Use {
    const at::Tensor* tensor; // chameleon
    memory::Access access;
  };
  // Pins the tensors, all of one device, for work on the current stream. With
  // `op_number` (profiler::op_names()) the profiler sees it as an op, and on a
  // device without data it has Meta tensors; else it is refused there. Throws
  // OutOfMemoryError; nothing changed then.
  NativeView(c10::ArrayRef<Use> uses, const memory::OpKind& kind,
             std::optional<std::uint32_t> op_number);
  // The same use of each; `purpose` is for messages and
  // outlives the view.
  NativeView(at::TensorList tensors, memory::Access access,
             std::string_view purpose);
  // Ends it. Whoever kept a native tensor is told so where it is used.
  ~NativeView();
  NativeView(const NativeView&) = delete;
  NativeView& operator=(const NativeView&) = delete;

  // In the order of the uses. The list is the caller's to change.
  std::vector<at::Tensor>& natives() noexcept { return natives_; }
  const std::vector<at::Tensor>& natives() const noexcept { return natives_; }
  // What works on the bytes ends it when it is done. An op that lacks memory
  // waits for that.
  void endsByItself() noexcept {
    if (pager_ != nullptr) pager_->endsByItself(call_);
  }
  // What was to be overwritten has been. Else it keeps its old value.
  void overwritten() noexcept { call_.overwritten(); }
  // Unpins, and takes the native tensors' memory away. What the work did is
  // ordered before later work on the stream that was current. Once; later calls
  // do nothing.
  void end() noexcept;

 private:
  static constexpr std::size_t kInline = 2;
  template <typename T>
  using List = c10::SmallVector<T, kInline>;

  List<at::Tensor> outers_;
  std::vector<at::Tensor> natives_;
  List<c10::intrusive_ptr<c10::StorageImpl>> aliases_; // of the natives
  memory::Call call_;
  memory::Pager* pager_ = nullptr; // null: nothing is pinned
};

} // namespace chameleon::kernels
