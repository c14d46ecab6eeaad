// How long exchanges with other GPUs (collectives, sends, receives) took in a
// step, and for how long compute did nothing but wait for other ranks in them.
//
// Spans are measured between two points of a stream:
//   kRuns     an exchange, from when its operands' bytes are there to its end
//   kFetches  an exchange waits for its operands' bytes
//   kWaits    a stream waits for an exchange, or for a stream of the program,
//             which may wait for one
//
// A step's *exposed* time is that of its stream's waits, but for what they
// share with fetches: then this rank itself was late, and that is a stall. So
// a step less its exposed time is what this rank answers for, and plans are
// compared by it: how late other ranks are says nothing about them.
//
// Tests: exchange_meter_test.cpp.
//
// Thread safety: any thread. One lock, given back soon: under it only the
// runtime is called, to give events back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "backend/runtime/device_runtime.h"
#include "backend/runtime/ranked_mutex.h"
#include "memory/streams/timed_point.h"

namespace chameleon::memory {

enum class ExchangePart : std::uint8_t { kRuns, kFetches, kWaits };

class ExchangeMeter {
 public:
  // Of a step; no more of them are measured.
  static constexpr std::size_t kMaxSpans = 4096;

  struct Span {
    ExchangePart part;
    runtime::Stream stream;
    TimedPoint begin;
    TimedPoint end;
  };
  using Spans = std::vector<Span>;
  struct Times {
    std::int64_t runs_ns = 0;  // of all exchanges, also of those at once
    std::int64_t waits_ns = 0; // of the step's stream
    std::int64_t exposed_ns = 0;
  };

  explicit ExchangeMeter(runtime::DeviceRuntime& runtime) : runtime_(runtime) {}
  ~ExchangeMeter();
  ExchangeMeter(const ExchangeMeter&) = delete;
  ExchangeMeter& operator=(const ExchangeMeter&) = delete;

  // There was one: from then on it pays to measure what streams wait for.
  bool sawAny() const noexcept {
    return saw_any_.load(std::memory_order_relaxed);
  }
  // There was one on that stream.
  bool ranOn(runtime::Stream stream) const;

  // A step ends: its spans, which the caller gives back.
  Spans take();
  // Of a step whose compute ran on `stream`. What the device has not passed
  // counts as nothing.
  Times timesOf(Spans& spans, runtime::Stream stream);
  void giveBack(Spans& spans) noexcept;

 private:
  friend class ExchangeSpan;
  TimedPoint begin(ExchangePart part, runtime::Stream stream);
  void add(Span span) noexcept;

  runtime::DeviceRuntime& runtime_;
  std::atomic<bool> saw_any_{false};
  mutable runtime::RankedMutex<runtime::LockRank::kOpTimer> mutex_;
  // Guarded by it.
  Spans spans_;                          // of the step that runs
  std::vector<runtime::Stream> streams_; // that exchanges ran on
};

// A span, while this lives. Belongs to one thread at a time.
class ExchangeSpan {
 public:
  ExchangeSpan(ExchangeMeter& meter, ExchangePart part, runtime::Stream stream);
  ~ExchangeSpan();
  ExchangeSpan(const ExchangeSpan&) = delete;
  ExchangeSpan& operator=(const ExchangeSpan&) = delete;

 private:
  ExchangeMeter& meter_;
  const ExchangePart part_;
  const runtime::Stream stream_;
  TimedPoint begin_;
};

} // namespace chameleon::memory
