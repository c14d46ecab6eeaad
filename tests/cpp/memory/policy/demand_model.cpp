#include "tests/cpp/memory/policy/demand_model.h"

#include <limits>
#include <vector>

#include "backend/runtime/check.h"
#include "memory/policy/plan/plan_model.h"
#include "memory/policy/swapping/dary_heap.h"

namespace chameleon::memory {
namespace {

class DemandPaging {
 public:
  DemandPaging(const UseTable& table, Victims victims, std::int64_t budget)
      : table_(table),
        victims_(victims),
        model_(table, budget),
        used_at_(table.values, -1) {
    // Nothing was touched yet: all persistent values are on the host.
    for (const ValueIndex value : table.value) model_.beginAway(value);
  }

  void run(std::int64_t step, std::int32_t op) {
    const std::int64_t now = step * table_.ops + op;
    std::int64_t missing = model_.roomFor(op);
    for (UseIndex use = table_.firstUse(op); use < table_.endUse(op); ++use) {
      const ValueIndex value = table_.value[use];
      used_at_[value] = now; // no victim from now on
      if (isMissing(use)) missing += table_.bytes[use];
    }
    while (model_.room() < missing) model_.evict(victim(now));
    for (UseIndex use = table_.firstUse(op); use < table_.endUse(op); ++use) {
      if (isMissing(use)) model_.fetch(table_.value[use]);
      candidates_.push({key(use, now), table_.value[use], now});
    }
    model_.run(op);
  }

  PlanModel& model() { return model_; }

 private:
  struct Entry {
    std::int64_t key;
    ValueIndex value;
    std::int64_t used_at; // another one by now: stale
  };

  bool isMissing(UseIndex use) const {
    return table_.needs[use] != 0 && !model_.isPlaced(table_.value[use]);
  }
  std::int64_t key(UseIndex use, std::int64_t now) const {
    if (victims_ == Victims::kLeastRecentlyUsed) return -now;
    return table_.isTail(use) ? std::numeric_limits<std::int64_t>::max()
                              : now + table_.end[use] - table_.op[use];
  }
  ValueIndex victim(std::int64_t now) {
    for (;;) {
      CHAMELEON_CHECK(!candidates_.empty(), "operands exceed the budget");
      const Entry entry = candidates_.top();
      candidates_.pop();
      if (entry.used_at == used_at_[entry.value] && entry.used_at != now &&
          model_.isPlaced(entry.value)) {
        return entry.value;
      }
    }
  }

  const UseTable& table_;
  Victims victims_;
  PlanModel model_;
  std::vector<std::int64_t> used_at_; // position of the last use
  DaryHeap<Entry> candidates_;
};

} // namespace

ModelledStep model_demand_paging(const UseTable& table, Victims victims,
                                 std::int64_t budget, const LinkModel& link,
                                 int from, int to) {
  if (table.ops == 0) return {};
  DemandPaging paging(table, victims, budget);
  for (int step = 0; step <= to; ++step) {
    for (std::int32_t op = 0; op < table.ops; ++op) paging.run(step, op);
  }
  paging.model().evaluate(link);
  return paging.model().meanStep(from, to);
}

} // namespace chameleon::memory
