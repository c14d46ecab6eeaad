#include "python/csrc/profiler_stubs.h"

#include <functional>
#include <memory>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "backend/torch/device.h"

namespace chameleon::python {
namespace {

using torch::profiler::impl::ProfilerStubs;
using torch::profiler::impl::ProfilerVoidEventStub;

c10::Event& event_of(const ProfilerVoidEventStub& stub) {
  return *static_cast<c10::Event*>(stub.get());
}

struct Stubs final : ProfilerStubs {
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event,
              std::int64_t* cpu_ns) const override {
    const c10::impl::VirtualGuardImpl guard(backend::kChameleon);
    if (device != nullptr) *device = guard.getDevice().index();
    auto made = std::make_shared<c10::Event>(backend::kChameleon,
                                             c10::EventFlag::BACKEND_DEFAULT);
    made->record(guard.getStream(guard.getDevice()));
    *event = std::move(made);
    if (cpu_ns != nullptr) *cpu_ns = c10::getTime();
  }
  // In microseconds.
  float elapsed(const ProfilerVoidEventStub* begin,
                const ProfilerVoidEventStub* end) const override {
    constexpr double kUsPerMs = 1000;
    event_of(*begin).synchronize();
    event_of(*end).synchronize();
    return static_cast<float>(event_of(*begin).elapsedTime(event_of(*end)) *
                              kUsPerMs);
  }
  // Ranges belong to tools of CUDA's.
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> action) const override {
    for (c10::DeviceIndex i = 0; i < backend::device_count(); ++i) action(i);
  }
  void synchronize() const override {
    const c10::impl::VirtualGuardImpl guard(backend::kChameleon);
    guard.synchronizeDevice(guard.getDevice().index());
  }
};

} // namespace

void register_profiler_stubs() {
  static Stubs stubs;
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
}

} // namespace chameleon::python
