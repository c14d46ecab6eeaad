// A set of bytes of the address space, as disjoint ranges in address order.
//
// Thread safety: none; its owner locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "backend/runtime/device_runtime.h"

namespace chameleon::runtime {

// Half-open, in addresses as numbers: the ranges need not be accessible.
struct Interval {
  std::uintptr_t begin;
  std::uintptr_t end;

  static Interval of(ByteRange range) {
    const auto begin = reinterpret_cast<std::uintptr_t>(range.begin);
    return {begin, begin + range.bytes};
  }
  bool operator==(const Interval&) const = default;
  bool empty() const { return begin >= end; }
  bool overlaps(Interval other) const {
    return begin < other.end && other.begin < end;
  }
};

std::string text_of(Interval bytes); // "[0x7f00, +512)"

class RangeSet {
 public:
  void add(Interval interval);
  void remove(Interval interval);
  bool overlaps(Interval interval) const;
  // The whole range of the set that holds `interval`.
  // REQUIRES: all of `interval` is in the set.
  Interval rangeAround(Interval interval) const;
  bool empty() const { return ends_.empty(); }
  std::size_t rangeCount() const { return ends_.size(); }

 private:
  std::map<std::uintptr_t, std::uintptr_t> ends_; // by begin
};

} // namespace chameleon::runtime
