// Where in the recorded history the run is: a cursor on one path. An op that is
// the expected one, on the expected blocks, moves it on in O(1); any other op
// makes the caller look for another place with findPlace().
//
// Matching is exact, but where nobody asks (trustOperands()). Tokens are equal
// (of an expected op their quick halves), and each operand is the very block
// that the path's value is bound to. A value is bound
//   born      to the result of the matched op that makes it; after a jump into
//             the middle of a path, to a block of the same bytes that was born
//             in this round as the same output of an op with the same token;
//             an external input, to a block that no op had used before;
//   carried   to the same block as ever; to the transient that was its source
//             in the round before; or, when the old block is dead, to another
//             one of the same bytes (counted as a miss, though it goes on).
//
// Tests: adaptation_test.cpp, external_input_test.cpp.
//
// Thread safety: none; the caller synchronises.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "profiler/context_search.h"
#include "profiler/live_blocks.h"
#include "profiler/op_history.h"
#include "profiler/op_path.h"
#include "profiler/op_recorder.h"
#include "profiler/path_cursor.h"

namespace chameleon::profiler {

class SequenceMatcher {
 public:
  // Ops of context that make a place certain.
  static constexpr std::uint32_t kCertain = Repetition::kCertain;
  // So many ops may have been put in or left out, and the place and the round
  // are still the same.
  static constexpr std::uint32_t kMostSkipped = 16;

  SequenceMatcher(LiveBlocks& blocks, OpHistory& history, OpRecorder& recorder)
      : blocks_(blocks),
        history_(history),
        recorder_(recorder),
        search_(blocks, history, recorder) {}

  OpPath* path() noexcept { return cursor_.path(); } // null: nothing is known
  const OpPath* path() const noexcept { return cursor_.path(); }
  // Of the next op.
  std::uint32_t position() const noexcept { return cursor_.position(); }
  bool atEnd() const noexcept {
    return path() != nullptr && cursor_.isPastEnd();
  }
  std::uint32_t round() const noexcept { return walk_.round; }

  // Moves on and returns true if the quick half of the token is the expected
  // one, and every operand is the block that the path's value is bound to.
  // Where the path has a value begin with this op, a new block is bound.
  // `op_count`: of the ops observed before. `uses` has size(), identity(i) and
  // use(i), and is as cheap to copy as a pointer. `is_recorded`: the recorder
  // keeps the op, so operands are compared in any case.
  template <typename Uses>
  [[gnu::always_inline]] bool advance(
      QuickToken quick, Uses uses, const std::atomic<std::uint64_t>& op_count,
      bool is_recorded) noexcept {
    if (cursor_.isPastEnd()) return false;
    const PathOp& op = cursor_.next();
    const std::size_t count = uses.size();
    if (quick_half(op.token) != quick ||
        op.result_begin - op.operand_begin != count) {
      return false;
    }
    if (op.expects_new != 0) return advanceBeginning(uses, op_count);
    if (is_recorded || !trusts_operands_) {
      const Operand* const operands = cursor_.operands() + op.operand_begin;
      const PathValue* const values = cursor_.values();
#pragma GCC unroll 2
      for (std::size_t i = 0; i < count; ++i) {
        if (values[operands[i].value()].identity != uses.identity(i)) {
          return false;
        }
      }
    }
    cursor_.moveOn();
    return true;
  }
  // While on, advance() does not compare operands, except those of an op that
  // is recorded or where a value begins.
  void trustOperands(bool trusts) noexcept { trusts_operands_ = trusts; }
  // As advance(), by the whole token, and values may be bound to other blocks
  // first. `rebound`: one of these was not to be foreseen.
  bool advanceRebinding(Token token, std::span<const Use> uses, bool& rebound);
  // It is a shape variant of the expected op: of its name and, in any sizes, on
  // the blocks that the path's values are bound to or may be bound to.
  bool isShapeVariant(std::uint32_t op, std::span<const Use> uses) const;
  // Moves on, and lets its results have other sizes. REQUIRES:
  // isShapeVariant().
  void advanceVariant(std::span<const Use> uses);
  // Binds the value that is result number `output` of the op at `position` to
  // a block that was just born, in this slot. False: no such result is
  // expected. REQUIRES: a path is followed.
  bool bindNew(std::uint32_t position, std::uint32_t output, BlockSlot slot,
               LiveBlock& block) noexcept {
    const PathOp& op = cursor_.op(position);
    const std::uint32_t at = op.result_begin + output;
    if (at >= op.operand_end) return false;
    const std::uint32_t v = cursor_.operands()[at].value();
    PathValue& value = cursor_.values()[v];
    if (value.bytes != block.bytes && position != variant_at_) return false;
    bindNew(v, value, slot, block);
    return true;
  }

  // The same for a result of another size: then the op was a variant.
  // REQUIRES: it was the last one.
  bool produceInVariant(std::uint32_t position, std::uint32_t output,
                        BlockSlot slot) {
    variant_at_ = position;
    return bindNew(position, output, slot, blocks_[slot]);
  }

  // A new round: another walk, from the beginning of `path` (null: unknown),
  // after one of `previous` (may be null).
  void startRound(OpPath* path, OpPath* previous);
  // Jumps behind a match of the recording, and binds its context.
  void follow(const ContextMatch& match);
  // Binds path's op `position` to the recorded op `recorded`.
  void bindOp(OpPath& path, std::uint32_t position, const OpPath& recording,
              std::uint32_t recorded);
  // Nothing is known; where the path was left is remembered.
  void lose() noexcept;
  void setCursor(OpPath* path, std::uint32_t position) noexcept;
  void nextRound() noexcept { ++walk_.round; }
  // Hints are to be made anew: some hundred rounds of another path may have
  // come between. And a round begins, which may be like any path.
  void forgetRound() noexcept {
    unplaced_ops_ = 0;
    hinted_.clear();
    search_.forgetRound();
  }
  // The value that a block is on the path followed, kNone: none.
  std::uint32_t valueOf(const LiveBlock& block) const noexcept;

  // The best place for the op recorded last. It looks for, in this order:
  //   1. a path whose beginning is the whole round so far;
  //   2. a place close behind the one where the path was left;
  //   3. the longest equal context (ContextSearch). While more ops can be
  //      waited for it has to be anchored: else the next may contradict it.
  // Null: nothing is known. Then the op that was expected stays so for a few
  // ops, which may have come between.
  ContextMatch findPlace(bool in_itself);
  // The last ops fitted nowhere; the cursor may wait where they came between.
  bool isUnplaced() const noexcept { return unplaced_ops_ > 0; }
  void setPlaced() noexcept { unplaced_ops_ = 0; }
  // The first of these alone.
  ContextMatch wholeRound() { return search_.wholeRound(walk_.round); }

  // True for an external input that in fact stays from round to round, as the
  // weights of a first step: its block was never seen to die on this path, or
  // has been alive since before the last round.
  bool outlives(const PathValue& value) const noexcept;

 private:
  enum class Sizes { kEqual, kAny };
  bool bindable(const OpPath& path, std::uint32_t position,
                const PathValue& value, const LiveBlock& block, Sizes sizes,
                bool& rebound) const;
  bool allBindable(std::span<const Use> uses, Sizes sizes, bool& rebound) const;
  bool isTaken(const PathValue& value) const;
  // Does the value begin with the next op, and may it be this block?
  bool beginsHere(const PathValue& value, const LiveBlock& block) const {
    return value.birth_op == position() && value.bytes == block.bytes &&
           blocks_.begins(block) &&
           !(blocks_.alive(value.slot, value.identity) && isTaken(value));
  }
  // advance() where new blocks are expected.
  template <typename Uses>
  [[gnu::noinline]] bool advanceBeginning(
      Uses uses, const std::atomic<std::uint64_t>& op_count) noexcept {
    blocks_.setNow(op_count.load(std::memory_order_relaxed) + 1);
    const std::size_t count = uses.size();
    PathOp& op = cursor_.next();
    const Operand* const operands = cursor_.operands() + op.operand_begin;
    const PathValue* const values = cursor_.values();
    std::size_t begun = 0; // the last one of them is value v, in this slot
    std::uint32_t v = 0;
    BlockSlot slot = kNoSlot;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t expected = operands[i].value();
      if (values[expected].identity == uses.identity(i)) continue;
      v = expected;
      slot = uses.use(i).slot;
      if (!beginsHere(values[v], blocks_[slot])) return false;
      ++begun;
    }
    if (begun > 0) {
      begin(v, slot);
    } else { // what began with it has come to stay
      op.expects_new = 0;
    }
    for (std::size_t i = 0; begun > 1; ++i) {
      v = operands[i].value();
      if (values[v].identity == uses.identity(i)) continue;
      begin(v, uses.use(i).slot);
      --begun;
    }
    cursor_.moveOn();
    return true;
  }
  void begin(std::uint32_t v, BlockSlot slot) noexcept {
    LiveBlock& block = blocks_[slot];
    blocks_.beginNow(block);
    cursor_.next().expects_new = 1;
    bindNew(v, cursor_.values()[v], slot, block);
  }
  // Value v of the path is that block, in this round.
  void bindNew(std::uint32_t v, PathValue& value, BlockSlot slot,
               LiveBlock& block) const noexcept {
    value.identity = block.identity;
    value.slot = slot;
    block.value = v;
    block.birth_value = v;
    block.birth = walk_;
  }
  void bind(std::uint32_t v, BlockSlot slot);
  void bindAll(std::span<const Use> uses);
  bool fits(const OpPath& path, std::uint32_t position) const;
  bool onBound(const OpPath& path, std::uint32_t position) const;
  ContextMatch resume();
  const OpPath* pathOf(PathId id) const noexcept;
  void hintCarried(const OpPath& path);

  LiveBlocks& blocks_;
  OpHistory& history_;
  OpRecorder& recorder_;
  ContextSearch search_;
  PathCursor cursor_;
  bool trusts_operands_ = false;
  Walk walk_{0, 1};                  // path()'s, or that of the last one
  std::vector<PathId> hinted_;       // by hintCarried(), since forgetRound()
  std::uint32_t variant_at_ = kNone; // position of the last shape variant
  std::uint32_t unplaced_ops_ = 0;   // in a row that fitted nowhere
  PathId left_path_ = 0; // where the cursor was when it lost its way
  std::uint32_t left_position_ = 0;
};

} // namespace chameleon::profiler
