// The pager's lower parts without a pager: blocks, where they are, and room for
// them, on the runtime under test. A last resort that counts stands in for
// recomputation.
#pragma once

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include "memory/block_table.h"
#include "memory/figures/meter.h"
#include "memory/pager_core.h"
#include "memory/policy/make_policy.h"
#include "memory/residency.h"
#include "memory/room/compaction.h"
#include "memory/room/room_finder.h"
#include "tests/cpp/support/test_runtime.h"

namespace chameleon::memory {

inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kBudget = 64 * kKiB;

class CountingResort : public LastResort {
 public:
  bool giveUpForHost(const Locked& /*locked*/, std::size_t bytes) override {
    asked.push_back(bytes);
    return false;
  }
  void noteHostUse(const Locked& /*locked*/) override { ++noted; }

  std::vector<std::size_t> asked;
  int noted = 0;
};

class PartsTest : public ::testing::Test {
 protected:
  void SetUp() override { open(64 * 1024 * kKiB); }

  void open(std::size_t host_bytes) {
    core = std::make_unique<PagerCore>(*runtime,
                                       Limits{kBudget, host_bytes, 64}, 0);
    meter = std::make_unique<Meter>(*core);
    auto policy = make_policy("lru", {core->profiler, meter->durations(),
                                      next_actions, meter->link(), kBudget});
    auto arena =
        Arena::create(*runtime, core->streams, 1024 * kBudget, kBudget);
    auto host_pool =
        HostPool::create(*runtime, core->streams, host_bytes, kBudget);
    auto space = LogicalSpace::create(*runtime);
    ASSERT_TRUE(policy.ok() && arena.ok() && host_pool.ok() && space.ok());
    core->policy = std::move(*policy);
    core->arena = std::move(*arena);
    core->host_pool = std::move(*host_pool);
    residency = std::make_unique<Residency>(*core, meter->timer());
    table = std::make_unique<BlockTable>(*core, *residency, nullptr,
                                         std::move(*space));
    compaction = std::make_unique<Compaction>(*core, *residency);
    room = std::make_unique<RoomFinder>(*core, *meter, *residency, *table,
                                        *compaction, resort);
  }

  void TearDown() override {
    if (table == nullptr) return;
    const PagerLock locked(*core);
    EXPECT_FALSE(core->streams.synchronizeAll());
    table->destroyAll(locked);
  }

  // A Resident block of that size, filled with `value`; null: no room for it.
  // The host fills it at once: call finish() first where a copy may still read
  // what was evicted from that place.
  Block* resident(const Locked& locked, std::size_t bytes,
                  unsigned char value = 0) {
    runtime::Result<Block*> created = table->create(locked, bytes);
    if (!created.ok()) return nullptr;
    Block* const block = *created;
    if (!bring(locked, *block, /*overwrite=*/true)) return nullptr;
    std::memset(block->device_address, value, bytes);
    return block;
  }
  // Fetches a block that is on the host.
  bool fetch(const Locked& locked, Block& block) {
    return bring(locked, block, /*overwrite=*/false);
  }
  bool bring(const Locked& locked, Block& block, bool overwrite) {
    Shortage shortage;
    WantedBlock wanted{.block = &block,
                       .write = overwrite,
                       .missing = true,
                       .overwrite = overwrite};
    const StreamIndex writer = overwrite ? kFirstCompute : kCopyIn;
    if (!room->placeBlock(locked, wanted, writer, shortage) ||
        !residency->fetch(locked, {&wanted, 1}, shortage)) {
      return false;
    }
    residency->markResident(locked, wanted, /*pins=*/0, Decision::kFault);
    return true;
  }
  void finish() { EXPECT_FALSE(core->streams.synchronizeAll()); }

  std::unique_ptr<runtime::DeviceRuntime> runtime =
      support::make_test_runtime({});
  NextActions next_actions;
  CountingResort resort;
  std::unique_ptr<PagerCore> core;
  std::unique_ptr<Meter> meter;
  std::unique_ptr<Residency> residency;
  std::unique_ptr<BlockTable> table;
  std::unique_ptr<Compaction> compaction;
  std::unique_ptr<RoomFinder> room;
};

} // namespace chameleon::memory
