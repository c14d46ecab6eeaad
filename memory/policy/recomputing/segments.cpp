#include "memory/policy/recomputing/segments.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

namespace chameleon::memory {
namespace {

using profiler::Cycle;

// What else crosses a fork is at most this part of the value that is read from
// there on: tables of angles and masks cross all of a pass.
constexpr std::uint64_t kRestShare = 8;
constexpr std::size_t kFewForks = 4;
constexpr std::uint64_t kParts = 24; // of a pass without forks

class Borders {
 public:
  Borders(const Cycle& cycle, const RerunGraph& graph, const Pass& pass)
      : cycle_(cycle), graph_(graph), pass_(pass), uses_(cycle.values()) {
    for (std::uint32_t op = pass.begin; op < pass.at; ++op) {
      for (const profiler::Operand operand : cycle.operandsOf(op)) {
        ++uses_[operand.value()];
      }
    }
  }

  std::vector<std::uint32_t> find() {
    walk();
    if (forks_.size() <= kFewForks) splitEvenly();
    return std::move(forks_);
  }

 private:
  // Notes what crosses before each op.
  void walk() {
    std::vector<std::uint32_t> left = uses_;
    std::set<std::pair<std::uint64_t, ValueIndex>> crossers; // by bytes
    std::uint64_t crossing = 0;
    std::uint64_t made = 0;
    ValueIndex fork = kNone;
    forks_.push_back(pass_.begin);
    for (std::uint32_t op = pass_.begin; op < pass_.at; ++op) {
      crossing_.push_back(crossing);
      made_.push_back(made);
      if (!crossers.empty() && op > pass_.begin) {
        const auto [bytes, value] = *crossers.rbegin();
        const std::uint64_t rest = crossing - bytes;
        if (value != fork && left[value] >= 2 && rest <= bytes / kRestShare) {
          fork = value;
          forks_.push_back(op);
        }
      }
      for (const profiler::Operand operand : cycle_.operandsOf(op)) {
        const ValueIndex value = operand.value();
        const std::uint32_t created = graph_.values[value].created;
        if (created == kNone || created < pass_.begin || created >= pass_.at ||
            created > op) {
          continue;
        }
        const std::uint64_t bytes = cycle_.value_bytes[value];
        --left[value];
        if (operand.creates()) {
          made += bytes;
          if (left[value] == 0) continue;
          crossing += bytes;
          crossers.emplace(bytes, value);
        } else if (left[value] == 0) {
          crossing -= bytes;
          crossers.erase({bytes, value});
        }
      }
    }
    made_.push_back(made);
  }

  void splitEvenly() {
    forks_.assign(1, pass_.begin);
    const auto ops = static_cast<std::uint32_t>(crossing_.size());
    std::uint32_t from = 1;
    for (std::uint64_t part = 1; part < kParts && from < ops; ++part) {
      // Around the part's end, half a part to either side.
      const std::uint64_t middle = made_.back() / kParts * part;
      const std::uint64_t half = made_.back() / kParts / 2;
      std::uint32_t best = ops;
      for (; from < ops && made_[from] < middle + half; ++from) {
        if (best == ops || crossing_[from] < crossing_[best]) best = from;
      }
      if (best != ops) forks_.push_back(pass_.begin + best);
    }
  }

  const Cycle& cycle_;
  const RerunGraph& graph_;
  const Pass& pass_;
  std::vector<std::uint32_t> uses_;     // before the boundary, per value
  std::vector<std::uint64_t> crossing_; // bytes before each op
  std::vector<std::uint64_t> made_;
  std::vector<std::uint32_t> forks_;
};

} // namespace

std::vector<std::vector<std::uint32_t>> find_segments(const Cycle& cycle,
                                                      const RerunGraph& graph) {
  std::vector<std::vector<std::uint32_t>> segments;
  segments.reserve(graph.passes.size());
  for (const Pass& pass : graph.passes) {
    segments.push_back(Borders(cycle, graph, pass).find());
  }
  return segments;
}

} // namespace chameleon::memory
