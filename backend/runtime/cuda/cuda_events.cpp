#include "backend/runtime/cuda/cuda_events.h"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <utility>

namespace chameleon::runtime {

namespace {

constexpr double kNsPerMs = 1e6;
constexpr std::int64_t kAnchorAge_ns = 500'000'000; // 30 ns as a float

std::int64_t steady_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

} // namespace

CudaEvents::~CudaEvents() {
  if (anchor_.handle != nullptr) {
    context_.driver().cuEventDestroy(anchor_.handle);
  }
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
  const CUresult result = context_.driver().cuEventQuery(pooled(event).handle);
  if (result == CUDA_ERROR_NOT_READY) return false;
  return context_.check(result, "cuEventQuery").ok();
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
  return std::llround(static_cast<double>(elapsed_ms) * kNsPerMs);
}

void CudaEvents::giveBack(Event event) noexcept {
  auto* const given = reinterpret_cast<Pooled*>(event.id);
  const std::lock_guard lock(mutex_);
  if (given->time_ns > anchor_.time_ns + kAnchorAge_ns) {
    std::swap(given->handle, anchor_.handle);
    anchor_.time_ns = given->time_ns;
  }
  given->time_ns = 0;
  idle_[given->timed ? 1 : 0].push_back(given);
}

Error CudaEvents::start(CUstream idle) {
  const CudaDriver& driver = context_.driver();
  if (Error error = context_.check(
          driver.cuEventCreate(&anchor_.handle, CU_EVENT_DEFAULT),
          "cuEventCreate")) {
    return error;
  }
  if (Error error = context_.check(driver.cuEventRecord(anchor_.handle, idle),
                                   "cuEventRecord")) {
    return error;
  }
  CUresult answer = CUDA_ERROR_NOT_READY;
  while (answer == CUDA_ERROR_NOT_READY) {
    answer = driver.cuEventQuery(anchor_.handle);
  }
  anchor_.time_ns = steady_clock_ns();
  return context_.check(answer, "cuEventQuery");
}

std::optional<std::int64_t> CudaEvents::time_ns(Event event) {
  auto* const asked = reinterpret_cast<Pooled*>(event.id);
  if (!asked->timed) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (asked->time_ns != 0) return asked->time_ns;
  float elapsed_ms = 0;
  if (context_.driver().cuEventElapsedTime(&elapsed_ms, anchor_.handle,
                                           asked->handle) != CUDA_SUCCESS) {
    return std::nullopt;
  }
  asked->time_ns = anchor_.time_ns +
                   std::llround(static_cast<double>(elapsed_ms) * kNsPerMs);
  return asked->time_ns;
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
