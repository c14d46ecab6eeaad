// Events from a pool: making one costs more than recording it. Two kinds, with
// and without timing, since timed ones slow down what waits for them.
//
// Tests: cuda_runtime_test.cpp, cuda_failures_test.cpp.
//
// Thread safety: every method may be called from any thread; all need the
// context to be current. The pool's lock is a leaf.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "backend/runtime/cuda/cuda_context.h"
#include "backend/runtime/device_runtime.h"
#include "backend/runtime/ranked_mutex.h"

namespace chameleon::runtime {

class CudaEvents {
 public:
  explicit CudaEvents(const CudaContext& context) : context_(context) {}
  ~CudaEvents(); // destroys all events, those that nobody gave back too
  CudaEvents(const CudaEvents&) = delete;
  CudaEvents& operator=(const CudaEvents&) = delete;

  Result<Event> record(CUstream stream, bool timed);
  Error wait(CUstream stream, Event event) const;
  bool query(Event event) const noexcept;
  Error synchronize(Event event) const;
  // Nothing: not both are timed and complete.
  std::optional<std::int64_t> elapsed_ns(Event start, Event end) const noexcept;
  void giveBack(Event event) noexcept;

  // Ties the events' times to the host's clock, on an idle stream.
  Error start(CUstream idle);
  // When a timed event completed, on the steady clock; it has, or nothing.
  std::optional<std::int64_t> time_ns(Event event);

  std::size_t created() const noexcept;

 private:
  struct Pooled { // its address is the Event's id
    CUevent handle;
    bool timed;
    std::int64_t time_ns = 0; // once known; guarded by mutex_
  };
  static const Pooled& pooled(Event event) noexcept;
  Result<Pooled*> take(bool timed);

  const CudaContext& context_;
  mutable RankedMutex<LockRank::kRuntimePart> mutex_;
  // Guarded by mutex_.
  std::vector<std::unique_ptr<Pooled>> all_;
  std::vector<Pooled*> idle_[2]; // by `timed`
  // A complete event whose time is known. CUDA tells times as floats, so a
  // recent one is needed: the latest that was given back takes its place.
  Pooled anchor_{nullptr, true};
};

} // namespace chameleon::runtime
