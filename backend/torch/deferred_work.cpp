#include "backend/torch/deferred_work.h"

namespace chameleon::backend {

namespace {
void (*finish)() = nullptr;
} // namespace

std::atomic<bool> detail::work_is_deferred{false};

void detail::finish_deferred_work_slow() { finish(); }

void set_deferred_work_finisher(void (*finisher)()) { finish = finisher; }

} // namespace chameleon::backend
