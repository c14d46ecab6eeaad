// Where in the history the ops recorded last have been before. It
// compares recorded ops with those of paths, and binds nothing. Between ops it
// keeps only what spares it to compare again.
//
// Two ops are the same if their tokens are equal and each pair of operands is
// one block, or the same output of equal ops, or was carried in from the same
// place.
//
// Tests: adaptation_test.cpp, repetition_test.cpp.
//
// Thread safety: none; the caller synchronises.
#pragma once

#include <cstdint>
#include <vector>

#include "profiler/live_blocks.h"
#include "profiler/op_history.h"
#include "profiler/op_path.h"
#include "profiler/op_recorder.h"
#include "profiler/repetition.h"

namespace chameleon::profiler {

// The ops up to a recorded one, and those up to `position` of `path`, are the
// same for `length` ops.
struct ContextMatch {
  OpPath* path = nullptr;
  std::uint32_t position = 0;
  std::uint32_t length = 0;
};

// The value was taken for new in each round, but its block has been alive since
// before the last round.
inline bool input_has_stayed(const LiveBlocks& blocks, const PathValue& value,
                             std::uint32_t round) {
  return value.isExternalInput() &&
         blocks.stillAlive(value.slot, value.identity) &&
         blocks[value.slot].birth.round + 1 < round;
}

class ContextSearch {
 public:
  // Ops that are compared at the place that is chosen, at most.
  static constexpr std::uint32_t kWholeContext = 256;

  // REQUIRES: all outlive it.
  ContextSearch(const LiveBlocks& blocks, OpHistory& history,
                OpRecorder& recorder)
      : blocks_(blocks), history_(history), recorder_(recorder) {}

  // `round`, here and below: the one that the run is in.
  //
  // A path whose beginning is the whole round so far.
  ContextMatch wholeRound(std::uint32_t round);
  // Another round begins, which may be like any path.
  void forgetRound() noexcept { begun_otherwise_.clear(); }
  // The longest equal context in any path; of equally long ones, that in the
  // path used last. `in_itself`: the recording may also repeat itself, with a
  // longer context. Then its own path is given, and length >= kCertain.
  // `must_be_anchored`: a context counts only if it begins the path, or one of
  // its ops is on a block that was there before.
  ContextMatch longest(bool in_itself, bool must_be_anchored,
                       std::uint32_t round);
  // How many ops up to `position`, `limit` at most, are those recorded last.
  std::uint32_t length(const OpPath& path, std::uint32_t position,
                       std::uint32_t limit, std::uint32_t round) const;

 private:
  bool isSame(const OpPath& path, std::uint32_t position,
              std::uint32_t recorded, std::uint32_t round) const;
  bool isAnchored(const OpPath& path, std::uint32_t position,
                  std::uint32_t length) const;
  std::uint32_t tryPlace(OpPath& path, std::uint32_t position,
                         bool must_be_anchored, std::uint32_t round,
                         ContextMatch& best) const;

  const LiveBlocks& blocks_;
  OpHistory& history_;
  OpRecorder& recorder_;
  Repetition repetition_;
  std::vector<PathId> begun_otherwise_; // than this round
};

} // namespace chameleon::profiler
