// How long ops and copies take. Order is what a plan needs; these say how far
// apart in time two positions are, and how fast a link really is.
//
// Ops: a few ops a step are measured with events, all positions in turn; where
// there are tokens (op and shapes) that were not, all ops are looked at for a
// while, and of each token the first three are measured. Of those the shortest
// counts: first runs load code, and choose algorithms. Then the estimate
// follows its samples (exponential average); a sample off by more than 4x is an
// outlier and counts only from the third in a row, since then the clock or the
// machine did change. A token without a sample is estimated from the bytes it
// touches by a line fitted to all samples (least squares, old samples fading):
// no data sheet, no roofline.
//
// Copies: per direction, and for each direction while the other one is busy
// too. time = latency + bytes / bandwidth: latency from small copies,
// bandwidth from large ones.
//
// Bounded: at most kMaxTokens tokens; when full, those not sampled since the
// last time it was full go.
//
// Thread safety: any thread. shouldLook() is, as a rule, one atomic decrement
// of a counter that all threads share. What adds or looks up an estimate takes
// a LeafLock; the rest are atomics.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "profiler/leaf_lock.h"
#include "profiler/token.h"

namespace chameleon::profiler {

enum class Direction : std::uint8_t { kIn, kOut };

struct LinkSpeed {
  double bytes_per_second = 0; // 0: not measured yet
  std::int64_t latency_ns = 0;
};

class Durations {
 public:
  static constexpr std::size_t kMaxTokens = 1 << 16;

  // ---- ops ----------------------------------------------------------------
  // True: shouldSample() is to be asked about the op that begins now.
  bool shouldLook() noexcept {
    if (countdown_.fetch_sub(1, std::memory_order_relaxed) > 1) return false;
    return rearm();
  }
  // True: measure the op. Once in `stride` ops, on average, and what is new.
  bool shouldSample(Token token);
  // Every op from now on / as before.
  void sampleAll(bool all) noexcept {
    all_.store(all, std::memory_order_relaxed);
    countdown_.store(1, std::memory_order_relaxed);
  }
  // Sampling that follows: dense while much is unknown, sparse later.
  std::uint32_t stride() const noexcept {
    return stride_.load(std::memory_order_relaxed);
  }
  // `bytes`: of all operands and results.
  void addOp(Token token, std::uint64_t bytes, std::int64_t duration_ns);
  // The op runs beside the others: it takes 0 ns of compute, and says nothing
  // about what its bytes cost others.
  void addBeside(Token token);
  // Never fails: what is not known is estimated from the bytes.
  std::int64_t op(Token token, std::uint64_t bytes) const;
  bool known(Token token) const;
  std::size_t tokens() const;
  std::uint64_t lockWaits() const noexcept { return lock_.waits(); }

  // ---- copies ---------------------------------------------------------------
  // A copy (or a batch in one go) took that long from start to end. `shared`:
  // the other direction was busy for most of it.
  void addCopy(Direction direction, bool shared, std::uint64_t bytes,
               std::int64_t duration_ns);
  LinkSpeed link(Direction direction, bool shared) const;

 private:
  static constexpr std::uint32_t kDense = 8;
  static constexpr std::uint32_t kSparse = 512;
  static constexpr std::uint16_t kFirst = 3; // samples of a token
  // Looks in a row, at most; one in kDense ops, in the long run.
  static constexpr std::uint32_t kMostLooks = 1 << 16;

  struct Estimate {
    double duration_ns = 0;
    std::uint16_t asked_for = 0; // at most kFirst
    std::uint16_t samples = 0;
    std::int16_t outliers = 0; // in a row: > 0 too long, < 0 too short
    bool fresh = false;        // sampled since the table was full
  };
  struct Link {
    double bytes = 0; // fading sums over large copies
    double ns = 0;
    double latency_ns = 0;
    bool latency_known = false;
  };

  bool rearm() noexcept;
  Estimate& estimate(Token token);
  void makeRoom();
  double line(std::uint64_t bytes) const noexcept;
  Link& at(Direction direction, bool shared) noexcept {
    return links_[2 * static_cast<std::size_t>(direction) + (shared ? 1 : 0)];
  }

  std::atomic<std::int32_t> countdown_{1};
  std::atomic<bool> all_{false};
  std::atomic<bool> looks_at_all_{true};
  std::atomic<std::uint32_t> stride_{kDense};
  std::atomic<std::uint32_t> phase_{0};

  mutable LeafLock lock_;
  std::unordered_map<Token, Estimate> tokens_;
  // Fading sums of the fit: weight, bytes, ns, bytes^2, bytes x ns.
  std::array<double, 5> fit_{};
  std::uint32_t settled_ = 0; // samples in a row of ops that were known
  std::uint32_t looks_left_ = kMostLooks;
  std::uint32_t known_in_a_row_ = 0; // while all are looked at
  std::array<Link, 4> links_{};
};

} // namespace chameleon::profiler
