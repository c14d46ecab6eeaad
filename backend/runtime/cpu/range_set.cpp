#include "backend/runtime/cpu/range_set.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "backend/runtime/check.h"

namespace chameleon::runtime {

std::string text_of(Interval bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "[%#zx, +%zu)",
                static_cast<std::size_t>(bytes.begin),
                static_cast<std::size_t>(bytes.end - bytes.begin));
  return text;
}

void RangeSet::add(Interval interval) {
  if (interval.empty()) return;
  // Swallows every range that overlaps or touches.
  auto next = ends_.lower_bound(interval.begin);
  if (next != ends_.begin() && std::prev(next)->second >= interval.begin) {
    --next;
    interval.begin = next->first;
  }
  while (next != ends_.end() && next->first <= interval.end) {
    interval.end = std::max(interval.end, next->second);
    next = ends_.erase(next);
  }
  ends_.emplace(interval.begin, interval.end);
}

void RangeSet::remove(Interval interval) {
  if (interval.empty()) return;
  auto next = ends_.lower_bound(interval.begin);
  if (next != ends_.begin() && std::prev(next)->second > interval.begin) {
    --next;
  }
  while (next != ends_.end() && next->first < interval.end) {
    const Interval old{next->first, next->second};
    next = ends_.erase(next);
    if (old.begin < interval.begin) ends_.emplace(old.begin, interval.begin);
    if (interval.end < old.end) ends_.emplace(interval.end, old.end);
  }
}

bool RangeSet::overlaps(Interval interval) const {
  if (interval.empty()) return false;
  const auto next = ends_.lower_bound(interval.end);
  return next != ends_.begin() && std::prev(next)->second > interval.begin;
}

Interval RangeSet::rangeAround(Interval interval) const {
  const auto next = ends_.upper_bound(interval.begin);
  CHAMELEON_CHECK(next != ends_.begin(), "the range is not in the set");
  const Interval around{std::prev(next)->first, std::prev(next)->second};
  CHAMELEON_CHECK(around.end >= interval.end, "the range is not in the set");
  return around;
}

} // namespace chameleon::runtime
