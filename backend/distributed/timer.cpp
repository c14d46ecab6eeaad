// DistributedDataParallel's times of a step on this device: by the device's own
// events, as it does for CUDA.
//
// Tests: test_training.py.
#include <array>
#include <cstdint>
#include <optional>

#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "backend/torch/device.h"

namespace c10d {
namespace {

class ChameleonTimer final : public Timer {
 public:
  explicit ChameleonTimer(c10::Device device) : device_(device) {}

  void record(Event event) override {
    Timer::record(event); // DDP asks for the host's time too
    auto& slot = events_[static_cast<std::size_t>(event)];
    slot.emplace(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    slot->record(
        c10::impl::getDeviceGuardImpl(device_.type())->getStream(device_));
  }

  std::optional<std::int64_t> measureDifference(Event start,
                                                Event end) override {
    auto& first = events_[static_cast<std::size_t>(start)];
    auto& last = events_[static_cast<std::size_t>(end)];
    if (!first || !last) return std::nullopt;
    first->synchronize();
    last->synchronize();
    const double milliseconds = first->elapsedTime(*last);
    if (milliseconds < 0) return std::nullopt; // of another iteration
    return static_cast<std::int64_t>(milliseconds * 1e6);
  }

 private:
  static constexpr std::size_t kEvents = 5;
  const c10::Device device_;
  std::array<std::optional<c10::Event>, kEvents> events_;
};

} // namespace

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, ChameleonTimer)

} // namespace c10d
