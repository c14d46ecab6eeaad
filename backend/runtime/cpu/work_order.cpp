#include "backend/runtime/cpu/work_order.h"

#include <algorithm>
#include <iterator>

namespace chameleon::runtime {

namespace {

void raise(std::vector<std::uint64_t>& clock, std::size_t line,
           std::uint64_t count) {
  if (clock.size() <= line) clock.resize(line + 1);
  clock[line] = std::max(clock[line], count);
}

} // namespace

WorkOrder::Line& WorkOrder::line(LineIndex index) {
  if (lines_.size() <= index) lines_.resize(std::size_t{index} + 1);
  return lines_[index];
}

void WorkOrder::wait(LinePosition at, LinePosition position) {
  line(std::max(at.line, position.line)); // both exist from here on
  Line& waiter = line(at.line);
  const std::deque<Change>& history = line(position.line).history;
  // What the position follows is what its line followed at that entry.
  const auto after = std::upper_bound(
      history.begin(), history.end(), position.count,
      [](std::uint64_t count, const Change& c) { return count < c.count; });
  if (after != history.begin()) {
    const Clock inherited = std::prev(after)->clock;
    for (std::size_t index = 0; index < inherited.size(); ++index) {
      raise(waiter.now, index, inherited[index]);
    }
  }
  raise(waiter.now, position.line, position.count);
  waiter.history.push_back({at.count, waiter.now});
}

bool WorkOrder::follows(LineIndex line, LinePosition position) const {
  if (line == position.line) return true;
  if (line >= lines_.size()) return false;
  const Clock& now = lines_[line].now;
  return position.line < now.size() && now[position.line] >= position.count;
}

void WorkOrder::done(LinePosition position) {
  std::deque<Change>& history = line(position.line).history;
  while (history.size() > 1 && history[1].count <= position.count) {
    history.pop_front();
  }
}

} // namespace chameleon::runtime
