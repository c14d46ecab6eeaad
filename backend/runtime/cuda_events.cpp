#include "backend/runtime/cuda_events.h"

#include <cmath>
#include <cstdint>

namespace chameleon::runtime {

CudaEvents::~CudaEvents() {
  for (const auto& event : all_) {
    context_.driver().cuEventDestroy(event->handle);
  }
}

Result<Event> CudaEvents::record(CUstream stream, bool timed) {
  Result<Pooled*> taken = take(timed);
  if (!taken.ok()) return taken.takeError();
  const Event event{reinterpret_cast<std::uint64_t>(*taken)};
  if (Error error = context_.check(
          context_.driver().cuEventRecord((*taken)->handle, stream),
          "cuEventRecord")) {
    giveBack(event);
    return error;
  }
  return event;
}

Error CudaEvents::wait(CUstream stream, Event event) const {
  return context_.check(context_.driver().cuStreamWaitEvent(
                            stream, pooled(event).handle, /*Flags=*/0),
                        "cuStreamWaitEvent");
}

bool CudaEvents::query(Event event) const noexcept {
  return context_.driver().cuEventQuery(pooled(event).handle) == CUDA_SUCCESS;
}

Error CudaEvents::synchronize(Event event) const {
  return context_.check(
      context_.driver().cuEventSynchronize(pooled(event).handle),
      "cuEventSynchronize");
}

std::optional<std::int64_t> CudaEvents::elapsed_ns(Event start,
                                                   Event end) const noexcept {
  const Pooled& from = pooled(start);
  const Pooled& to = pooled(end);
  if (!from.timed || !to.timed) return std::nullopt;
  float elapsed_ms = 0;
  if (context_.driver().cuEventElapsedTime(&elapsed_ms, from.handle,
                                           to.handle) != CUDA_SUCCESS) {
    return std::nullopt;
  }
  return std::llround(static_cast<double>(elapsed_ms) * 1e6);
}

void CudaEvents::giveBack(Event event) noexcept {
  auto* const given = reinterpret_cast<Pooled*>(event.id);
  const std::lock_guard lock(mutex_);
  idle_[given->timed ? 1 : 0].push_back(given);
}

std::size_t CudaEvents::created() const noexcept {
  const std::lock_guard lock(mutex_);
  return all_.size();
}

const CudaEvents::Pooled& CudaEvents::pooled(Event event) noexcept {
  return *reinterpret_cast<const Pooled*>(event.id);
}

Result<CudaEvents::Pooled*> CudaEvents::take(bool timed) {
  {
    const std::lock_guard lock(mutex_);
    std::vector<Pooled*>& idle = idle_[timed ? 1 : 0];
    if (!idle.empty()) {
      Pooled* const event = idle.back();
      idle.pop_back();
      return event;
    }
  }
  auto made = std::make_unique<Pooled>(Pooled{nullptr, timed});
  const unsigned flags = timed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
  if (Error error =
          context_.check(context_.driver().cuEventCreate(&made->handle, flags),
                         "cuEventCreate")) {
    return error;
  }
  const std::lock_guard lock(mutex_);
  all_.push_back(std::move(made));
  return all_.back().get();
}

} // namespace chameleon::runtime
