// What the pager's tests share: a pager on the runtime under test, and ops
// whose kernels run on the calling thread, as they do on the cpu runtime.
#pragma once

#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/runtime/cpu/cpu_runtime.h"
#include "backend/runtime/fault_injection.h"
#include "memory/pager.h"
#include "tests/cpp/support/test_runtime.h"

namespace chameleon::memory {

inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kMiB = 1024 * kKiB;
inline constexpr runtime::Stream kStream = runtime::kDefaultComputeStream;

// The bytes that `seed` stands for.
inline void fill_pattern(std::byte* bytes, std::size_t count,
                         std::uint64_t seed) {
  std::uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 8 == 0) state = (state ^ (state >> 29)) * 0xbf58476d1ce4e5b9;
    bytes[i] = static_cast<std::byte>(state >> (8 * (i % 8)));
  }
}

inline std::vector<std::byte> pattern(std::size_t count, std::uint64_t seed) {
  std::vector<std::byte> bytes(count);
  fill_pattern(bytes.data(), count, seed);
  return bytes;
}

class PagerTest : public ::testing::Test {
 protected:
  void open(std::size_t hbm_bytes, std::size_t host_bytes = 256 * kMiB,
            double oversubscription = 64,
            const runtime::CpuAdversary& adversary = {}) {
    pager.reset();
    runtime_ = support::make_test_runtime(adversary);
    runtime::Result<std::unique_ptr<Pager>> result = Pager::create(
        *runtime_, {hbm_bytes, host_bytes, oversubscription}, "lru");
    ASSERT_TRUE(result.ok()) << result.error().message();
    pager = std::move(*result);
  }

  void TearDown() override {
    runtime::FaultInjection::instance().disarmAll();
    if (pager == nullptr) return;
    check();
    pager.reset();
  }

  void check(int level = 3) { pager->invariants().check(level); }

  Block* create(std::size_t bytes) {
    runtime::Result<Block*> block = pager->createBlock(bytes);
    EXPECT_TRUE(block.ok()) << block.error().message();
    return block.ok() ? *block : nullptr;
  }

  // An op that writes the whole block.
  runtime::Error fill(Block* block, std::uint64_t seed,
                      runtime::Stream stream = kStream) {
    Call call;
    const Operand operand{block, Access::kWrite};
    if (runtime::Error error = pager->begin(call, stream, {&operand, 1},
                                            &fill_memory, "fill", false)) {
      return error;
    }
    fill_pattern(block->device_address, block->bytes, seed);
    pager->end(call);
    return {};
  }

  // An op that reads the block and compares it.
  runtime::Error expect(Block* block, std::uint64_t seed,
                        runtime::Stream stream = kStream) {
    Call call;
    const Operand operand{block, Access::kRead};
    if (runtime::Error error = pager->begin(call, stream, {&operand, 1},
                                            &read_memory, "compare", true)) {
      return error;
    }
    EXPECT_TRUE(holds(block->device_address, block->bytes, seed));
    pager->end(call);
    return {};
  }

  // An op that reads the block begins: it is pinned until end(call).
  runtime::Error pin(Call& call, Block* block) {
    const Operand operand{block, Access::kRead};
    return pager->begin(call, kStream, {&operand, 1}, nullptr, "op", true);
  }

  static bool holds(const std::byte* bytes, std::size_t count,
                    std::uint64_t seed) {
    return std::memcmp(bytes, pattern(count, seed).data(), count) == 0;
  }

  Block* filled(std::size_t bytes, std::uint64_t seed) {
    Block* const block = create(bytes);
    EXPECT_FALSE(failed(fill(block, seed)));
    return block;
  }

  static ::testing::AssertionResult failed(const runtime::Error& error) {
    if (error.ok()) return ::testing::AssertionFailure() << "no error";
    return ::testing::AssertionSuccess() << error.message();
  }

  std::unique_ptr<runtime::DeviceRuntime> runtime_;
  std::unique_ptr<Pager> pager;
  OpMemory fill_memory;
  OpMemory read_memory;
};

} // namespace chameleon::memory
