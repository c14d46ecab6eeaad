// Does the round that is being recorded repeat itself? It does where its last
// ops, kCertain of them or more, are equal one by one to those that came a
// certain distance before them. One of them must also use the very block that
// its equal used: without that, ten equal allocations in a row would look like
// a loop. For each distance it is kept how many ops in a row were equal so far,
// so a new op is compared only with the ops that equal it.
//
// Thread safety: none; the caller synchronises.
#pragma once

#include <cstdint>
#include <vector>

#include "profiler/op_path.h"

namespace chameleon::profiler {

class Repetition {
 public:
  static constexpr std::uint32_t kCertain = 8; // ops that make one

  // Where the op recorded last has been, and for how many ops the ones up to
  // there are equal: kLimit at most, 0: nowhere for kCertain of them.
  static constexpr std::uint32_t kLimit = 64;
  struct Place {
    std::uint32_t position = 0;
    std::uint32_t length = 0;
  };
  // The nearest of more than `longer_than` ops. To be called once per op, else
  // it compares again what it has not kept.
  Place find(const OpPath& recording, std::uint32_t longer_than);

 private:
  // Ops in a row that have an equal one so far back.
  struct Run {
    std::uint32_t distance;
    std::uint32_t length; // kLimit at most
    bool shares;          // a block with its equal, one of them
  };
  Run runAt(const OpPath& recording, std::uint32_t distance);

  // Of the op recorded last, the nearest first: after `ops_` ops of a
  // recording, and for distances up to `reach_`.
  std::vector<Run> runs_;
  PathId recording_ = 0;
  std::uint32_t ops_ = 0;
  std::uint32_t reach_ = 0;
  std::vector<Run> before_; // of the op before it, while it is looked at
  std::vector<Run>::const_iterator next_before_;
};

} // namespace chameleon::profiler
