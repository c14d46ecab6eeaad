#include "memory/policy/swapping/absences.h"

#include <algorithm>

#include "backend/runtime/check.h"
#include "memory/policy/plan/range_sum.h"
#include "memory/policy/swapping/dary_heap.h"

namespace chameleon::memory {
namespace {

class Fit {
 public:
  Fit(const UseTable& table, const VictimGaps& gaps,
      std::vector<Absence>& absences, std::int64_t budget)
      : table_(table),
        gaps_(gaps),
        absences_(absences),
        budget_(budget),
        placed_(table.live_bytes) {
    RangeSum away(table.ops);
    for (const Absence& absence : absences) {
      away.add(absence.leaves, absence.returns, -table.bytes[absence.use]);
    }
    away.addTo(placed_);
  }

  bool fits() const {
    return *std::max_element(placed_.begin(), placed_.end()) <= budget_;
  }

  // Walks all positions that gaps may have; an op is met at two of them.
  void stretch() {
    list();
    for (std::int32_t at = 0; at < 2 * table_.ops; ++at) {
      const auto slot = static_cast<std::size_t>(at);
      for (std::uint32_t i : early_at_[slot]) early_.push({end(i), i});
      for (std::uint32_t i : lingering_at_[slot]) lingering_.push({end(i), i});
      comeLater(at);
      leaveEarlier(at);
    }
    CHAMELEON_CHECK(fits(), "a plan without room");
  }

 private:
  struct Entry {
    std::int32_t key; // the gap's end
    std::uint32_t index;
  };
  using Lists = std::vector<std::vector<std::uint32_t>>;

  std::int32_t end(std::uint32_t index) const {
    return table_.end[absences_[index].use];
  }
  std::int64_t& placedAt(std::int32_t at) {
    return placed_[static_cast<std::size_t>(at % table_.ops)];
  }

  void list() {
    const std::size_t positions = 2 * static_cast<std::size_t>(table_.ops);
    early_at_.resize(positions);
    lingering_at_.resize(positions);
    for (std::uint32_t i = 0; i < absences_.size(); ++i) {
      const Absence& absence = absences_[i];
      const std::int32_t from = gaps_.away_from[absence.use];
      if (absence.returns < end(i)) {
        early_at_[static_cast<std::size_t>(absence.returns)].push_back(i);
      }
      if (from < absence.leaves) {
        lingering_at_[static_cast<std::size_t>(from)].push_back(i);
      }
    }
  }

  void comeLater(std::int32_t at) {
    put_off_.clear();
    while (placedAt(at) > budget_ && !early_.empty()) {
      const Entry entry = early_.top();
      early_.pop();
      if (entry.key <= at) continue;
      Absence& absence = absences_[entry.index];
      for (; absence.returns <= at; ++absence.returns) {
        placedAt(absence.returns) -= table_.bytes[absence.use];
      }
      if (absence.returns < entry.key) put_off_.push_back(entry);
    }
    for (const Entry& entry : put_off_) early_.push(entry);
  }

  void leaveEarlier(std::int32_t at) {
    while (placedAt(at) > budget_ && !lingering_.empty()) {
      const std::uint32_t index = lingering_.top().index;
      lingering_.pop();
      Absence& absence = absences_[index];
      for (; absence.leaves > at; --absence.leaves) {
        placedAt(absence.leaves - 1) -= table_.bytes[absence.use];
      }
    }
  }

  const UseTable& table_;
  const VictimGaps& gaps_;
  std::vector<Absence>& absences_;
  std::int64_t budget_;
  std::vector<std::int64_t> placed_; // per op
  Lists early_at_;                   // by position
  Lists lingering_at_;
  DaryHeap<Entry> early_;
  DaryHeap<Entry> lingering_;
  std::vector<Entry> put_off_;
};

} // namespace

std::vector<Absence> fit_absences(const UseTable& table, const VictimGaps& gaps,
                                  const SwapSchedule& schedule,
                                  std::int64_t budget) {
  std::vector<Absence> absences;
  for (UseIndex use = 0; use < table.uses(); ++use) {
    if (gaps.away[use] == 0) continue;
    const std::int32_t end = table.end[use];
    const std::int32_t leaves = schedule.leaves[use].position;
    const std::int32_t returns = schedule.fetch[use].position;
    if (leaves == SwapSchedule::kNever) {
      absences.push_back({use, end, end});
    } else {
      absences.push_back(
          {use, leaves, returns == SwapSchedule::kNever ? end : returns});
    }
  }
  Fit fit(table, gaps, absences, budget);
  if (!fit.fits()) fit.stretch();
  return absences;
}

} // namespace chameleon::memory
