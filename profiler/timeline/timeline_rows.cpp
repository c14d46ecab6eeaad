#include "profiler/timeline/timeline_rows.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <tuple>

namespace chameleon::profiler {

TimelineRows timeline_rows(std::span<const Interval> intervals) {
  std::vector<std::size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::tie(intervals[a].begin_ns, a) <
           std::tie(intervals[b].begin_ns, b);
  });
  TimelineRows rows;
  rows.of.resize(intervals.size());
  rows.counts.fill(1);
  std::array<std::vector<std::int64_t>, kLanes> ends; // of the last in each row
  for (const std::size_t index : order) {
    const Interval& interval = intervals[index];
    const auto lane = static_cast<std::size_t>(interval.lane);
    const auto free = std::find_if(
        ends[lane].begin(), ends[lane].end(),
        [&](std::int64_t end_ns) { return end_ns <= interval.begin_ns; });
    const auto row = static_cast<std::size_t>(free - ends[lane].begin());
    if (free == ends[lane].end()) ends[lane].emplace_back();
    ends[lane][row] = std::max(interval.begin_ns, interval.end_ns);
    rows.of[index] = row;
    rows.counts[lane] = ends[lane].size();
  }
  return rows;
}

std::string row_name(Lane lane, std::size_t row) {
  std::string name = lane_name(lane);
  if (row > 0) name += " (" + std::to_string(row + 1) + ")";
  return name;
}

} // namespace chameleon::profiler
