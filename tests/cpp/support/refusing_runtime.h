// A device that does nothing: whatever can fail does. For tests that need a few
// of a runtime's methods, which they override.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "backend/runtime/device_runtime.h"

namespace chameleon::support {

class RefusingRuntime : public runtime::DeviceRuntime {
 public:
  std::string_view name() const noexcept override { return "refusing"; }
  runtime::MemoryInfo deviceMemory() const noexcept override { return {}; }
  runtime::MemoryInfo hostMemory() const noexcept override { return {}; }
  std::size_t commitGranularity() const noexcept override { return 1; }
  runtime::Result<std::byte*> reserve(std::size_t) override {
    return refusal();
  }
  runtime::Error commit(std::byte*, std::size_t) override { return refusal(); }
  runtime::Error decommit(std::byte*, std::size_t) override {
    return refusal();
  }
  void unreserve(std::byte*, std::size_t) noexcept override {}
  runtime::Error allocateHost(std::byte*, std::size_t) override {
    return refusal();
  }
  void freeHost(std::byte*, std::size_t) noexcept override {}
  runtime::Error copy(runtime::Stream,
                      std::span<const runtime::Copy>) override {
    return refusal();
  }
  runtime::Result<runtime::Event> record(runtime::Stream) override {
    return refusal();
  }
  runtime::Error wait(runtime::Stream, runtime::Event) override {
    return refusal();
  }
  bool query(runtime::Event) noexcept override { return true; }
  runtime::Error synchronize(runtime::Event) override { return refusal(); }
  void destroy(runtime::Event) noexcept override {}
  bool drain(runtime::Stream) noexcept override { return true; }
  std::int64_t now_ns() const noexcept override { return 0; }

 protected:
  static runtime::Error refusal() {
    return {runtime::ErrorCode::kDevice, "the device refuses"};
  }
};

} // namespace chameleon::support
