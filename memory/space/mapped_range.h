// The reserved addresses that the arena lies in, and which of their bytes
// device memory is mapped to: of each large unit a prefix, up to a limit. What
// was used once stays mapped until the limit sinks below it.
//
// Tests: arena_test.cpp.
//
// Thread safety: none, but for what is fixed (bytes, addresses); the arena's
// owner locks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/runtime/device_runtime.h"

namespace chameleon::memory {

class MappedRange {
 public:
  // Owns what the runtime reserved at `base`. Nothing is mapped, and the limit
  // is 0. REQUIRES: whole granules.
  MappedRange(runtime::DeviceRuntime& runtime, std::byte* base,
              std::size_t range_bytes);
  // Unmaps all and gives the range back. REQUIRES: no work uses it.
  ~MappedRange();
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

  std::size_t bytes() const noexcept { return range_bytes_; }
  std::byte* at(std::size_t offset) const noexcept { return base_ + offset; }
  std::size_t offsetOf(const void* address) const noexcept {
    return static_cast<std::size_t>(static_cast<const std::byte*>(address) -
                                    base_);
  }
  // True for every address of the range, mapped or not.
  bool contains(const void* address) const noexcept {
    const auto* byte = static_cast<const std::byte*>(address);
    return byte >= base_ && byte < base_ + range_bytes_;
  }

  // Makes bytes below the limit usable. What is mapped so far stays when a
  // later unit fails.
  runtime::Error map(std::size_t offset, std::size_t bytes) {
    if (isMapped(offset, bytes)) [[likely]]
      return {};
    return mapUnits(offset, bytes);
  }
  bool isMapped(std::size_t offset, std::size_t bytes) const noexcept {
    const std::size_t end = offset + bytes;
    const std::size_t last = (end - 1) >> unit_shift_;
    for (std::size_t unit = offset >> unit_shift_; unit <= last; ++unit) {
      const std::size_t begin = unit << unit_shift_;
      if (mapped_[unit] < std::min(end - begin, unit_bytes_)) return false;
    }
    return true;
  }

  // Where the unit ends that the last of so many bytes lies in.
  std::size_t unitsEnd(std::size_t bytes) const noexcept {
    return (bytes + unit_bytes_ - 1) & ~(unit_bytes_ - 1);
  }

  // What is mapped lies below it, rounded up to the runtime's granularity.
  // setLimit() unmaps what lies above. On an Error the limit is as before,
  // though some may be unmapped. REQUIRES: nothing above it is in use.
  bool isMappedAbove(std::size_t limit_bytes) const noexcept;
  runtime::Error setLimit(std::size_t limit_bytes);

  std::size_t mappedBytes() const noexcept { return mapped_bytes_; }
  // How often memory was mapped or unmapped so far.
  std::uint64_t commits() const noexcept { return commits_; }
  void check() const;

 private:
  std::size_t roundUp(std::size_t bytes) const noexcept {
    return (bytes + granularity_ - 1) & ~(granularity_ - 1);
  }
  runtime::Error mapUnits(std::size_t offset, std::size_t bytes);

  runtime::DeviceRuntime& runtime_;
  std::byte* const base_;
  const std::size_t range_bytes_;
  const std::size_t granularity_;
  const std::size_t unit_bytes_; // a power of two, >= the granularity
  const unsigned unit_shift_;
  std::size_t limit_bytes_ = 0; // a multiple of the granularity
  // Mapped bytes of each unit up to the limit, always a prefix of it.
  std::vector<std::size_t> mapped_;
  std::size_t mapped_bytes_ = 0;
  std::uint64_t commits_ = 0;
};

} // namespace chameleon::memory
