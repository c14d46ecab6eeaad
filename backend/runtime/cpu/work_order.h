// Which work runs after which, by the order inside each line and the waits
// between lines: vector clocks. A wait makes a line follow another one's
// position and all that this position itself follows.
//
// Thread safety: none; its owner locks.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "backend/runtime/cpu/line_position.h"

namespace chameleon::runtime {

class WorkOrder {
 public:
  // Entry `at` is a wait for `position`.
  void wait(LinePosition at, LinePosition position);
  // True: what is submitted to `line` from now on runs after `position`.
  bool follows(LineIndex line, LinePosition position) const;
  // `position` is done: nobody will ask what came before it.
  void done(LinePosition position);

 private:
  using Clock = std::vector<std::uint64_t>; // count by line
  struct Change {
    std::uint64_t count; // from this entry on
    Clock clock;
  };
  struct Line {
    Clock now;
    std::deque<Change> history; // of entries that are not done, and one more
  };
  Line& line(LineIndex index);

  std::vector<Line> lines_;
};

} // namespace chameleon::runtime
