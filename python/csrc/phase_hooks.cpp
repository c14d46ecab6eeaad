#include "python/csrc/phase_hooks.h"

#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/record_function.h>

#include "backend/torch/deferred_work.h"
#include "memory/phase_range.h"

namespace chameleon::python {
namespace {

// torch.autograd.profiler records an event of the device at both ends of a
// range. Who does that finishes deferred work first, which needs the pager's
// lock: not here.

void* begin(const char* name) noexcept {
  if (!at::hasCallbacks()) return nullptr;
  try {
    auto callbacks =
        at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (!callbacks) return nullptr;
    const backend::DeferredWorkStays stays;
    auto range = std::make_unique<at::RecordFunction>(std::move(*callbacks));
    const std::string full_name = std::string("chameleon::") + name;
    range->before(std::string_view(full_name));
    return range.release();
  } catch (const std::exception&) { // no memory: the picture lacks a range
    return nullptr;
  }
}

void end(void* range) noexcept {
  const backend::DeferredWorkStays stays;
  delete static_cast<at::RecordFunction*>(range);
}

constexpr memory::PhaseHooks kPhaseHooks{&begin, &end};

} // namespace

void install_phase_hooks() { memory::PhaseRange::setHooks(&kPhaseHooks); }

} // namespace chameleon::python
