// Logical addresses: what tensors on the device show as their data pointer.
// They come out of one reserved range without memory behind it, far larger
// than any limit, so that an address is unique while its storage lives,
// equality and overlap checks work, and a host access through a logical
// address faults.
//
// Sizes are rounded up to a class, four per doubling. A freed address goes to
// its class's stack and is the next one handed out for that class; new ones
// are cut from the untouched part of the range. When that is used up, a freed
// address of a larger class is cut up. O(1), and memory is 8 bytes per address
// on a stack: live addresses cost nothing.
//
// Thread safety: none, but for contains(); the pager's lock guards the rest.
//
// Invariants: L1 the ranges of live addresses do not overlap; L2 live, stacked
// and untouched ranges together are the whole range.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/runtime/device_runtime.h"

namespace chameleon::memory {

class LogicalSpace {
 public:
  static constexpr std::size_t kAlignment = 512;
  static constexpr std::size_t kPreferredRangeBytes = std::size_t{1} << 44;
  // What is left under valgrind or a tight ulimit; exhaustion is an error with
  // a sentence, never a wrong address.
  static constexpr std::size_t kMinRangeBytes = std::size_t{1} << 34;

  // Reserves `preferred_bytes`, or a half, a quarter ... where the system
  // refuses, down to `min_bytes`.
  static runtime::Result<std::unique_ptr<LogicalSpace>> create(
      runtime::DeviceRuntime& runtime,
      std::size_t preferred_bytes = kPreferredRangeBytes,
      std::size_t min_bytes = kMinRangeBytes);
  ~LogicalSpace();
  LogicalSpace(const LogicalSpace&) = delete;
  LogicalSpace& operator=(const LogicalSpace&) = delete;

  // An address with `bytes` of its own, aligned to kAlignment. Null: the range
  // is used up. REQUIRES: bytes > 0.
  std::byte* allocate(std::size_t bytes);
  // REQUIRES: what allocate(bytes) returned, with the same `bytes`.
  void free(std::byte* address, std::size_t bytes);

  // True for every address of the range, live or not. Lock-free.
  bool contains(const void* address) const noexcept {
    const auto* byte = static_cast<const std::byte*>(address);
    return byte >= base_ && byte < base_ + range_bytes_;
  }
  std::size_t rangeBytes() const noexcept { return range_bytes_; }
  std::size_t liveCount() const noexcept { return live_count_; }
  // What a request of `bytes` takes from the range.
  static std::size_t classBytes(std::size_t bytes) noexcept;
  // Aborts on a broken invariant. O(freed addresses).
  void check() const;

 private:
  static constexpr std::size_t kClasses = 4 * (64 - 9);
  static std::size_t classOf(std::size_t bytes) noexcept; // smallest >= bytes
  static std::size_t bytesOf(std::size_t size_class) noexcept;

  LogicalSpace(runtime::DeviceRuntime& runtime, std::byte* base,
               std::size_t range_bytes);
  bool refill(std::size_t size_class);

  runtime::DeviceRuntime& runtime_;
  std::byte* const base_;
  const std::size_t range_bytes_;
  std::size_t untouched_begin_ = 0; // offsets
  std::size_t untouched_end_;
  std::size_t live_count_ = 0;
  std::size_t live_bytes_ = 0; // as rounded to classes
  std::array<std::vector<std::size_t>, kClasses> freed_; // offsets
};

} // namespace chameleon::memory
