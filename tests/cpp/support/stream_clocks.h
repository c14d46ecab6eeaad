// Which work on streams is ordered before which, by vector clocks, and what
// touched each byte last. Decided when work is submitted, so it does not
// depend on what happens to have run: a data race is found whenever no wait
// orders two accesses, however they fall.
//
// Line 0 is the host: what it has waited for. Not thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/runtime/cpu/range_set.h"

namespace chameleon::support {

inline constexpr std::size_t kHostLine = 0;

// The n-th piece of work on a line, counted from 1.
struct WorkPoint {
  std::size_t line = kHostLine;
  std::uint64_t count = 0;
};

// Up to where each line is known to have passed.
class LineClock {
 public:
  bool follows(WorkPoint point) const {
    return point.count == 0 ||
           (point.line < counts_.size() && counts_[point.line] >= point.count);
  }
  void add(WorkPoint point) {
    if (counts_.size() <= point.line) counts_.resize(point.line + 1);
    if (counts_[point.line] < point.count) counts_[point.line] = point.count;
  }
  void join(const LineClock& other) {
    for (std::size_t i = 0; i < other.counts_.size(); ++i) {
      add({i, other.counts_[i]});
    }
  }

 private:
  std::vector<std::uint64_t> counts_;
};

// Last writer and last readers of each byte.
class AccessMap {
 public:
  struct Clash {
    WorkPoint earlier;
    bool earlier_wrote;
    runtime::Interval bytes;
  };
  // Work `point`, which runs after all of `clock`, touches `bytes`. Returns
  // an earlier access that nothing orders before it.
  std::optional<Clash> touch(WorkPoint point, const LineClock& clock,
                             runtime::Interval bytes, bool writes);
  // The bytes go away; returns an access that `clock` does not cover.
  std::optional<Clash> forget(const LineClock& clock, runtime::Interval bytes);

 private:
  struct Node {
    std::uintptr_t end = 0;
    WorkPoint writer;
    std::vector<WorkPoint> readers; // one a line
  };
  using Nodes = std::map<std::uintptr_t, Node>;

  void splitAt(std::uintptr_t address);
  static std::optional<Clash> clash(const Nodes::value_type& node,
                                    const LineClock& clock, bool writes);

  Nodes nodes_; // by begin; disjoint
};

} // namespace chameleon::support
