// How large a hole the kernel of an op needs for what it allocates inside
// (FirstFit::span), by the op and its operands' sizes (KernelRoom::keyOf). Of
// fixed size: what is not found was never seen, or another op has its place.
//
// Thread safety: any thread, no lock. Spans count in units of
// ExtentMap::kAlignment.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "memory/space/extent_map.h"
#include "profiler/token.h"

namespace chameleon::memory {

class LearnedSpans {
 public:
  // 0: not known.
  std::size_t find(profiler::QuickToken op) const noexcept {
    const std::uint64_t word = at(op).load(std::memory_order_relaxed);
    return opOf(word) == op ? spanOf(word) : 0;
  }
  // The largest of one op counts. REQUIRES: a multiple of the unit, < 2 TiB.
  void raise(profiler::QuickToken op, std::size_t span_bytes) noexcept {
    std::atomic<std::uint64_t>& word = at(op);
    const std::uint64_t old = word.load(std::memory_order_relaxed);
    if (opOf(old) == op && spanOf(old) >= span_bytes) return;
    // Of two at once one is lost, until the op runs again.
    word.store(std::uint64_t{op} << 32 | span_bytes / ExtentMap::kAlignment,
               std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t kPlaces = 1024;

  static profiler::QuickToken opOf(std::uint64_t word) noexcept {
    return static_cast<profiler::QuickToken>(word >> 32);
  }
  static std::size_t spanOf(std::uint64_t word) noexcept {
    return static_cast<std::uint32_t>(word) * ExtentMap::kAlignment;
  }
  const std::atomic<std::uint64_t>& at(profiler::QuickToken op) const noexcept {
    return words_[op % kPlaces];
  }
  std::atomic<std::uint64_t>& at(profiler::QuickToken op) noexcept {
    return words_[op % kPlaces];
  }

  std::array<std::atomic<std::uint64_t>, kPlaces> words_{}; // op, span
};

} // namespace chameleon::memory
