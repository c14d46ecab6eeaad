// The processes that a launcher such as torchrun started together on this
// machine ("local ranks"), and how they share its memory.
//
// LOCAL_WORLD_SIZE says how many there are, LOCAL_RANK which one this is. They
// are not ours, so where LOCAL_WORLD_SIZE is missing or empty no launcher is in
// play: there is one process, and LOCAL_RANK is not read, which some scripts
// set by themselves. Where it is set, both have to make sense.
//
// Thread safety: no shared state; read_local_ranks() reads the environment, as
// getenv() does.
#pragma once

#include <string_view>

#include "backend/runtime/result.h"

namespace chameleon::runtime {

struct LocalRanks {
  int rank = 0; // REQUIRES 0 <= rank < count
  int count = 1;
  // The launcher shows this process one GPU, by CUDA_VISIBLE_DEVICES.
  bool sees_one_card = false;
};

// kInvalidArgument names the variable, its value and what is allowed.
Result<LocalRanks> read_local_ranks();
// The same from values of LOCAL_WORLD_SIZE, LOCAL_RANK and
// CUDA_VISIBLE_DEVICES; empty: not set.
Result<LocalRanks> parse_local_ranks(std::string_view world_size,
                                     std::string_view rank,
                                     std::string_view visible_cards);

// The most ranks that one of `cards` GPUs carries, where they are dealt out
// evenly. A process that is shown one GPU may have it for itself, or share it
// with all others: it is taken to have it, since a GPU that is full says so,
// and half a budget for a whole GPU would not be noticed.
int ranks_on_a_card(const LocalRanks& ranks, int cards);

} // namespace chameleon::runtime
