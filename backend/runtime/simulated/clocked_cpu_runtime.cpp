#include "backend/runtime/simulated/clocked_cpu_runtime.h"

#include <cstring>

#include "backend/runtime/cpu/cpu_runtime.h"
#include "backend/runtime/simulated/simulated_runtime.h"

namespace chameleon::runtime {

namespace {

class ClockedCpuRuntime final : public DeviceRuntime {
 public:
  explicit ClockedCpuRuntime(const GpuProfile& profile)
      : memory_(make_cpu_runtime()), time_(make_simulated_runtime(profile)) {}

  std::string_view name() const noexcept override { return memory_->name(); }

  // ---- bytes ---------------------------------------------------------------
  MemoryInfo deviceMemory() const noexcept override {
    return memory_->deviceMemory();
  }
  std::size_t commitGranularity() const noexcept override {
    return memory_->commitGranularity();
  }
  Result<std::byte*> reserve(std::size_t bytes) override {
    return memory_->reserve(bytes);
  }
  Error commit(std::byte* address, std::size_t bytes) override {
    return memory_->commit(address, bytes);
  }
  Error decommit(std::byte* address, std::size_t bytes) override {
    return memory_->decommit(address, bytes);
  }
  void unreserve(std::byte* address, std::size_t bytes) noexcept override {
    memory_->unreserve(address, bytes);
  }
  MemoryInfo hostMemory() const noexcept override {
    return memory_->hostMemory();
  }
  Error allocateHost(std::byte* address, std::size_t bytes) override {
    return memory_->allocateHost(address, bytes);
  }
  void freeHost(std::byte* address, std::size_t bytes) noexcept override {
    memory_->freeHost(address, bytes);
  }

  // ---- time ----------------------------------------------------------------
  Error copy(Stream stream, std::span<const Copy> copies) override {
    if (Error error = time_->copy(stream, copies)) return error;
    for (const Copy& each : copies) {
      std::memmove(each.destination, each.source, each.bytes);
    }
    return {};
  }
  Error readBack(Stream stream, const Copy& copy) override {
    if (Error error = time_->readBack(stream, copy)) return error;
    std::memmove(copy.destination, copy.source, copy.bytes);
    return {};
  }
  bool cancel(Stream stream, const std::byte* destination) noexcept override {
    return time_->cancel(stream, destination); // the bytes are there already
  }
  Result<Event> record(Stream stream) override { return time_->record(stream); }
  Error wait(Stream stream, Event event) override {
    return time_->wait(stream, event);
  }
  bool query(Event event) noexcept override { return time_->query(event); }
  Error synchronize(Event event) override { return time_->synchronize(event); }
  void destroy(Event event) noexcept override { time_->destroy(event); }
  bool drain(Stream stream) noexcept override { return time_->drain(stream); }
  std::int64_t now_ns() const noexcept override { return time_->now_ns(); }
  std::optional<std::int64_t> elapsed_ns(Event start,
                                         Event end) noexcept override {
    return time_->elapsed_ns(start, end);
  }
  bool modelsTime() const noexcept override { return true; }
  Error computed(Stream stream, const OpCost& cost) override {
    return time_->computed(stream, cost);
  }
  ComputeTimes computeTimes() const noexcept override {
    return time_->computeTimes();
  }
  Result<Event> recordTimed(Stream stream) override {
    return time_->recordTimed(stream);
  }
  std::optional<Moment> momentOf(Event event) noexcept override {
    return time_->momentOf(event);
  }
  std::optional<LinkSpeeds> link() const override { return time_->link(); }
  Error exchanged(Stream stream, const Exchange& exchange) override {
    return time_->exchanged(stream, exchange);
  }

 private:
  const std::unique_ptr<DeviceRuntime> memory_;
  const std::unique_ptr<DeviceRuntime> time_;
};

} // namespace

std::unique_ptr<DeviceRuntime> make_clocked_cpu_runtime(
    const GpuProfile& profile) {
  return std::make_unique<ClockedCpuRuntime>(profile);
}

} // namespace chameleon::runtime
