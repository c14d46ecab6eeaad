#include "backend/torch/deferred_work.h"

#include <c10/util/Exception.h>

#include "backend/torch/storage.h"

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
  const memory::Block* const block = block_of(storage);
  // A result that was deferred itself has no block yet.
  const bool has_work =
      block == nullptr ? storage.nbytes() > 0
                       : block->has_deferred_op.load(std::memory_order_acquire);
  if (has_work && stays == 0) deferred.finish_on(storage);
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
