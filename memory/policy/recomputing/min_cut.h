// A cheapest cut between a source and a sink (Dinic's algorithm).
//
// Used for choices of the form "yes or no for each vertex, and a price where u
// says yes and v says no": yes is the source's side.
//
// Cost: O(vertices^2 * edges) at worst; about linear on the small, shallow
// graphs that it is used for. Thread safety: none.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace chameleon::memory {

class MinCut {
 public:
  using Vertex = std::uint32_t;
  using Price = std::int64_t;
  static constexpr Price kNever = std::numeric_limits<Price>::max() / 4;
  static constexpr Vertex kSource = 0;
  static constexpr Vertex kSink = 1;

  MinCut() : first_(2, kNone) {}

  Vertex addVertex();
  // What it costs to have u on the source's side and v on the sink's.
  void addEdge(Vertex u, Vertex v, Price price);

  // The price of a cheapest cut; at least kNever: every cut cuts what must not
  // be cut. To be called once.
  Price solve();
  // REQUIRES: solve(). Of all cheapest cuts the one with the fewest vertices on
  // the source's side.
  bool onSourceSide(Vertex vertex) const { return level_[vertex] >= 0; }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Edge { // its reverse is at the index ^ 1
    Vertex to;
    std::uint32_t next; // edge of the same vertex
    Price left;
  };
  bool findLevels();
  Price augment();

  std::vector<Edge> edges_;
  std::vector<std::uint32_t> first_; // per vertex
  std::vector<std::int32_t> level_;  // -1: not reached
  std::vector<std::uint32_t> at_;    // per vertex: the next edge to try
  std::vector<Vertex> queue_;
  std::vector<std::uint32_t> path_; // edges
};

} // namespace chameleon::memory
