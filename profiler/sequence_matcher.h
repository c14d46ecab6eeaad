// Where in the recorded history the run is: a cursor on one path. An op that is
// the expected one, on the expected blocks, moves it on in O(1); any other op
// makes the caller look for another place with relocate().
//
// Matching is exact. Tokens are equal (of an expected op their quick halves),
// and each operand is the very block that the path's value is bound to. A value
// is bound
//   born      to the result of the matched op that bears it; after a jump into
//             the middle of a path, to a block of the same bytes that was born
//             in this round as the same output of an op with the same token;
//             what is handed in, to a block that no op had used before;
//   carried   to the same block as ever; to the transient that was its source
//             in the round before; or, when the old block is dead, to another
//             one of the same bytes (counted as a miss, though it goes on).
//
// Thread safety: none; the caller synchronises.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

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

class SequenceMatcher {
 public:
  // Ops of context that make a place certain.
  static constexpr std::uint32_t kCertain = Repetition::kCertain;

  SequenceMatcher(LiveBlocks& blocks, OpHistory& history, OpRecorder& recorder)
      : blocks_(blocks), history_(history), recorder_(recorder) {}

  OpPath* path() noexcept { return path_; } // null: nothing is known
  const OpPath* path() const noexcept { return path_; }
  std::uint32_t position() const noexcept { // of the next op
    return path_ == nullptr
               ? 0
               : static_cast<std::uint32_t>(next_ - path_->opData());
  }
  // Of the op before that. REQUIRES: a path is followed.
  std::uint32_t lastPosition() const noexcept {
    return static_cast<std::uint32_t>(next_ - path_->opData() - 1);
  }
  bool atEnd() const noexcept { return path_ != nullptr && next_ == end_; }
  std::uint32_t round() const noexcept { return round_; }

  // True: the op is the expected one, as far as the quick half of its token
  // says, on the very blocks that the path is bound to; the cursor moved on.
  // `uses` has size() and identity(i), and is as good as a pointer.
  template <typename Uses>
  [[gnu::always_inline]] bool advance(QuickToken quick, Uses uses) noexcept {
    const std::size_t count = uses.size();
    if (!isNext(quick, count)) return false;
    const Operand* const operands = operands_ + next_->operand_begin;
    const PathValue* const values = values_;
#pragma GCC unroll 2
    for (std::size_t i = 0; i < count; ++i) {
      if (values[operands[i].value()].identity != uses.identity(i)) {
        return false;
      }
    }
    ++next_;
    return true;
  }
  // The same where some of them are new: blocks that begin with this op, as the
  // path has it. They are bound. `uses` has use(i) as well; `op_number` counts
  // the ops observed, this one too.
  template <typename Uses>
  [[gnu::noinline]] bool advanceBeginning(QuickToken quick, Uses uses,
                                          std::uint64_t op_number) noexcept {
    const std::size_t count = uses.size();
    if (!isNext(quick, count)) return false;
    blocks_.setNow(op_number);
    const Operand* const operands = operands_ + next_->operand_begin;
    const std::uint32_t here = position();
    std::size_t first_new = count;
    for (std::size_t i = 0; i < count; ++i) {
      const PathValue& value = values_[operands[i].value()];
      if (value.identity == uses.identity(i)) continue;
      if (!beginsAt(here, value, blocks_[uses.use(i).slot])) return false;
      first_new = std::min(first_new, i);
    }
    for (std::size_t i = first_new; i < count; ++i) {
      const std::uint32_t v = operands[i].value();
      if (values_[v].identity != uses.identity(i)) bind(v, uses.use(i).slot);
    }
    ++next_;
    return true;
  }
  // The same by the whole token, where values may have to be bound to other
  // blocks first.
  // `rebound`: one of them was not to be foreseen.
  bool advanceRebinding(Token token, std::span<const Use> uses, bool& rebound);
  // It is *alike* the expected op: of its name and, in whatever sizes, on the
  // blocks that the path's values are bound to or may be bound to.
  bool isAlike(std::uint32_t op, std::span<const Use> uses) const;
  // Moves on, and lets its results have other sizes. REQUIRES: isAlike().
  void advanceAlike(std::span<const Use> uses);
  // The same on a path whose tokens are not known, and whose values are bound
  // as they are met: equal names, the bound operands, and in their order new
  // carried ones of equal bytes.
  bool advanceUnbound(std::uint32_t op, std::span<const Use> uses);
  // Would its first op fit?
  bool beginsWith(const OpPath& path, std::uint32_t op,
                  std::span<const Use> uses);
  // Binds the value that is result number `output` of the op at `position` to
  // a block that was just born. False: no such result is expected.
  // REQUIRES: a path is followed.
  bool bear(std::uint32_t position, std::uint32_t output, BlockSlot slot) {
    const PathOp& op = path_->op(position);
    const std::uint32_t at = op.result_begin + output;
    if (at >= op.operand_end) return false;
    const std::uint32_t v = operands_[at].value();
    PathValue& value = values_[v];
    LiveBlock& block = blocks_[slot];
    if (value.bytes != block.bytes && position != alike_at_) return false;
    value.identity = block.identity;
    value.slot = slot;
    block.value = v;
    block.birth_path = path_->id();
    block.birth_value = v;
    block.birth_round = round_;
    return true;
  }

  // The same for a result of another size: then the op was alike.
  // REQUIRES: it was the last one.
  bool bearAlike(std::uint32_t position, std::uint32_t output, BlockSlot slot) {
    alike_at_ = position;
    return bear(position, output, slot);
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
  PathId leftPath() const noexcept { return left_path_; }
  // To there.
  void comeBack() noexcept {
    setCursor(history_.find(left_path_), left_position_);
  }
  void setCursor(OpPath* path, std::uint32_t position) noexcept;
  void nextRound() noexcept { ++round_; }

  // The best place for the op recorded last: where the whole round so far is
  // the beginning of a path; else close behind where the path was left; else
  // the longest equal context, in the path used last. `in_itself`: the
  // recording may repeat itself too (then its own path is given, and length >=
  // kCertain). `has_time`: a place that one of the next ops may contradict, for
  // no op of its context is on a block that was there before, is none yet.
  ContextMatch relocate(bool in_itself, bool has_time);
  // The first of these alone.
  ContextMatch wholeRound();

  // What was handed in is there for rounds: it only seemed to be new.
  bool stays(const PathValue& value) const;

 private:
  enum class Sizes { kEqual, kAny };
  // As far as the quick half of its token and the number of its uses say.
  bool isNext(QuickToken quick, std::size_t uses) const noexcept {
    return next_ != end_ && // as they are without a path
           quick_half(next_->token) == quick &&
           next_->result_begin - next_->operand_begin == uses;
  }
  bool bindable(const OpPath& path, std::uint32_t position,
                const PathValue& value, const LiveBlock& block, Sizes sizes,
                bool& rebound) const;
  bool allBindable(std::span<const Use> uses, Sizes sizes, bool& rebound) const;
  bool isTaken(const PathValue& value) const;
  // Does the value begin with that op, the next one, and may it be this block?
  bool beginsAt(std::uint32_t position, const PathValue& value,
                const LiveBlock& block) const {
    return value.birth_op == position && value.bytes == block.bytes &&
           blocks_.begins(block) && !isTaken(value);
  }
  void bind(std::uint32_t v, BlockSlot slot);
  void bindAll(std::span<const Use> uses);
  bool choose(const OpPath& path, std::uint32_t position, std::uint32_t op,
              std::span<const Use> uses);
  bool fits(const OpPath& path, std::uint32_t position) const;
  bool onBound(const OpPath& path, std::uint32_t position) const;
  ContextMatch resume();
  const OpPath* pathOf(PathId id) const noexcept;
  bool sameOp(const OpPath& path, std::uint32_t position,
              std::uint32_t recorded) const;
  std::uint32_t context(const OpPath& path, std::uint32_t position,
                        std::uint32_t limit) const;
  void tryPlace(OpPath& path, std::uint32_t position, bool must_be_anchored,
                ContextMatch& best) const;
  bool anchored(const OpPath& path, std::uint32_t position,
                std::uint32_t length) const;
  void hintCarried(OpPath& path);

  LiveBlocks& blocks_;
  OpHistory& history_;
  OpRecorder& recorder_;
  Repetition repetition_;
  OpPath* path_ = nullptr;
  // Into path_, as the hot path wants them; equal without a path.
  const PathOp* next_ = nullptr;
  const PathOp* end_ = nullptr;
  const Operand* operands_ = nullptr;
  PathValue* values_ = nullptr;
  std::uint32_t round_ = 1;
  std::vector<std::uint32_t> chosen_; // by choose(): per use, its value
  std::vector<std::uint32_t> open_;
  std::uint32_t alike_at_ = kNone; // position of the last op that was alike
  PathId left_path_ = 0;           // where the cursor was when it lost its way
  std::uint32_t left_position_ = 0;
};

} // namespace chameleon::profiler
