// Failures on request: the n-th pass of a named point fails, once or for
// ever. Every runtime method that returns an Error or a Result passes one
// point before it does anything, so an injected failure has no side effect; so
// does the pager where it makes a block. The completion of copies is different:
// it fails late, and takes the device with it.
//
// For tests, and in the package too, so that what is tested is what ships. Off,
// a point costs one relaxed load. Process-wide.
//
// Thread safety: all methods may be called from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "backend/runtime/result.h"

namespace chameleon::runtime {

enum class FaultPoint : std::uint8_t {
  kReserve,      // "reserve"
  kCommit,       // "commit": commit and decommit
  kAllocateHost, // "allocate_host"
  kCopy,         // "copy": a submission to any stream
  kEvent,        // "event": record, wait, synchronize
  kBlock,        // "block": the address and the book-keeping of a new block
  // "completion": a batch of copies on a copy stream runs. Its bytes do not
  // move, nothing behind it runs, and the device is lost from then on: the
  // runtime fails whatever it is asked, armed or not. Cpu runtime only.
  kCompletion,
};

class FaultInjection {
 public:
  static constexpr std::size_t kPoints = 7;

  static FaultInjection& instance() noexcept;

  // From now on the `nth` pass (1 is the next) of `point` fails; `for_ever`:
  // and every later one too. nth == 0 fails nothing and only counts, which
  // tells a test how many passes there are. Replaces what was armed before on
  // this point and sets its count to 0.
  void arm(FaultPoint point, std::uint64_t nth, bool for_ever) noexcept;
  void disarmAll() noexcept;
  // Passes since the point was armed.
  std::uint64_t passes(FaultPoint point) const noexcept;

  // The point itself.
  Error pass(FaultPoint point) noexcept {
    if (!armed_.load(std::memory_order_relaxed)) [[likely]]
      return {};
    return passArmed(point);
  }

 private:
  struct Point {
    std::atomic<bool> armed{false};
    std::atomic<bool> for_ever{false};
    std::atomic<std::uint64_t> nth{0};
    std::atomic<std::uint64_t> passes{0};
  };
  Error passArmed(FaultPoint point) noexcept;

  std::atomic<bool> armed_{false};
  std::array<Point, kPoints> points_;
};

// "commit" and so on; nullopt: there is no point of that name.
std::optional<FaultPoint> find_fault_point(std::string_view name) noexcept;
std::span<const std::string_view> fault_point_names() noexcept;

} // namespace chameleon::runtime
