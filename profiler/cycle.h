// One step of a run as plain data: what the profiler hands to whoever plans.
//
// A cycle says which ops run in which order, what they touch and for how long
// they compute. It is taken to repeat: op 0 comes after the last op, and what
// persists is the same storage in every repetition. It names no block, tensor
// or token: values and ops are indices, and who builds a cycle keeps beside it
// what they stand for.
//
// A *value* is one storage:
//   persistent  no op creates it: it lives through all repetitions (parameters,
//               optimizer state, buffers);
//   transient   one op creates it, and it lives until the op after which it is
//               freed. That op may come earlier in the cycle than its creator:
//               it is then alive across the end of the step (gradients until
//               zero_grad). A transient that is never freed counts as freed
//               just before its creator comes again.
// Transients of different repetitions are different storages with the same
// index; their lives never overlap.
//
// Struct of arrays. 25 bytes for each op, 4 for each operand and each free, 8
// for each value. A Llama training step has 3.1 operands, 1.1 frees and 1.3
// values per op: 52 bytes per op.
//
// Thread safety: none while it is built; freely shared once it is const.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace chameleon::profiler {

using ValueIndex = std::uint32_t; // < Cycle::kMaxValues
// In place of an index: there is none.
inline constexpr std::uint32_t kNone = ~std::uint32_t{0};

// One value that an op touches, and how. `creates` and `overwrites` imply that
// the op writes and does not need the old bytes; `reads` and `writes` may both
// be set; with no flag the op only needs the bytes to be there, as for `reads`.
class Operand {
 public:
  static constexpr std::uint32_t kReads = 1;
  static constexpr std::uint32_t kWrites = 2;
  static constexpr std::uint32_t kCreates = 4;    // the value begins here
  static constexpr std::uint32_t kOverwrites = 8; // every byte, unread

  Operand(ValueIndex value, std::uint32_t flags) noexcept
      : bits_(value << 4 | flags) {}

  ValueIndex value() const noexcept { return bits_ >> 4; }
  std::uint32_t flags() const noexcept { return bits_ & 15; }
  bool creates() const noexcept { return (bits_ & kCreates) != 0; }
  // The bytes it has before the op must be in HBM.
  bool needsBytes() const noexcept {
    return (bits_ & (kCreates | kOverwrites)) == 0;
  }
  // A copy made before the op is out of date after it.
  bool dirties() const noexcept {
    return (bits_ & (kWrites | kCreates | kOverwrites)) != 0;
  }

  friend bool operator==(Operand, Operand) = default;

 private:
  std::uint32_t bits_;
};

struct Cycle {
  static constexpr std::size_t kMaxValues = std::size_t{1} << 28;

  // Per op, all of the same length.
  std::vector<std::int64_t> duration_ns; // compute time, without waits
  // What it takes from the arena and gives back before it ends, at most at
  // one time, beside the values that it creates.
  std::vector<std::uint64_t> workspace_bytes;
  // The same op on the same operands makes the same bits, and does nothing
  // else: it may be run again. Empty: no op may.
  std::vector<std::uint8_t> may_rerun;

  // Operands of op i: operands[operand_end[i - 1] .. operand_end[i]), from 0
  // for op 0. A value occurs at most once per op.
  std::vector<std::uint32_t> operand_end;
  std::vector<Operand> operands;
  // Transients that die with op i: they are gone before op i + 1 begins. The
  // same scheme.
  std::vector<std::uint32_t> freed_end;
  std::vector<ValueIndex> freed;

  // Per value: what it occupies in the arena.
  std::vector<std::uint64_t> value_bytes;

  std::size_t ops() const noexcept { return duration_ns.size(); }
  std::size_t values() const noexcept { return value_bytes.size(); }
  std::span<const Operand> operandsOf(std::size_t op) const noexcept {
    return slice<Operand>(operands, operand_end, op);
  }
  std::span<const ValueIndex> freedAfter(std::size_t op) const noexcept {
    return slice<ValueIndex>(freed, freed_end, op);
  }

  // Building: ops in order, each followed by its operands and frees.
  ValueIndex addValue(std::uint64_t bytes);
  void addOp(std::int64_t duration, std::uint64_t workspace = 0);
  void addOperand(ValueIndex value, std::uint32_t flags); // of the last op
  void addFree(ValueIndex value);                         // after the last op

  // Why this is no cycle as described above, or empty.
  std::string problem() const;

 private:
  template <typename T>
  static std::span<const T> slice(const std::vector<T>& all,
                                  const std::vector<std::uint32_t>& end,
                                  std::size_t op) noexcept {
    const std::size_t from = op == 0 ? 0 : end[op - 1];
    return {all.data() + from, end[op] - from};
  }
};

} // namespace chameleon::profiler
