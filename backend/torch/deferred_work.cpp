#include "backend/torch/deferred_work.h"

#include <c10/util/Exception.h>

namespace chameleon::backend {

namespace {
DeferredWork deferred{};
thread_local int stays = 0; // scopes of this thread
} // namespace

std::atomic<bool> detail::work_is_deferred{false};

void detail::finish_deferred_work_slow() {
  if (stays == 0) deferred.finish();
}

void detail::finish_deferred_work_on_slow(const c10::StorageImpl& storage) {
  if (stays == 0) deferred.finish_on(storage);
}

void detail::leave_bytes_to_deferred_work_slow(c10::StorageImpl& storage) {
  if (stays == 0) deferred.take_bytes(storage);
}

void detail::finish_deferred_work_if_full_slow(const DeviceContext& device) {
  if (stays == 0) deferred.finish_if_full(device);
}

DeferredWorkStays::DeferredWorkStays() noexcept { ++stays; }
DeferredWorkStays::~DeferredWorkStays() { --stays; }

void try_finish_deferred_work() {
  try {
    finish_deferred_work();
  } catch (const c10::OutOfMemoryError&) { // whoever needs the bytes hears it
  }
}

void set_deferred_work(DeferredWork work) { deferred = work; }

} // namespace chameleon::backend
