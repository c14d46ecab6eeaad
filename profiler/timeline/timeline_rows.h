// Which row of its lane an interval is drawn in, so that none overlaps another:
// where several threads or streams are at work at a time, a lane needs several.
// Viewers take a row for the nested calls of one thread; Perfetto drops what
// overlaps.
//
// Thread safety: none needed; values in, values out.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "profiler/timeline/timeline.h"

namespace chameleon::profiler {

struct TimelineRows {
  std::vector<std::size_t> of;            // each interval: its row, from 0
  std::array<std::size_t, kLanes> counts; // of each lane: at least one
};

// Each in the lowest row of its lane that is free when it begins.
TimelineRows timeline_rows(std::span<const Interval> intervals);

// One number for a lane and a row in it: those of the first rows are the lanes.
inline std::size_t row_number(Lane lane, std::size_t row) noexcept {
  return static_cast<std::size_t>(lane) + kLanes * row;
}
std::string row_name(Lane lane, std::size_t row); // "compute", "compute (2)"

} // namespace chameleon::profiler
