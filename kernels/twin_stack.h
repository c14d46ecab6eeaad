// Twins for direct calls: each with an alias storage of its own, made once and
// used again. A thread has one stack of them; a call pushes its twins and pops
// them in the end, calls inside calls push theirs on top.
//
// No twin stays bound after its call: popping takes its memory away. A twin
// that somebody kept, or attached something to, is replaced by another.
//
// Thread safety: belongs to its thread.
#pragma once

#include <array>
#include <cstddef>

#include <ATen/core/Tensor.h>

namespace chameleon::kernels {

class TwinStack {
 public:
  static constexpr std::size_t kCapacity = 128;

  static TwinStack& ofThread() {
    return current != nullptr ? *current : makeForThread();
  }

  std::size_t depth() const noexcept { return depth_; }
  bool hasRoomFor(std::size_t count) const noexcept {
    return depth_ + count <= kCapacity;
  }
  // A twin of a plain tensor on pinned bytes at `address`. REQUIRES: room.
  void push(const c10::TensorImpl& outer, std::byte* address,
            c10::Device target);
  void popTo(std::size_t depth) noexcept;
  // By depth. Twins that were pushed one after the other lie side by side.
  at::Tensor& operator[](std::size_t index) noexcept { return twins_[index]; }

 private:
  static TwinStack& makeForThread();
  [[gnu::visibility(
      "hidden")]] static constinit thread_local TwinStack* current;

  std::size_t depth_ = 0;
  std::array<at::Tensor, kCapacity> twins_;
};

} // namespace chameleon::kernels
