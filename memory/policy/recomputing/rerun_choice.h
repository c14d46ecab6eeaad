// Which values are dropped before a pass boundary and recomputed after it: for
// given prices of kept bytes, by a minimum cut in each segment group.
//
// A *segment group* is a run of segments; the values that cross its borders are
// kept or moved, never dropped, so that what is run again together stays within
// it. For a group and a price per kept byte the choice that minimises
//
//   price * bytes kept + time of the nodes that are run again
//
// is a minimum cut. For each value A: it is there after the boundary; for each
// node R: it is run again. A without R of the value's node costs price * bytes,
// R costs the node's duration, R demands A of the node's inputs, and A is given
// where the program needs the value after the boundary. A low price drops what
// a cheap op makes from what is kept anyway, a high one the whole group but its
// input: chains of tensors and checkpoints of layers are the same choice.
//
// What is kept need not be what the program keeps: an input that the program
// frees may be held for the nodes that read it.
//
// Tests: joint_planner_test.cpp.
//
// Thread safety: a const RerunChoices may be shared.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/policy/recomputing/rerun_graph.h"

namespace chameleon::memory {

// What is chosen from, per segment (all passes' one after the other).
struct Assignment {
  std::vector<double> price_ns_per_byte; // <= 0: all is kept
  std::vector<std::uint8_t> joins;       // to one group with the one before it

  friend bool operator==(const Assignment&, const Assignment&) = default;
};

class RerunChoices {
 public:
  RerunChoices(const profiler::Cycle& cycle, const RerunGraph& graph);

  std::size_t segments() const noexcept { return first_op_.size(); }
  // The first segment of a pass cannot join.
  bool beginsPass(std::size_t segment) const noexcept {
    return begins_pass_[segment] != 0;
  }
  // Per value: it is dropped. A group has the price of its first segment.
  std::vector<std::uint8_t> choose(const Assignment& assignment) const;

 private:
  class Group;

  const profiler::Cycle& cycle_;
  const RerunGraph& graph_;
  std::vector<std::uint32_t> first_op_; // per segment
  std::vector<std::uint32_t> end_op_;
  std::vector<std::uint8_t> begins_pass_;
};

} // namespace chameleon::memory
