// A cuda runtime on an emulated driver: a test sets the options, then opens it.
#pragma once

#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/runtime/cuda/cuda_driver.h"
#include "backend/runtime/cuda/cuda_runtime.h"
#include "backend/runtime/fault_injection.h"
#include "tests/cpp/support/emulated_driver.h"

namespace chameleon::runtime {

using support::DriverCall;
using support::EmulatedDriver;
using support::EmulatedDriverOptions;
using support::Lateness;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kUnit = 256 << 10;

class CudaRuntimeTest : public ::testing::Test {
 protected:
  CudaRuntimeTest() {
    driver_options.lateness = Lateness::kLate;
    driver_options.device_bytes = 256 * kMiB;
    driver_options.registers_populated_only = true;
    options.commit_bytes = kUnit;
    options.register_chunk_bytes = kMiB;
    options.register_in_background = false;
    options.warn = [this](std::string_view text) {
      warnings.emplace_back(text);
    };
  }
  void TearDown() override {
    FaultInjection::instance().disarmAll();
    close();
    EXPECT_EQ(misuse, "");
  }

  void open() {
    close();
    driver_options.on_misuse = [this](const std::string& sentence) {
      misuse += sentence + "\n";
    };
    driver = std::make_unique<EmulatedDriver>(driver_options);
    table = driver->table();
    options.stream_of = driver->streamOf();
    auto made = make_cuda_runtime(table, 0, options);
    ASSERT_TRUE(made.ok()) << made.error().message();
    cuda = std::move(*made);
  }
  void close() {
    cuda.reset();
    driver.reset();
  }

  // Device memory that is committed as a whole.
  std::byte* device(std::size_t bytes) {
    const std::size_t rounded = (bytes + kUnit - 1) / kUnit * kUnit;
    std::byte* const base = cuda->reserve(rounded).value();
    EXPECT_TRUE(cuda->commit(base, rounded).ok());
    return base;
  }
  void giveBack(std::byte* base, std::size_t bytes) {
    const std::size_t rounded = (bytes + kUnit - 1) / kUnit * kUnit;
    EXPECT_TRUE(cuda->decommit(base, rounded).ok());
    cuda->unreserve(base, rounded);
  }
  void finish(Stream stream) {
    const Event event = cuda->record(stream).value();
    EXPECT_TRUE(cuda->synchronize(event).ok());
    cuda->destroy(event);
  }
  // As the pager does: stream `later` goes on after all of `earlier`.
  void order(Stream earlier, Stream later) {
    const Event event = cuda->record(earlier).value();
    EXPECT_TRUE(cuda->wait(later, event).ok());
    cuda->destroy(event);
  }
  Error copy(Stream stream, std::byte* to, const std::byte* from,
             std::size_t bytes) {
    const Copy one{to, from, bytes};
    return cuda->copy(stream, {&one, 1});
  }
  std::uint64_t hostWaits() {
    return driver->calls(DriverCall::cuEventSynchronize) +
           driver->calls(DriverCall::cuStreamSynchronize);
  }

  EmulatedDriverOptions driver_options;
  CudaRuntimeOptions options;
  std::vector<std::string> warnings;
  std::string misuse;
  std::unique_ptr<EmulatedDriver> driver;
  CudaDriver table;
  std::unique_ptr<CudaRuntime> cuda;
};

} // namespace chameleon::runtime
