// Slabs that threads populate and register, on an emulated driver that reports
// registrations of pages that are not there. What copies see of them:
// cuda_runtime_test.
#include "backend/runtime/cuda/cuda_host_memory.h"

#include <bit>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "backend/runtime/address_space.h"
#include "backend/runtime/cuda/cuda_context.h"
#include "tests/cpp/support/emulated_driver.h"

namespace chameleon::runtime {
namespace {

using support::DriverCall;
using support::EmulatedDriver;
using support::EmulatedDriverOptions;

constexpr std::size_t kMiB = std::size_t{1} << 20;

class CudaHostMemoryTest : public ::testing::Test {
 protected:
  CudaHostMemoryTest() {
    driver_options.registers_populated_only = true;
    options.chunk_bytes = kMiB;
    options.populating_threads = 4;
  }
  void TearDown() override {
    close();
    EXPECT_EQ(misuse, ""); // what was never given back, too
  }

  void open() {
    driver_options.on_misuse = [this](const std::string& sentence) {
      misuse += sentence + "\n";
    };
    driver = std::make_unique<EmulatedDriver>(driver_options);
    table = driver->table();
    context = std::move(CudaContext::create(table, 0).value());
    host = std::make_unique<CudaHostMemory>(*context, options);
  }
  void close() {
    host.reset();
    context.reset();
    driver.reset();
  }
  // In a range of its own, which stays reserved.
  std::byte* allocate(std::size_t bytes) {
    std::byte* const address = reserve_address_space(bytes, kPageBytes).value();
    EXPECT_TRUE(host->allocate(address, bytes).ok());
    return address;
  }
  bool registered(const std::byte* address) const {
    return host->runAt(address, 1).registered;
  }
  void awaitRegistered(const std::byte* address) const {
    while (!registered(address)) std::this_thread::yield();
  }

  EmulatedDriverOptions driver_options;
  CudaHostMemoryOptions options;
  std::string misuse;
  std::unique_ptr<EmulatedDriver> driver;
  CudaDriver table;
  std::unique_ptr<CudaContext> context;
  std::unique_ptr<CudaHostMemory> host;
};

TEST_F(CudaHostMemoryTest, SlabsAreRegisteredInTheOrderAllocated) {
  open();
  constexpr std::size_t kSlabs = 6;
  std::vector<const std::byte*> chunks;
  std::vector<std::byte*> slabs;
  for (std::size_t i = 0; i < kSlabs; ++i) {
    slabs.push_back(allocate(10 * kMiB + 4096));
    for (std::size_t k = 0; k <= 10; ++k) {
      chunks.push_back(slabs.back() + k * kMiB);
    }
  }
  // From the top down: what lies below a registered chunk has been registered.
  while (host->registeredBytes() < kSlabs * (10 * kMiB + 4096)) {
    bool one_above = false;
    for (std::size_t i = chunks.size(); i-- > 0;) {
      const bool this_one = registered(chunks[i]);
      ASSERT_TRUE(this_one || !one_above) << i;
      one_above = this_one;
    }
    std::this_thread::yield();
  }
  EXPECT_EQ(driver->calls(DriverCall::cuMemHostRegister), chunks.size());
  for (std::byte* const slab : slabs) host->free(slab, 10 * kMiB + 4096);
  EXPECT_EQ(driver->pinnedBytes(), 0u);
}

TEST_F(CudaHostMemoryTest, WhatStaysOfASlabIsRegisteredAnew) {
  open();
  constexpr std::size_t kKept = 2 * kMiB + kPageBytes;
  std::byte* const slab = allocate(5 * kMiB);
  std::memset(slab, 7, 5 * kMiB);
  host->awaitRegistration();
  host->free(slab + kKept, 5 * kMiB - kKept);
  host->awaitRegistration();
  EXPECT_EQ(host->registeredBytes(), kKept);
  EXPECT_EQ(driver->pinnedBytes(), kKept);
  EXPECT_EQ(host->runAt(slab + 2 * kMiB, kMiB).bytes, kPageBytes);
  EXPECT_FALSE(host->runAt(slab + kKept, kMiB).ours);
  for (std::size_t i = 0; i < kKept; ++i) ASSERT_EQ(slab[i], std::byte{7});
  EXPECT_TRUE(host->allocate(slab + kKept, 5 * kMiB - kKept).ok());
  host->awaitRegistration();
  EXPECT_EQ(slab[5 * kMiB - 1], std::byte{0});
  EXPECT_EQ(host->registeredBytes(), 5 * kMiB);
  host->free(slab + kKept, 5 * kMiB - kKept);
  host->free(slab, kKept);
  EXPECT_EQ(driver->pinnedBytes(), 0u);
}

TEST_F(CudaHostMemoryTest, MemoryOfOthersStaysMapped) {
  open();
  constexpr std::size_t kBytes = 3 * kMiB + kPageBytes;
  void* const mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const bytes = static_cast<std::byte*>(mapped);
  bytes[kBytes - 1] = std::byte{7};
  host->pin(bytes, kBytes);
  host->awaitRegistration();
  EXPECT_EQ(host->registeredBytes(), kBytes);
  EXPECT_TRUE(registered(bytes + kBytes - 1));
  host->unpin(bytes, kBytes);
  EXPECT_EQ(driver->pinnedBytes(), 0u);
  EXPECT_FALSE(host->runAt(bytes, 1).ours);
  EXPECT_EQ(bytes[kBytes - 1], std::byte{7});
  host->pin(bytes, kBytes);
  host.reset(); // what is left is unregistered, and stays
  EXPECT_EQ(driver->pinnedBytes(), 0u);
  EXPECT_EQ(bytes[kBytes - 1], std::byte{7});
  munmap(mapped, kBytes);
}

TEST_F(CudaHostMemoryTest, SlabsOfSeveralThreads) {
  open();
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 3; ++i) {
    threads.emplace_back([this, i] {
      for (std::size_t round = 0; round < 20; ++round) {
        const std::size_t bytes = (1 + (round + i) % 7) * kMiB - kPageBytes;
        std::byte* const kept = allocate(bytes);
        std::byte* const slab = allocate(bytes);
        slab[bytes - 1] = std::byte{7};
        if (round % 5 == 0) host->awaitRegistration();
        EXPECT_EQ(slab[bytes - 1], std::byte{7});
        host->free(slab, bytes);
        host->free(kept, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  host->awaitRegistration();
  EXPECT_EQ(host->registeredBytes(), 0u);
  EXPECT_EQ(driver->pinnedBytes(), 0u);
  EXPECT_EQ(host->refusals(), 0u);
}

TEST_F(CudaHostMemoryTest, SlabsMayGoWhileTheirChunksAreBusy) {
  driver_options.register_time_per_mebibyte = std::chrono::microseconds(200);
  open();
  for (std::size_t chunk = 0; chunk < 24; ++chunk) {
    std::byte* const slab = allocate(24 * kMiB);
    std::byte* const next = allocate(8 * kMiB);
    if (chunk % 3 != 0) awaitRegistered(slab + chunk * kMiB);
    host->free(slab, 24 * kMiB);
    if (chunk % 2 == 0) host->awaitRegistration();
    host->free(next, 8 * kMiB);
    EXPECT_EQ(driver->pinnedBytes(), 0u);
  }
}

TEST_F(CudaHostMemoryTest, StopsWhileBusy) {
  driver_options.register_time_per_mebibyte = std::chrono::microseconds(500);
  for (const std::size_t slabs : {1, 5}) {
    for (const bool has_begun : {false, true}) {
      open();
      std::byte* first = nullptr;
      for (std::size_t i = 0; i < slabs; ++i) {
        std::byte* const slab = allocate(32 * kMiB);
        if (i == 0) first = slab;
      }
      if (has_begun) awaitRegistered(first);
      host.reset();
      EXPECT_EQ(driver->pinnedBytes(), 0u);
      close();
    }
  }
}

TEST_F(CudaHostMemoryTest, WhatTheDriverRefusesIsPopulatedNoFurther) {
  driver_options.register_limit = 5 * kMiB;
  options.background = false;
  open();
  constexpr std::size_t kBytes = 24 * kMiB;
  std::byte* const slab = allocate(kBytes);
  EXPECT_EQ(host->registeredBytes(), 5 * kMiB);
  EXPECT_EQ(host->refusals(), 1u);
  const auto page = static_cast<std::size_t>(getpagesize());
  std::vector<unsigned char> pages(kBytes / page);
  ASSERT_EQ(mincore(slab, kBytes, pages.data()), 0);
  std::size_t present = 0;
  while (present < pages.size() && (pages[present] & 1)) ++present;
  EXPECT_GE(present * page, 6 * kMiB); // the chunk that was refused, too
  EXPECT_LE(present * page, 6 * kMiB + PagePopulator::kPieceBytes);
  for (std::size_t i = present; i < pages.size(); ++i) {
    ASSERT_FALSE(pages[i] & 1);
  }
  host->free(slab, kBytes);
}

// The node that the system prefers for the pages at an address; -1: it has no
// preference, -2: the machine does not say.
int preferred_node(const void* address) {
  constexpr unsigned kOfAddress = 2; // MPOL_F_ADDR
  constexpr int kPreferred = 1;      // MPOL_PREFERRED
  int mode = 0;
  unsigned long nodes[16] = {}; // as many as a kernel may have
  if (syscall(SYS_get_mempolicy, &mode, nodes, sizeof nodes * 8, address,
              kOfAddress) != 0) {
    return -2;
  }
  return mode == kPreferred && nodes[0] != 0 ? std::countr_zero(nodes[0]) : -1;
}

// A container may forbid the call that this rests on.
bool may_choose_nodes() {
  const std::size_t bytes = kPageBytes;
  std::byte* const page = map_memory(bytes).value();
  const unsigned long first = 1;
  const bool done =
      syscall(SYS_mbind, page, bytes, /*mode=*/1, &first, 64, 0) == 0 &&
      preferred_node(page) == 0;
  unmap_memory(page, bytes);
  return done;
}

TEST_F(CudaHostMemoryTest, PagesLieNextToTheGpu) {
  if (!may_choose_nodes()) GTEST_SKIP() << "the system places pages itself";
  // Of a node that the machine does not have, too, slabs are good.
  for (const auto& [node, preferred] : {std::pair{0, 0}, std::pair{-1, -1},
                                        std::pair{63, -1}, std::pair{64, -1}}) {
    driver_options.host_numa_node = node;
    open();
    std::byte* const slab = allocate(4 * kMiB);
    EXPECT_EQ(preferred_node(slab), preferred) << node;
    EXPECT_EQ(preferred_node(slab + 3 * kMiB), preferred) << node;
    host->awaitRegistration();
    EXPECT_EQ(host->registeredBytes(), 4 * kMiB);
    host->free(slab, 4 * kMiB);
    close();
  }
}

TEST_F(CudaHostMemoryTest, ALostGpuHangsNobody) {
  open();
  driver->failCall(DriverCall::cuMemHostRegister, 4, CUDA_ERROR_ILLEGAL_ADDRESS,
                   /*for_ever=*/true);
  std::byte* const first = allocate(16 * kMiB);
  std::byte* const second = allocate(16 * kMiB);
  host->awaitRegistration();
  EXPECT_EQ(host->registeredBytes(), 3 * kMiB);
  EXPECT_EQ(host->refusals(), 0u); // the memory is not at fault
  host->free(first, 16 * kMiB);
  host->free(second, 16 * kMiB);
}

} // namespace
} // namespace chameleon::runtime
