#include "backend/distributed/collective.h"

#include <stdexcept>
#include <utility>

#include <ATen/core/jit_type.h>

#include "backend/torch/device.h"
#include "backend/torch/stream.h"

namespace chameleon::distributed {
namespace {

memory::ExchangeMeter& meter_of(c10::Device device) {
  return backend::context(device.index(), "a collective")
      .pager->meter()
      .exchanges();
}

} // namespace

Collective::~Collective() {
  if (isFinished()) return;
  finish(std::make_exception_ptr(
      std::runtime_error("this collective was given up before it was done")));
}

Natives Collective::pin(const CollectiveKind& kind, const Operands& operands) {
  try {
    kernels::NativeView& view =
        view_
            ? more_views_.emplace_front(operands.uses(), kind.kind, kind.number)
            : view_.emplace(operands.uses(), kind.kind, kind.number);
    if (!runs_) {
      runs_.emplace(meter_of(device_), memory::ExchangePart::kRuns,
                    backend::current_stream(device_.index()));
    }
    return Natives(view.natives());
  } catch (c10::OutOfMemoryError& error) {
    error.add_context(
        "A collective needs all its tensors at once. Gradients go in buckets: "
        "DistributedDataParallel(bucket_cap_mb=...) makes them smaller.");
    throw;
  }
}

void Collective::endWith(c10d::Work& work,
                         const std::shared_ptr<Collective>& collective) {
  collective->forEachView([](auto& view) { view.endsByItself(); });
  work.getFuture()->addCallback(
      [collective](c10::ivalue::Future& done) {
        collective->finish(done.hasError() ? done.exception_ptr() : nullptr);
      },
      /*uses_future=*/false);
}

void Collective::finish(const std::exception_ptr& failure) {
  if (isFinished()) return;
  bool is_first = false;
  // Who waits and gloo's thread come here at a time. The later one goes on when
  // all is done: what it uses next is the result.
  std::call_once(once_, [&] {
    letGo(failure);
    is_first = true;
  });
  if (!is_first) return;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    is_ready_ = true;
    future = future_;
  }
  if (future != nullptr) complete(*future);
}

void Collective::letGo(const std::exception_ptr& failure) {
  failure_ = failure;
  if (failure == nullptr) {
    if (step_) step_();
    forEachView([](auto& view) { view.overwritten(); });
  }
  runs_.reset();
  step_ = nullptr; // it holds native tensors
  forEachView([](auto& view) { view.end(); });
  finished_.store(true);
}

memory::ExchangeSpan Collective::beginWait() const {
  return {meter_of(device_), memory::ExchangePart::kWaits,
          backend::current_stream(device_.index())};
}

c10::intrusive_ptr<c10::ivalue::Future> Collective::future() {
  auto made = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()),
      std::vector<c10::Device>{device_});
  {
    const std::lock_guard lock(mutex_);
    if (future_ != nullptr) return future_;
    future_ = made;
    if (!is_ready_) return made; // finish() completes it
  }
  complete(*made);
  return made;
}

void Collective::complete(c10::ivalue::Future& future) const {
  if (failure_ == nullptr) {
    future.markCompleted(results());
  } else {
    future.setError(failure_);
  }
}

} // namespace chameleon::distributed
