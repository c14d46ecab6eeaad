#include "memory/policy/retained_bytes.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "memory/policy/recomputing/segments.h"

namespace chameleon::memory {

namespace {

bool is_retained(const RerunGraph::Value& life) {
  const bool persists =
      life.created == kNone || life.freed == kNone || life.freed < life.created;
  return persists || (life.last_before != kNone && life.first_after != kNone);
}

} // namespace

RetainedBytes::RetainedBytes(const profiler::Cycle& cycle)
    : cycle_(cycle), graph_(cycle) {
  const auto segments = find_segments(cycle, graph_);
  for (std::size_t pass = 0; pass < segments.size(); ++pass) {
    for (std::size_t i = 0; i < segments[pass].size(); ++i) {
      const bool is_last = i + 1 == segments[pass].size();
      layers_.push_back(
          {segments[pass][i],
           is_last ? graph_.passes[pass].at : segments[pass][i + 1],
           {}});
    }
  }
}

PlanShares RetainedBytes::under(const Plan& plan) const {
  PlanShares result{{}, layers_};
  // Null: no layer.
  const auto layerOf = [&](std::uint32_t op) -> ByteShares* {
    const auto after =
        std::upper_bound(result.layers.begin(), result.layers.end(), op,
                         [](std::uint32_t at, const auto& layer) {
                           return at < layer.first_op;
                         });
    if (op == kNone || after == result.layers.begin()) return nullptr;
    PlanShares::Layer& layer = *std::prev(after);
    return op < layer.end_op ? &layer.shares : nullptr;
  };
  std::vector<std::uint8_t> moves(cycle_.values());
  std::vector<std::uint8_t> drops(cycle_.values());
  for (const Action action : plan.actions) {
    const bool is_drop = action.kind() == Action::Kind::kDrop;
    (is_drop ? drops : moves)[action.value()] = 1;
  }
  for (ValueIndex value = 0; value < cycle_.values(); ++value) {
    const RerunGraph::Value& life = graph_.values[value];
    const bool retained = is_retained(life);
    if (!retained && moves[value] == 0) continue;
    const bool again = retained && drops[value] != 0;
    ByteShares* const layer =
        life.last_before != kNone ? layerOf(life.created) : nullptr;
    for (ByteShares* const shares : {&result.all, layer}) {
      if (shares == nullptr) continue;
      (again               ? shares->rerun_bytes
       : moves[value] != 0 ? shares->moved_bytes
                           : shares->kept_bytes) += cycle_.value_bytes[value];
    }
  }
  for (const std::uint32_t op : plan.recorded) {
    ++result.all.rerun_ops;
    if (ByteShares* const layer = layerOf(op)) ++layer->rerun_ops;
  }
  return result;
}

} // namespace chameleon::memory
