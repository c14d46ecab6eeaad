#include "memory/policy/swapping/victim_gaps.h"

#include <algorithm>

#include "backend/runtime/check.h"
#include "memory/policy/plan/range_sum.h"
#include "memory/policy/swapping/dary_heap.h"
#include "memory/policy/swapping/range_max.h"

namespace chameleon::memory {
namespace {

class Walk {
 public:
  Walk(const UseTable& table, std::int64_t limit,
       const GapParameters& parameters, VictimGaps& gaps)
      : table_(table),
        limit_(limit),
        parameters_(parameters),
        window_(parameters.window > 0
                    ? std::max(1, static_cast<std::int32_t>(parameters.window *
                                                            table.ops))
                    : std::int32_t{1} << 29),
        gaps_(gaps),
        states_(table.values) {}

  void run() {
    for (std::int32_t pass = 0; pass < 2; ++pass) {
      for (std::int32_t op = 0; op < table_.ops; ++op) step(pass, op);
    }
  }

 private:
  struct State {
    std::int32_t used_at = -1; // position of the last use
    bool present = false;
    bool dirty = false;
  };
  // A value in its current gap. Far ones, whose next use is not in view, have
  // an order of their own, above all others.
  struct Entry {
    std::int64_t key;
    UseIndex use;
    std::int32_t used_at; // another one by now: the entry is stale
  };
  static constexpr std::int64_t kFar = std::int64_t{1} << 40;

  std::int32_t nextUse(const Entry& entry) const {
    if (table_.isTail(entry.use)) return std::int32_t{1} << 30;
    return entry.used_at + (table_.end[entry.use] - table_.op[entry.use]);
  }

  void step(std::int32_t pass, std::int32_t op) {
    const std::int32_t at = pass * table_.ops + op;
    const std::int64_t fixed = table_.fixed_bytes[static_cast<std::size_t>(op)];
    for (UseIndex use = table_.firstUse(op); use < table_.endUse(op); ++use) {
      State& state = states_[table_.value[use]];
      if (!state.present) {
        state.present = true;
        state.dirty = false;
        resident_ += table_.bytes[use];
      }
      state.used_at = at;
      // The second repetition decides anew; a gap that leads into it was
      // decided by then.
      if (pass == 1 && !table_.wraps(use)) gaps_.away[use] = 0;
    }
    const std::int64_t limit =
        std::max(limit_, table_.operand_bytes[static_cast<std::size_t>(op)]);
    while (resident_ + fixed > limit && evictOne(pass, at)) {
    }
    for (UseIndex use = table_.firstUse(op); use < table_.endUse(op); ++use) {
      State& state = states_[table_.value[use]];
      state.dirty = state.dirty || table_.dirties[use] != 0;
      if (table_.length(use) > 0) push({0, use, at});
    }
    for (const UseIndex use : table_.dyingAfter(op)) {
      State& state = states_[table_.value[use]];
      if (state.present) resident_ -= table_.bytes[use];
      state.present = false;
      state.used_at = -1;
    }
  }

  std::int64_t farOrder(const Entry& entry) const {
    if (!parameters_.spread) return -entry.used_at;
    // Multiples of the golden ratio, modulo one: however many are taken, they
    // are spread evenly (Knuth, TAOCP vol. 3, section 6.4).
    constexpr std::uint32_t kGoldenRatio = 2654435769;
    const std::uint32_t fraction = kGoldenRatio * table_.value[entry.use];
    return fraction;
  }

  void push(Entry entry) {
    const std::int32_t next = nextUse(entry);
    const bool far = next - entry.used_at > window_;
    entry.key = far ? kFar + farOrder(entry) : next;
    heaps_[states_[table_.value[entry.use]].dirty ? 1 : 0].push(entry);
  }

  // The first entry that holds, with its key up to date.
  const Entry* top(std::size_t which, std::int32_t at) {
    DaryHeap<Entry>& heap = heaps_[which];
    while (!heap.empty()) {
      const Entry entry = heap.top();
      const State& state = states_[table_.value[entry.use]];
      if (!state.present || state.used_at != entry.used_at ||
          state.used_at == at) {
        heap.pop();
        continue;
      }
      if (entry.key >= kFar / 2 && nextUse(entry) - at <= window_) {
        heap.pop(); // came into view
        heap.push({nextUse(entry), entry.use, entry.used_at});
        continue;
      }
      return &heap.top();
    }
    return nullptr;
  }

  double distance(const Entry& entry, std::int32_t at) const {
    if (entry.key < kFar / 2) return nextUse(entry) - at;
    return window_ + (parameters_.spread ? 0 : at - entry.used_at);
  }

  bool evictOne(std::int32_t pass, std::int32_t at) {
    const Entry* clean = top(0, at);
    const Entry* dirty = top(1, at);
    if (clean == nullptr && dirty == nullptr) return false;
    const bool take_clean =
        dirty == nullptr ||
        (clean != nullptr &&
         distance(*clean, at) * (1 + parameters_.dirty_price) >=
             distance(*dirty, at));
    const Entry victim = take_clean ? *clean : *dirty;
    heaps_[take_clean ? 0 : 1].pop();
    State& state = states_[table_.value[victim.use]];
    state.present = false;
    resident_ -= table_.bytes[victim.use];
    // Of a gap that leads over the end of the step the first instance counts,
    // of the others the second.
    const std::int32_t began = victim.used_at / table_.ops;
    if (began != (table_.wraps(victim.use) ? 0 : pass)) return true;
    gaps_.away[victim.use] = 1;
    gaps_.away_from[victim.use] =
        std::max(victim.used_at, at - window_) + 1 - began * table_.ops;
    return true;
  }

  const UseTable& table_;
  std::int64_t limit_;
  const GapParameters& parameters_;
  std::int32_t window_;
  VictimGaps& gaps_;
  std::vector<State> states_;
  DaryHeap<Entry> heaps_[2]; // clean, dirty
  std::int64_t resident_ = 0;
};

// The two repetitions of the walk need not agree where they meet: what is still
// too much leaves as soon as its gap begins, what would stay longest first.
void repair(const UseTable& table, std::int64_t budget, VictimGaps& gaps) {
  struct Entry {
    std::int32_t key; // it is there before this op
    UseIndex use;
  };
  const std::int32_t ops = table.ops;
  if (*std::max_element(gaps.resident.begin(), gaps.resident.end()) <= budget) {
    return;
  }
  const auto until = [&](UseIndex use) {
    return gaps.away[use] != 0 ? gaps.away_from[use] : table.end[use];
  };
  DaryHeap<Entry> open;
  for (UseIndex use = 0; use < table.uses(); ++use) {
    if (until(use) > ops) open.push({until(use) - ops, use});
  }
  for (std::int32_t op = 0; op < ops; ++op) {
    while (gaps.resident[static_cast<std::size_t>(op)] > budget) {
      CHAMELEON_CHECK(!open.empty() && open.top().key > op,
                      "operands alone exceed the budget");
      const UseIndex use = open.top().use;
      open.pop();
      for (std::int32_t at = table.begin(use); at < until(use); ++at) {
        gaps.resident[static_cast<std::size_t>(at % ops)] -= table.bytes[use];
      }
      gaps.away_from[use] = table.begin(use);
      gaps.away[use] = 1;
    }
    for (UseIndex use = table.firstUse(op); use < table.endUse(op); ++use) {
      open.push({until(use), use});
    }
  }
}

// Takes gaps back where there is room all along, shortest first: they cost as
// much link time as long ones and hold room for less.
void refill(const UseTable& table, std::int64_t limit, VictimGaps& gaps) {
  std::vector<UseIndex> order;
  for (UseIndex use = 0; use < table.uses(); ++use) {
    if (gaps.away[use] != 0) order.push_back(use);
  }
  std::sort(order.begin(), order.end(), [&](UseIndex a, UseIndex b) {
    const std::int32_t left = table.length(a);
    const std::int32_t right = table.length(b);
    return left != right ? left < right : a < b;
  });
  const std::int32_t ops = table.ops;
  RangeMax room(gaps.resident, 1);
  for (const UseIndex use : order) {
    const std::int32_t from = gaps.away_from[use];
    const std::int32_t to = table.end[use];
    const std::int64_t most = limit - table.bytes[use];
    if (room.lastAbove(from, std::min(to, ops), most) != RangeMax::kNone ||
        room.lastAbove(std::max(from - ops, 0), to - ops, most) !=
            RangeMax::kNone) {
      continue;
    }
    room.add(from, std::min(to, ops), table.bytes[use]);
    room.add(std::max(from - ops, 0), to - ops, table.bytes[use]);
    gaps.away[use] = 0;
  }
}

void sum_up(const UseTable& table, VictimGaps& gaps) {
  gaps.resident = table.live_bytes;
  RangeSum away(table.ops);
  for (UseIndex use = 0; use < table.uses(); ++use) {
    if (gaps.away[use] == 0) continue;
    away.add(gaps.away_from[use], table.end[use], -table.bytes[use]);
  }
  away.addTo(gaps.resident);
}

} // namespace

VictimGaps choose_victim_gaps(const UseTable& table, std::int64_t budget,
                              const GapParameters& parameters) {
  VictimGaps gaps;
  gaps.away.assign(table.uses(), 0);
  gaps.away_from.assign(table.uses(), 0);
  if (table.ops == 0) return gaps;
  const auto limit = static_cast<std::int64_t>(
      (1 - parameters.planning_margin) * static_cast<double>(budget));
  Walk(table, limit, parameters, gaps).run();
  sum_up(table, gaps);
  repair(table, budget, gaps);
  if (parameters.refill) {
    refill(table, limit, gaps);
    sum_up(table, gaps);
  }
  return gaps;
}

} // namespace chameleon::memory
