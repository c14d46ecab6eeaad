// A path: one recorded sequence of ops, as a rule one step, in which every
// storage is a *value* with a number of its own.
//
//   born     it begins at an op of this path, and is known by the position of
//            that op and an output number. Either the op makes it, or it was
//            handed to the op as memory that no op had touched before (a
//            factory's): then `output` is kExternalInput + which one of those;
//   carried  it was there when the path began: a persistent block, or a
//            transient of an earlier path (`source` says which value of which).
//
// Values are numbered by first appearance, so two runs of the same sequence
// give them the same numbers, and a prefix of a path has a prefix of its
// values. A value is *bound* to the live block that stands for it at present;
// matching an operand is comparing that identity. Sequence and structure never
// change after finish(); bindings, deaths and workspaces do.
//
// Memory: 36 to 40 bytes per op (index and times included; 4 more where any op
// has a workspace), 8 an operand, 48 a value and 20 more a carried one.
//
// Tests: forecast_test.cpp.
//
// Thread safety: none; the caller synchronises. After finish() what does not
// change (tokens, operands, and of a value bytes, birth_op, output and uses)
// may be read by other threads meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "profiler/cycle.h"
#include "profiler/live_blocks.h"
#include "profiler/token.h"

namespace chameleon::profiler {

using PathId = std::uint32_t; // never reused; 0: none

struct PathOp {
  Token token;
  std::uint32_t operand_begin; // uses, then results
  std::uint32_t result_begin;
  std::uint32_t operand_end;
  std::uint32_t op; // its name, see OpNames
  // The position before with a token that may be the same; kNone: none.
  std::uint32_t previous_like = kNone;
  // What is below changes while the path is walked. 1: some operands are
  // expected to be values that begin with this op. 0 also where such a value
  // turned out to be a block that stays from round to round.
  std::uint32_t expects_new : 1 = 0;
  std::uint32_t elapsed : 31 = 0; // see OpPath::elapsed_ns(); when it has ended
};

struct PathValue {
  std::uint64_t identity = 0; // bound to; may be dead
  std::uint64_t bytes = 0;
  BlockSlot slot = kNoSlot;       // of the block it is bound to
  std::uint32_t birth_op = kNone; // kNone: carried
  std::uint32_t output = 0;       // which of birth_op's
  // The op after which it was last seen to die, kNone: not seen. At or past
  // the path's end: that much into the path that came next.
  std::uint32_t free_op = kNone;
  PathId source_path = 0; // of a carried transient: what it was
  std::uint32_t source_value = 0;
  std::uint32_t successor = kNone; // the value it becomes in the next round
  std::uint32_t use_end = 0;       // see OpPath::usesOf(); after finish()

  static constexpr std::uint32_t kExternalInput = std::uint32_t{1} << 31;

  bool carried() const noexcept { return birth_op == kNone; }
  bool isExternalInput() const noexcept {
    return !carried() && output >= kExternalInput;
  }
};

// One use of one value: where, and how (Operand's flags).
class PathUse {
 public:
  PathUse(std::uint32_t position, std::uint32_t flags) noexcept
      : bits_(position << 4 | flags) {}
  std::uint32_t position() const noexcept { return bits_ >> 4; }
  std::uint32_t flags() const noexcept { return bits_ & 15; }

 private:
  std::uint32_t bits_;
};

class OpPath {
 public:
  static constexpr std::size_t kMaxOps = std::size_t{1} << 28;
  static constexpr std::uint64_t kWorkspaceUnit = 512; // bytes

  explicit OpPath(PathId id = 0) : id_(id) {}

  PathId id() const noexcept { return id_; }
  std::uint32_t size() const noexcept {
    return static_cast<std::uint32_t>(ops_.size());
  }
  const PathOp& op(std::uint32_t position) const noexcept {
    return ops_[position];
  }
  std::span<const Operand> uses(std::uint32_t position) const noexcept {
    const PathOp& op = ops_[position];
    return slice(op.operand_begin, op.result_begin);
  }
  std::span<const Operand> results(std::uint32_t position) const noexcept {
    const PathOp& op = ops_[position];
    return slice(op.result_begin, op.operand_end);
  }
  std::span<const Operand> operands(std::uint32_t position) const noexcept {
    const PathOp& op = ops_[position];
    return slice(op.operand_begin, op.operand_end);
  }
  PathOp* opData() noexcept { return ops_.data(); }
  const Operand* operandData() const noexcept { return operands_.data(); }
  std::vector<PathValue>& values() noexcept { return values_; }
  const std::vector<PathValue>& values() const noexcept { return values_; }

  // ---- building ------------------------------------------------------------
  void clear(PathId id); // keeps its memory
  void addOp(std::uint32_t op, Token token);
  void addUse(std::uint32_t value, std::uint32_t flags); // of the last op
  void addResult(std::uint32_t value);                   // of the last op
  std::uint32_t addValue(const PathValue& value);
  // What the op took from the arena beside its results, at most.
  void setWorkspace(std::uint32_t position, std::uint64_t bytes) noexcept;
  std::uint64_t workspace_bytes(std::uint32_t position) const noexcept {
    return workspaces_.empty() ? 0 : workspaces_[position] * kWorkspaceUnit;
  }
  // Ops [begin, end) as a path of their own. `numbers`, if given, becomes the
  // new number of each value, kNone for those that do not occur.
  OpPath part(std::uint32_t begin, std::uint32_t end, PathId id,
              std::vector<std::uint32_t>* numbers = nullptr) const;
  // Nothing is added any more: makes what is below.
  void finish();

  // ---- after finish() ------------------------------------------------------
  // By position; a value may occur twice at one position.
  std::span<const PathUse> usesOf(std::uint32_t value) const noexcept {
    const std::uint32_t begin = value == 0 ? 0 : values_[value - 1].use_end;
    return {use_list_.data() + begin, values_[value].use_end - begin};
  }
  // Of all values that begin before a position (<= size()).
  std::uint64_t bornBytes(std::uint32_t position) const noexcept;
  std::span<const std::uint32_t> carried() const noexcept { return carried_; }
  // Carried values that were seen to be transients of an earlier round.
  std::span<const std::uint32_t> linked() const noexcept { return linked_; }
  // A group of rounds that was recorded as one path: where each begins, and the
  // path it walked. Empty: an ordinary path.
  struct Round {
    std::uint32_t begin;
    PathId path;
  };
  std::span<const Round> rounds() const noexcept { return rounds_; }
  void setRounds(std::vector<Round> rounds) noexcept {
    rounds_ = std::move(rounds);
  }
  // How often it was walked from its beginning.
  std::uint32_t walks() const noexcept { return walks_; }
  void walked() noexcept { ++walks_; }
  // The carried value is what `source_value` of `source_path` became.
  void link(std::uint32_t value, PathId source_path,
            std::uint32_t source_value);
  // Which values may have been there before the path began: the carried ones,
  // and external inputs (their blocks may be there still when it begins again);
  // by the blocks that they were bound to at finish().
  using Identity = std::pair<std::uint64_t, std::uint32_t>;
  std::span<const Identity> identities() const noexcept { return by_identity_; }
  // The one that was and is bound to this block, or kNone.
  std::uint32_t valueBoundTo(std::uint64_t identity) const noexcept;
  // Equal for equal sequences with equal structure.
  std::uint64_t structure() const noexcept { return structure_; }

  // Estimated compute time from the beginning to a position (<= size());
  // before setDurations() as if every op took kUntimedOp_ns.
  std::int64_t elapsed_ns(std::uint32_t position) const noexcept {
    if (!is_timed_) return position * kUntimedOp_ns;
    return position == 0 ? 0 : ops_[position - 1].elapsed * kElapsedUnit_ns;
  }
  // The duration of each op of the path, in order. Their sums are kept in units
  // of kElapsedUnit_ns, and are 137 s at most.
  static constexpr std::int64_t kElapsedUnit_ns = 64;
  void setDurations(std::span<const std::int64_t> duration_ns) noexcept;

  // ---- index ---------------------------------------------------------------
  // The last position whose token may be this one, and the one before that;
  // kNone ends. Other tokens may be among them.
  std::uint32_t lastLike(Token token) const noexcept {
    return heads_.empty() ? kNone : heads_[token & (heads_.size() - 1)];
  }
  std::uint32_t previousLike(std::uint32_t position) const noexcept {
    return ops_[position].previous_like;
  }

  // Binds every value as in an equal path, and takes the deaths seen there.
  void bindLike(const OpPath& other) noexcept;

  std::size_t memoryBytes() const noexcept;

 private:
  std::span<const Operand> slice(std::uint32_t begin,
                                 std::uint32_t end) const noexcept {
    return {operands_.data() + begin, end - begin};
  }
  static constexpr std::uint32_t kBornEvery = 32;

  void rehash(std::size_t buckets);

  PathId id_;
  std::vector<PathOp> ops_;
  std::vector<std::uint32_t> workspaces_; // per op, or empty: none
  std::vector<Operand> operands_;
  std::vector<PathValue> values_;
  std::vector<std::uint32_t> heads_; // power of two
  std::vector<PathUse> use_list_;
  std::vector<std::uint64_t> born_;    // bytes before every kBornEvery-th op
  std::vector<std::uint32_t> carried_; // values
  std::vector<std::uint32_t> linked_;
  std::vector<Identity> by_identity_; // sorted
  std::uint64_t structure_ = 0;
  std::uint32_t walks_ = 0;
  bool is_timed_ = false;
  std::vector<Round> rounds_;
};

} // namespace chameleon::profiler
