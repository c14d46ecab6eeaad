#include "backend/torch/deferred_work.h"

#include <c10/util/Exception.h>

namespace chameleon::backend {

namespace {
void (*finish)() = nullptr;
thread_local int stays = 0; // scopes of this thread
} // namespace

std::atomic<bool> detail::work_is_deferred{false};

void detail::finish_deferred_work_slow() {
  if (stays == 0) finish();
}

DeferredWorkStays::DeferredWorkStays() noexcept { ++stays; }
DeferredWorkStays::~DeferredWorkStays() { --stays; }

void try_finish_deferred_work() {
  try {
    finish_deferred_work();
  } catch (const c10::OutOfMemoryError&) { // whoever needs the bytes hears it
  }
}

void set_deferred_work_finisher(void (*finisher)()) { finish = finisher; }

} // namespace chameleon::backend
