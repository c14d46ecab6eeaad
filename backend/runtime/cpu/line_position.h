// How cpu_runtime names points in its streams. Each stream is a line of work
// whose entries are numbered from 1; an event is "entry `count` of `line` and
// all before it are done", packed into Event::id. So an event owns nothing,
// and asking for it is one comparison.
//
// Thread safety: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/runtime/device_runtime.h"

namespace chameleon::runtime {

using LineIndex = std::uint16_t;
inline constexpr LineIndex kNoLine = 0; // the complete event's
inline constexpr LineIndex kCopyInLine = 1;
inline constexpr LineIndex kCopyOutLine = 2;
inline constexpr LineIndex kFirstComputeLine = 3;

struct LinePosition {
  LineIndex line = kNoLine;
  std::uint64_t count = 0; // below 2^48

  static constexpr LinePosition of(Event event) {
    return {static_cast<LineIndex>(event.id >> 48),
            event.id & ((std::uint64_t{1} << 48) - 1)};
  }
  constexpr Event event() const {
    return {(std::uint64_t{line} << 48) | count};
  }
  constexpr bool none() const { return line == kNoLine; }
  constexpr bool onCopyEngine() const {
    return line == kCopyInLine || line == kCopyOutLine;
  }
};

} // namespace chameleon::runtime
