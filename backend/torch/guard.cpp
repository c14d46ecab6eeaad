// The device guard: devices, streams and events as c10 asks for them.
//
// Tests: test_backend_contract.py.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/device_allocator.h"
#include "backend/torch/error.h"
#include "backend/torch/kernel_threads.h"
#include "backend/torch/stream.h"

namespace chameleon::backend {
namespace {

// What a c10::Event of ours points at.
struct EventState {
  c10::DeviceIndex index; // where it was recorded
  runtime::Event event;
  std::int64_t time_ns;
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kChameleon; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    set_current_device(resolve_index(device.index()));
    return previous;
  }
  c10::Device getDevice() const override {
    return {kChameleon, current_device()};
  }
  void setDevice(c10::Device device) const override {
    set_current_device(resolve_index(device.index()));
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < device_count()) {
      set_current_device(device.index());
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return device_count();
  }

  // All dtypes, as the physical devices have them, but for the quantized.
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    for (std::uint64_t type = 0; type < c10::NUMBER_OF_DEVICE_CAPABILITIES;
         ++type) {
      if (c10::isQIntType(static_cast<c10::ScalarType>(type))) {
        capability.capability_data.capability_bits &=
            ~(std::uint64_t{1} << type);
      }
    }
    return capability;
  }

  // The engine asks on the thread that calls backward() ...
  c10::Stream getStream(c10::Device device) const override {
    note_caller_threads();
    return c10::Stream(
        c10::Stream::UNSAFE, indexed(device),
        static_cast<c10::StreamId>(current_stream(device.index()).id));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, indexed(device));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device,
                                      bool is_high_priority) const override {
    return new_stream(indexed(device).index(), is_high_priority ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return new_stream(indexed(device).index(), priority);
  }
  // ... and sets the stream on its own thread, around each node.
  c10::Stream exchangeStream(c10::Stream stream) const override {
    follow_caller_threads();
    return exchange_stream(stream);
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    context(resolve_index(stream.device_index()), "a stream's native handle");
    TORCH_CHECK(target().type == c10::DeviceType::CUDA,
                "chameleon: a stream has a native handle where the physical "
                "device is cuda; here it is not");
    const c10::Device native(target().type, stream.device_index());
    return c10::impl::getDeviceGuardImpl(native.type())
        ->getStreamNativeHandle(
            c10::Stream(c10::Stream::UNSAFE, native, stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override {
    finish_deferred_work();
    runtime::DeviceRuntime& device = runtime_of(stream.device_index());
    const runtime::Event event =
        value_or_throw(device.record(to_runtime(stream)));
    const bool complete = event.complete() || device.query(event);
    device.destroy(event);
    return complete;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    finish_deferred_work();
    runtime::DeviceRuntime& device = runtime_of(stream.device_index());
    const runtime::Event event =
        value_or_throw(device.record(to_runtime(stream)));
    const runtime::Error error = device.synchronize(event);
    device.destroy(event);
    throw_if(error);
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    refuse_after_fork();
    finish_deferred_work();
    if (DeviceContext* used = context_if_used(resolve_index(index))) {
      throw_if(used->pager->synchronize());
    }
  }

  void record(void** event, const c10::Stream& stream,
              const c10::DeviceIndex /*index*/,
              const c10::EventFlag flag) const override {
    finish_deferred_work();
    runtime::DeviceRuntime& device = runtime_of(stream.device_index());
    auto* state = static_cast<EventState*>(*event);
    if (state == nullptr) {
      state = new EventState{stream.device_index(), {}, 0};
      *event = state;
    }
    runtime_of(state->index).destroy(state->event);
    state->index = stream.device_index();
    // On CUDA only events that are made for it can be asked for times.
    const bool timed = flag == c10::EventFlag::BACKEND_DEFAULT &&
                       target().type == c10::DeviceType::CUDA;
    state->event = value_or_throw(timed ? device.recordTimed(to_runtime(stream))
                                        : device.record(to_runtime(stream)));
    state->time_ns = device.now_ns();
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const auto& state = *static_cast<EventState*>(event);
    if (state.index != stream.device_index()) { // not of its runtime
      return synchronizeEvent(event);
    }
    DeviceContext& device = context(state.index, "an event");
    memory::ExchangeMeter& exchanges = device.pager->meter().exchanges();
    std::optional<memory::ExchangeSpan> waits; // for one, as far as is known
    if (exchanges.sawAny()) {
      waits.emplace(exchanges, memory::ExchangePart::kWaits,
                    to_runtime(stream));
    }
    throw_if(device.runtime->wait(to_runtime(stream), state.event));
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    const auto& [index, recorded, time_ns] = *static_cast<EventState*>(event);
    return recorded.complete() || runtime_of(index).query(recorded);
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const auto& state = *static_cast<EventState*>(event);
    throw_if(runtime_of(state.index).synchronize(state.event));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    auto* state = static_cast<EventState*>(event);
    if (state == nullptr) return;
    if (DeviceContext* used = context_if_used(state->index)) {
      used->runtime->destroy(state->event);
    }
    delete state;
  }
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr,
                "Both events must be recorded before calculating elapsed "
                "time.");
    constexpr double kNsPerMs = 1e6;
    const auto& [index, first, first_ns] = *static_cast<EventState*>(start);
    const auto& [last_index, last, last_ns] = *static_cast<EventState*>(end);
    TORCH_CHECK(index == last_index,
                "Both events must be recorded on one device before calculating "
                "elapsed time; got chameleon:",
                static_cast<int>(index),
                " and chameleon:", static_cast<int>(last_index));
    runtime::DeviceRuntime& device = runtime_of(index);
    TORCH_CHECK(
        (first.complete() || device.query(first)) &&
            (last.complete() || device.query(last)),
        "Both events must be completed before calculating elapsed time.");
    const std::int64_t elapsed_ns =
        device.elapsed_ns(first, last).value_or(last_ns - first_ns);
    return static_cast<double>(elapsed_ns) / kNsPerMs;
  }

  void recordDataPtrOnStream(const c10::DataPtr& data,
                             const c10::Stream& stream) const override {
    device_allocator()->recordStream(data, stream);
  }

 private:
  static c10::Device indexed(c10::Device device) {
    return {kChameleon, resolve_index(device.index())};
  }
  static runtime::DeviceRuntime& runtime_of(c10::DeviceIndex index) {
    return *context(resolve_index(index), "a stream or an event").runtime;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

} // namespace
} // namespace chameleon::backend
