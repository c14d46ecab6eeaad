#include "memory/policy/placement.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "memory/policy/plan/use_table.h"

namespace chameleon::memory {
namespace {

using profiler::Cycle;
using profiler::kNone;
using profiler::Operand;
using profiler::ValueIndex;

// Something that lies at one place from before op `begin` to after op `last`,
// counted from the op before which all is packed.
struct Item {
  std::uint32_t begin;
  std::uint32_t last;
  std::uint64_t bytes;
  std::uint32_t place; // in Placement::places
  std::uint64_t offset = 0;

  bool isBeside(const Item& other) const noexcept {
    return begin <= other.last && other.begin <= last;
  }
};

// What is live before each op.
std::vector<std::uint64_t> live_before(const Cycle& cycle) {
  const UseTable table(cycle, /*keep_bytes=*/0);
  std::vector<std::uint64_t> before;
  for (std::size_t op = 0; op < cycle.ops(); ++op) {
    auto live = static_cast<std::uint64_t>(table.live_bytes[op]);
    live -= cycle.workspace_bytes[op];
    for (const Operand operand : cycle.operandsOf(op)) {
      if (operand.creates()) live -= cycle.value_bytes[operand.value()];
    }
    before.push_back(live);
  }
  return before;
}

class Placer {
 public:
  Placer(const Cycle& cycle, std::uint32_t packed_before) : cycle_(cycle) {
    made_.packed_before = packed_before;
    list();
  }

  Placement place() {
    std::ranges::sort(items_, [](const Item& a, const Item& b) {
      return std::tie(b.bytes, a.place) < std::tie(a.bytes, b.place);
    });
    for (const Item& item : items_) place(item);
    return std::move(made_);
  }

 private:
  std::uint32_t sincePacked(std::size_t op) const noexcept {
    const std::size_t ops = cycle_.ops();
    return static_cast<std::uint32_t>((op + ops - made_.packed_before) % ops);
  }

  // All that ops allocate, in their order.
  void list() {
    std::vector<std::uint32_t> freed(cycle_.values(), kNone);
    for (std::size_t op = 0; op < cycle_.ops(); ++op) {
      for (const ValueIndex value : cycle_.freedAfter(op)) {
        freed[value] = sincePacked(op);
      }
    }
    const auto end = static_cast<std::uint32_t>(cycle_.ops() - 1);
    for (std::size_t op = 0; op < cycle_.ops(); ++op) {
      const std::uint32_t at = sincePacked(op);
      for (const Operand operand : cycle_.operandsOf(op)) {
        if (!operand.creates()) continue;
        const std::uint32_t last = freed[operand.value()];
        // What lives on is moved to the bottom with the rest.
        add(at, last == kNone || last < at ? end : last,
            cycle_.value_bytes[operand.value()], false);
      }
      add(at, at, cycle_.workspace_bytes[op], true);
      made_.place_end.push_back(
          static_cast<std::uint32_t>(made_.places.size()));
    }
  }

  void add(std::uint32_t begin, std::uint32_t last, std::uint64_t bytes,
           bool is_workspace) {
    if (bytes == 0) return;
    const auto place = static_cast<std::uint32_t>(made_.places.size());
    made_.places.push_back({0, bytes, is_workspace});
    items_.push_back({begin, last, bytes, place});
  }

  // Into the smallest gap between those that live beside it.
  void place(Item item) {
    beside_.clear();
    for (const Item& other : placed_) {
      if (item.isBeside(other)) {
        beside_.emplace_back(other.offset, other.offset + other.bytes);
      }
    }
    std::ranges::sort(beside_);
    std::uint64_t end = 0; // of those so far
    std::uint64_t gap_bytes = ~std::uint64_t{0};
    bool found = false;
    for (const auto& [from, to] : beside_) {
      if (from > end && from - end >= item.bytes && from - end < gap_bytes) {
        gap_bytes = from - end;
        item.offset = end;
        found = true;
      }
      end = std::max(end, to);
    }
    if (!found) item.offset = end;
    made_.places[item.place].offset = item.offset;
    made_.span_bytes = std::max(made_.span_bytes, item.offset + item.bytes);
    placed_.push_back(item);
  }

  const Cycle& cycle_;
  Placement made_;
  std::vector<Item> items_;
  std::vector<Item> placed_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> beside_; // scratch
};

} // namespace

std::optional<Placement> place_values(const Cycle& cycle,
                                      std::uint64_t budget_bytes) {
  if (cycle.ops() == 0 || cycle.values() > kMostPlaced) return {};
  const std::vector<std::uint64_t> live = live_before(cycle);
  const auto least = std::ranges::min_element(live);
  Placement made =
      Placer(cycle, static_cast<std::uint32_t>(least - live.begin())).place();
  if (!made.fits(*least, budget_bytes)) return {};
  return made;
}

} // namespace chameleon::memory
