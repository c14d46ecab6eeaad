#include "memory/policy/path_plan.h"

#include <algorithm>
#include <utility>

namespace chameleon::memory {

using profiler::kNone;

void PathPlan::setPlan(PlanPtr made, const profiler::CycleMap& map) {
  plan = std::move(made);
  nameValues(map);
  findHeld(map.cycle);
}

void PathPlan::nameValues(const profiler::CycleMap& map) {
  names.resize(map.cycle.values());
  for (std::uint32_t v = 0; v < map.value_of.size(); ++v) {
    if (map.value_of[v] == kNone) continue;
    Names& both = names[map.value_of[v]];
    (both.first == kNone ? both.first : both.second) = v;
  }
}

// A transient is found up to its last use; a copy after its death is meant for
// what ops that run again still need. (What is dead and can be made again drops
// its bytes without being told.)
void PathPlan::findHeld(const profiler::Cycle& cycle) {
  if (plan->recorded.empty()) return;
  std::vector<std::uint32_t> created(cycle.values(), kNone);
  std::vector<std::uint32_t> used(cycle.values(), kNone);
  std::vector<std::uint32_t> freed(cycle.values(), kNone);
  for (std::uint32_t op = 0; op < cycle.ops(); ++op) {
    for (const profiler::Operand operand : cycle.operandsOf(op)) {
      if (operand.creates()) created[operand.value()] = op;
      used[operand.value()] = op;
    }
    for (const ValueIndex value : cycle.freedAfter(op)) freed[value] = op;
  }
  std::vector<std::uint8_t> is_held(cycle.values());
  for (std::uint32_t op = 0; op < cycle.ops(); ++op) {
    for (const Action action : plan->actionsBefore(op)) {
      const ValueIndex value = action.value();
      if (action.kind() == Action::Kind::kDrop) continue;
      if (freed[value] == kNone || created[value] == kNone ||
          created[value] >= used[value] || freed[value] < created[value] ||
          op <= freed[value] || is_held[value] != 0) {
        continue;
      }
      is_held[value] = 1;
      held.push_back({used[value], value});
    }
  }
  std::sort(held.begin(), held.end(),
            [](const auto& a, const auto& b) { return a.op < b.op; });
}

std::size_t PathPlan::memoryBytes() const noexcept {
  std::size_t bytes = sizeof(PathPlan) + names.capacity() * sizeof(Names) +
                      held.capacity() * sizeof(Held);
  if (plan != nullptr) {
    bytes += sizeof(Plan) + plan->actions.capacity() * sizeof(Action) +
             (plan->action_end.capacity() + plan->recorded.capacity()) *
                 sizeof(std::uint32_t);
  }
  if (placement) {
    bytes += placement->places.capacity() * sizeof(Placement::Place) +
             placement->place_end.capacity() * sizeof(std::uint32_t);
  }
  return bytes;
}

} // namespace chameleon::memory
