// Records the ops of a round that no path is known for. While a known path is
// followed from its beginning nothing is recorded: the round is a prefix of
// that path, and becomes a recording only when it leaves it.
//
// Cost per op: no allocation once its vectors have grown to a step's length.
//
// Tests: profiler_test.cpp.
//
// Thread safety: none; the caller synchronises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "profiler/live_blocks.h"
#include "profiler/op_path.h"

namespace chameleon::profiler {

// One operand of an op call.
struct Use {
  std::uint64_t identity; // of the block in this slot
  BlockSlot slot;
  std::uint32_t flags; // Operand::kReads, kWrites, kOverwrites
};

class OpRecorder {
 public:
  explicit OpRecorder(LiveBlocks& blocks) : blocks_(blocks) {}

  bool active() const noexcept { return active_; }
  OpPath& path() noexcept { return path_; }
  const OpPath& path() const noexcept { return path_; }
  // The number of its first op, among all that were observed.
  std::uint64_t firstOp() const noexcept { return first_op_; }
  // Its op where it came to the beginning of the path that is followed; kNone:
  // it did not, or is no more.
  std::uint32_t enteredAt() const noexcept { return entered_at_; }
  void setEnteredAt(std::uint32_t position) noexcept { entered_at_ = position; }

  void start(PathId id, std::uint64_t first_op);
  // The first `ops` ops of a path have just run, on the blocks that its values
  // are bound to.
  void startWithPrefix(PathId id, const OpPath& path, std::uint32_t ops,
                       std::uint64_t first_op);
  // `rest` takes the place of what was recorded: the end of it.
  void continueWith(OpPath rest, std::uint64_t first_op);
  void stop() noexcept { active_ = false; }
  // Gives its memory back. REQUIRES: not active.
  void release() noexcept {
    if (path_.size() > 0) path_ = OpPath();
  }

  // In this round; so are the blocks that begin with the op.
  void record(std::uint32_t op, Token token, std::span<const Use> uses,
              std::uint32_t round);
  // A result of the op recorded last, born in this round.
  void recordResult(BlockSlot slot, std::uint32_t output, std::uint32_t round);
  // The value that stands for a live block here, or kNone.
  std::uint32_t valueOf(const LiveBlock& block) const noexcept;

 private:
  std::uint32_t bindNew(BlockSlot slot, std::uint32_t output,
                        std::uint32_t round);

  LiveBlocks& blocks_;
  OpPath path_;
  std::uint64_t first_op_ = 0;
  std::uint32_t entered_at_ = kNone;
  bool active_ = false;
};

} // namespace chameleon::profiler
