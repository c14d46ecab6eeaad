#include "memory/policy/recomputing/rerun_choice.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "memory/policy/recomputing/min_cut.h"
#include "memory/policy/recomputing/segments.h"

namespace chameleon::memory {
namespace {

using profiler::Cycle;

constexpr double kPrecision = 1000; // prices in ps
// Around a boundary values are needed again at once: nothing is won by a drop.
constexpr std::uint32_t kShortGap = 4;

} // namespace

// One group's cut. Groups are solved from the last to the first: what a later
// one holds is there for the earlier ones.
class RerunChoices::Group {
 public:
  Group(const RerunChoices& all, std::uint32_t begin, std::uint32_t end,
        double price, std::vector<std::uint8_t>& held,
        std::vector<std::uint8_t>& dropped)
      : all_(all),
        begin_(begin),
        end_(end),
        price_(price),
        held_(held),
        dropped_(dropped) {}

  void solve() {
    const std::vector<RerunGraph::Node>& nodes = all_.graph_.nodes;
    const auto from = std::lower_bound(
        nodes.begin(), nodes.end(), begin_,
        [](const auto& node, std::uint32_t op) { return node.created < op; });
    first_ = static_cast<NodeIndex>(from - nodes.begin());
    last_ = first_;
    while (last_ < nodes.size() && nodes[last_].created < end_) ++last_;
    for (NodeIndex node = first_; node < last_; ++node) {
      rerun_.push_back(cut_.addVertex());
      cut_.addEdge(
          rerun_.back(), MinCut::kSink,
          static_cast<MinCut::Price>(
              kPrecision * static_cast<double>(nodes[node].duration_ns)));
    }
    for (NodeIndex node = first_; node < last_; ++node) {
      for (const ValueIndex value : all_.graph_.outputsOf(node)) there(value);
      for (const ValueIndex value : all_.graph_.inputsOf(node)) {
        const MinCut::Vertex input = there(value, node);
        if (input == kNone) continue;
        cut_.addEdge(rerun_[node - first_], input, MinCut::kNever);
      }
    }
    cut_.solve();
    for (NodeIndex node = first_; node < last_; ++node) {
      if (!cut_.onSourceSide(rerun_[node - first_])) continue;
      for (const ValueIndex value : all_.graph_.outputsOf(node)) {
        if (mayDrop(value) && cut_.onSourceSide(there_.at(value))) {
          dropped_[value] = 1;
        }
      }
    }
    for (NodeIndex node = first_; node < last_; ++node) {
      if (!cut_.onSourceSide(rerun_[node - first_])) continue;
      for (const ValueIndex value : all_.graph_.inputsOf(node)) {
        held_[value] = dropped_[value] == 0 ? 1 : 0;
      }
    }
  }

 private:
  bool isOwn(ValueIndex value) const {
    const NodeIndex node = all_.graph_.values[value].node;
    return node != kNone && node >= first_ && node < last_;
  }
  bool mayDrop(ValueIndex value) const {
    const RerunGraph::Value& life = all_.graph_.values[value];
    const bool gap = life.first_after == kNone ||
                     life.first_after > life.last_before + kShortGap;
    return isOwn(value) && gap && held_[value] == 0 && life.last_before < end_;
  }

  // The vertex of a value's being there after the boundary. kNone:
  // it is there anyway, for `reader` at least.
  MinCut::Vertex there(ValueIndex value, NodeIndex reader = kNone) {
    const auto found = there_.find(value);
    if (found != there_.end()) return found->second;
    const RerunGraph::Value& life = all_.graph_.values[value];
    if (!isOwn(value) &&
        (held_[value] != 0 ||
         all_.graph_.livesAt(value, all_.graph_.nodes[reader].latest))) {
      return kNone;
    }
    const MinCut::Vertex vertex = cut_.addVertex();
    there_.emplace(value, vertex);
    const bool needed = life.first_after != kNone;
    const auto bytes = static_cast<double>(all_.cycle_.value_bytes[value]);
    const auto price =
        static_cast<MinCut::Price>(std::llround(kPrecision * price_ * bytes));
    if (mayDrop(value)) {
      if (needed) cut_.addEdge(MinCut::kSource, vertex, MinCut::kNever);
      cut_.addEdge(vertex, rerun_[life.node - first_], price);
    } else if (!needed && held_[value] == 0) {
      cut_.addEdge(vertex, MinCut::kSink, price);
    }
    return vertex;
  }

  const RerunChoices& all_;
  std::uint32_t begin_;
  std::uint32_t end_;
  double price_;
  std::vector<std::uint8_t>& held_;
  std::vector<std::uint8_t>& dropped_;
  NodeIndex first_ = 0;
  NodeIndex last_ = 0;
  MinCut cut_;
  std::vector<MinCut::Vertex> rerun_; // per node of the group
  std::unordered_map<ValueIndex, MinCut::Vertex> there_;
};

RerunChoices::RerunChoices(const Cycle& cycle, const RerunGraph& graph)
    : cycle_(cycle), graph_(graph) {
  const auto segments = find_segments(cycle, graph);
  for (std::size_t pass = 0; pass < segments.size(); ++pass) {
    for (std::size_t i = 0; i < segments[pass].size(); ++i) {
      first_op_.push_back(segments[pass][i]);
      end_op_.push_back(i + 1 < segments[pass].size() ? segments[pass][i + 1]
                                                      : graph.passes[pass].at);
      begins_pass_.push_back(i == 0 ? 1 : 0);
    }
  }
}

std::vector<std::uint8_t> RerunChoices::choose(
    const Assignment& assignment) const {
  std::vector<std::uint8_t> held(cycle_.values());
  std::vector<std::uint8_t> dropped(cycle_.values());
  for (std::size_t end = segments(); end > 0;) {
    std::size_t begin = end - 1;
    while (begins_pass_[begin] == 0 && assignment.joins[begin] != 0) --begin;
    const double price = assignment.price_ns_per_byte[begin];
    if (price > 0) {
      Group(*this, first_op_[begin], end_op_[end - 1], price, held, dropped)
          .solve();
    }
    end = begin;
  }
  return dropped;
}

} // namespace chameleon::memory
