#include "memory/policy/swapping/plan_emission.h"

#include <algorithm>
#include <vector>

#include "memory/policy/swapping/absences.h"

namespace chameleon::memory {
namespace {

using ActionKind = Action::Kind;

struct Item {
  ActionKind kind;
  ValueIndex value;
  std::int32_t position;
  std::uint32_t order; // among items of one kind at one position
  // A copy's place may be anywhere here: its bytes are final from `earliest`
  // on, and needed by `latest`.
  std::int32_t earliest;
  std::int32_t latest;
  std::int64_t bytes;
  bool joined = false;
};

bool before(const Item& a, const Item& b) {
  if (a.position != b.position) return a.position < b.position;
  if (a.kind != b.kind) return a.kind < b.kind;
  return a.order != b.order ? a.order < b.order : a.value < b.value;
}

class Emission {
 public:
  Emission(const UseTable& table, const SwapSchedule& schedule,
           const std::vector<Absence>& absences)
      : table_(table), schedule_(schedule), absences_(absences) {}

  std::vector<Item> items() {
    std::vector<std::int32_t> leaves(table_.uses(), SwapSchedule::kNever);
    for (const Absence& absence : absences_) {
      if (absence.leaves >= absence.returns) continue;
      leaves[absence.use] = absence.leaves;
      add(ActionKind::kEvict, absence.use, absence.leaves,
          schedule_.leaves[absence.use], absence.leaves, absence.leaves);
      if (!table_.comesBack(absence.use)) continue;
      // Not before its place: there may be no room.
      // mutant: fetch-room
      add(ActionKind::kFetch, absence.use, absence.returns,
          schedule_.fetch[absence.use], absence.returns,
          table_.end[absence.use]);
    }
    for (UseIndex use = 0; use < table_.uses(); ++use) {
      if (table_.dirties[use] != 0) addWriteBack(use, leaves);
    }
    return std::move(items_);
  }

 private:
  void add(ActionKind kind, UseIndex use, std::int32_t position,
           const SwapSchedule::Moment& moment, std::int32_t earliest,
           std::int32_t latest) {
    const std::int32_t folded = position % table_.ops;
    const std::int32_t shift = folded - position;
    items_.push_back({kind, table_.value[use], folded, moment.order,
                      earliest + shift, latest + shift, table_.bytes[use]});
  }

  // Of what `write` wrote, if it leaves before it is written again.
  void addWriteBack(UseIndex write, const std::vector<std::int32_t>& leaves) {
    std::int32_t shift = 0;
    for (UseIndex use = write; leaves[use] == SwapSchedule::kNever;) {
      const UseIndex next = table_.next[use];
      if (next == kNone || table_.dirties[next] != 0) return;
      if (table_.wraps(use)) shift += table_.ops;
      use = next;
      if (leaves[use] != SwapSchedule::kNever) {
        addWriteBackBefore(write, leaves[use] + shift);
        return;
      }
    }
    addWriteBackBefore(write, leaves[write]);
  }

  void addWriteBackBefore(UseIndex write, std::int32_t latest) {
    const SwapSchedule::Moment& moment = schedule_.write_back[write];
    const std::int32_t position = moment.position == SwapSchedule::kNever
                                      ? latest
                                      : std::min(moment.position, latest);
    // mutant: early-write-back
    add(ActionKind::kWriteBack, write, position, moment, table_.begin(write),
        latest);
  }

  const UseTable& table_;
  const SwapSchedule& schedule_;
  const std::vector<Absence>& absences_;
  std::vector<Item> items_;
};

// Neighbours in the queue of one kind go to one place, as far as their limits
// allow. REQUIRES: sorted by before().
void coalesce(std::vector<Item>& items, ActionKind kind,
              std::int64_t batch_bytes) {
  std::vector<Item*> batch;
  std::int64_t bytes = 0;
  std::int32_t position = 0;
  std::int32_t latest = 0;
  const auto close = [&] {
    for (Item* item : batch) {
      item->position = position;
      item->joined = item != batch.front();
    }
    batch.clear();
  };
  for (Item& item : items) {
    if (item.kind != kind) continue;
    if (!batch.empty() && (bytes + item.bytes > batch_bytes ||
                           std::max(position, item.earliest) > latest)) {
      close();
    }
    if (batch.empty()) {
      bytes = 0;
      position = item.position;
      latest = item.latest;
    }
    batch.push_back(&item);
    bytes += item.bytes;
    position = std::max(position, item.earliest);
    latest = std::min(latest, item.latest);
  }
  close();
}

} // namespace

Plan emit_plan(const UseTable& table, const VictimGaps& gaps,
               const SwapSchedule& schedule, std::int64_t budget,
               std::int64_t batch_bytes) {
  Plan plan;
  plan.budget_bytes = static_cast<std::uint64_t>(budget);
  const std::vector<Absence> absences =
      fit_absences(table, gaps, schedule, budget);
  std::vector<Item> items = Emission(table, schedule, absences).items();
  std::sort(items.begin(), items.end(), before);
  // What comes to one position from several keeps its place in the queue.
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i].order = static_cast<std::uint32_t>(i);
  }
  coalesce(items, ActionKind::kWriteBack, batch_bytes);
  coalesce(items, ActionKind::kFetch, batch_bytes);
  std::sort(items.begin(), items.end(), before);
  plan.actions.reserve(items.size());
  plan.action_end.reserve(static_cast<std::size_t>(table.ops));
  auto item = items.begin();
  for (std::int32_t op = 0; op < table.ops; ++op) {
    for (; item != items.end() && item->position == op; ++item) {
      plan.actions.emplace_back(item->kind, item->value, item->joined);
    }
    plan.action_end.push_back(static_cast<std::uint32_t>(plan.actions.size()));
  }
  return plan;
}

} // namespace chameleon::memory
