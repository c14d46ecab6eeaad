#include "memory/policy/recomputing/min_cut.h"

#include <algorithm>

namespace chameleon::memory {

MinCut::Vertex MinCut::addVertex() {
  first_.push_back(kNone);
  return static_cast<Vertex>(first_.size() - 1);
}

void MinCut::addEdge(Vertex u, Vertex v, Price price) {
  edges_.push_back({v, first_[u], price});
  first_[u] = static_cast<std::uint32_t>(edges_.size() - 1);
  edges_.push_back({u, first_[v], 0});
  first_[v] = static_cast<std::uint32_t>(edges_.size() - 1);
}

MinCut::Price MinCut::solve() {
  Price total = 0;
  while (total < kNever && findLevels()) {
    at_ = first_;
    for (Price more; total < kNever && (more = augment()) > 0;) total += more;
  }
  return total;
}

bool MinCut::findLevels() {
  level_.assign(first_.size(), -1);
  level_[kSource] = 0;
  queue_.assign(1, kSource);
  for (std::size_t head = 0; head < queue_.size(); ++head) {
    const Vertex u = queue_[head];
    for (std::uint32_t e = first_[u]; e != kNone; e = edges_[e].next) {
      const Vertex v = edges_[e].to;
      if (edges_[e].left == 0 || level_[v] >= 0) continue;
      level_[v] = level_[u] + 1;
      queue_.push_back(v);
    }
  }
  return level_[kSink] >= 0;
}

// One path of a blocking flow, without recursion: paths may be long.
MinCut::Price MinCut::augment() {
  path_.clear();
  for (Vertex u = kSource; u != kSink;) {
    std::uint32_t& e = at_[u];
    while (e != kNone &&
           (edges_[e].left == 0 || level_[edges_[e].to] != level_[u] + 1)) {
      e = edges_[e].next;
    }
    if (e != kNone) {
      path_.push_back(e);
      u = edges_[e].to;
      continue;
    }
    if (path_.empty()) return 0;
    // A dead end: back, and past the edge that led here.
    u = edges_[path_.back() ^ 1U].to;
    path_.pop_back();
    at_[u] = edges_[at_[u]].next;
  }
  Price least = kNever;
  for (const std::uint32_t e : path_) least = std::min(least, edges_[e].left);
  for (const std::uint32_t e : path_) {
    edges_[e].left -= least;
    edges_[e ^ 1U].left += least;
  }
  return least;
}

} // namespace chameleon::memory
