// The token of an op: 64 bits that stand for what the op does, without the
// values and the tensors that it does it to. It is made of words. Equal words
// give equal tokens. Other words give another token, but for a chance of 2^-64,
// and of 2^-32 where the op and the number of elements of each operand are the
// same, since the lower half says nothing else. What a token leads to is
// checked against identities and bytes before anything moves, so a collision
// costs time, never bits.
//
// kernels/op_token.h decides what the words are:
//   1. one for the op: the number of its OpTraits;
//   2. for each tensor one of rank, dtype and whether it is contiguous, then
//      its sizes, and its strides where it is not contiguous; for a nested
//      tensor its number of elements alone;
//   3. for each result that may be wanted or not, whether it is.
// Scalars are no part of it, nor is which operands alias each other. A token
// says which operands an op reads and writes, since the op does.
//
// The lower half is the quick one: a few instructions of what every call knows
// of itself. While the run does what was expected nothing else is compared; the
// upper half is made where a place is looked for or something is recorded.
//
// Cost: one multiplication, about 4 instructions, a word; 2 instructions a word
// of the quick half. Tokens are stable inside one process.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>

namespace chameleon::profiler {

using Token = std::uint64_t;
using QuickToken = std::uint32_t;

// What an op is taken to take while none has been timed.
inline constexpr std::int64_t kUntimedOp_ns = 10'000;

constexpr QuickToken quick_half(Token token) noexcept {
  return static_cast<QuickToken>(token);
}
constexpr Token whole_token(Token hash, QuickToken quick) noexcept {
  return hash >> 32 << 32 | quick;
}

class TokenHasher {
 public:
  constexpr explicit TokenHasher(std::uint64_t op) noexcept
      : state_(fold(op ^ kSeed)) {}
  constexpr void add(std::uint64_t word) noexcept {
    state_ = fold(state_ ^ word);
  }
  constexpr Token token() const noexcept { return fold(state_ ^ kSeed); }

 private:
  __extension__ using Wide = unsigned __int128;
  // Constants of wyhash (public domain): 32 bits set, no pattern.
  static constexpr std::uint64_t kSeed = 0xa0761d6478bd642f;
  static constexpr std::uint64_t kFactor = 0x8ebc6af09c88c6e3;

  // Both halves of the product: every bit in changes about half the bits out.
  static constexpr std::uint64_t fold(std::uint64_t x) noexcept {
    const Wide product = static_cast<Wide>(x) * kFactor;
    return static_cast<std::uint64_t>(product >> 64) ^
           static_cast<std::uint64_t>(product);
  }

  std::uint64_t state_;
};

class QuickHasher {
 public:
  constexpr explicit QuickHasher(std::uint64_t op) noexcept
      : state_((op + 1) * kFactor) {}
  constexpr void add(std::uint64_t word) noexcept {
    state_ = (state_ ^ word) * kFactor;
  }
  // The best mixed bits of a product are the upper ones.
  constexpr QuickToken token() const noexcept {
    return static_cast<QuickToken>(state_ >> 32);
  }

 private:
  static constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15; // golden ratio
  std::uint64_t state_;
};

} // namespace chameleon::profiler
