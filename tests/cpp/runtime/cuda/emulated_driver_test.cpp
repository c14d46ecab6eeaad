// The emulated driver finds what it is there to find. A test that relies on it
// is worth as much as these.
#include "tests/cpp/support/emulated_driver.h"

#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <vector>

#include "backend/runtime/address_space.h"

namespace chameleon::support {
namespace {

constexpr std::size_t kUnit = std::size_t{64} << 10;

class EmulatedDriverTest : public ::testing::Test {
 protected:
  void SetUp() override { open(Lateness::kLate); }
  void TearDown() override { close(); }

  void open(Lateness lateness) {
    EmulatedDriverOptions options;
    options.lateness = lateness;
    options.devices = devices;
    options.registers_populated_only = true;
    options.on_misuse = [this](const std::string& sentence) {
      found += sentence + "\n";
    };
    driver = std::make_unique<EmulatedDriver>(std::move(options));
    cuda = driver->table();
    ok(cuda.cuDevicePrimaryCtxRetain(&context, 0));
    ok(cuda.cuCtxPushCurrent(context));
    ok(cuda.cuMemAddressReserve(&range, 2 * kUnit, kUnit, 0, 0));
    map(range);
    for (CUstream& stream : streams) {
      ok(cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    }
    ok(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    ok(cuda.cuMemHostRegister(host.data(), host.size(), 0));
  }

  void close() {
    if (driver == nullptr) return;
    driver->runAll();
    for (CUstream stream : streams) ok(cuda.cuStreamSynchronize(stream));
    for (CUstream stream : streams) ok(cuda.cuStreamDestroy(stream));
    ok(cuda.cuEventDestroy(event));
    ok(cuda.cuMemHostUnregister(host.data()));
    if (mapped) ok(cuda.cuMemUnmap(range, kUnit));
    ok(cuda.cuMemAddressFree(range, 2 * kUnit));
    CUcontext popped = nullptr;
    ok(cuda.cuCtxPopCurrent(&popped));
    ok(cuda.cuDevicePrimaryCtxRelease(0));
    driver.reset();
    if (!expect_misuse) {
      EXPECT_EQ(found, "");
    }
  }

  void map(CUdeviceptr address) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemGenericAllocationHandle handle = 0;
    ok(cuda.cuMemCreate(&handle, kUnit, &properties, 0));
    ok(cuda.cuMemMap(address, kUnit, 0, handle, 0));
    ok(cuda.cuMemRelease(handle));
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ok(cuda.cuMemSetAccess(address, kUnit, &access, 1));
  }

  static void ok(CUresult result) { EXPECT_EQ(result, CUDA_SUCCESS); }
  CUdeviceptr hostAt(std::size_t offset) {
    return reinterpret_cast<CUdeviceptr>(host.data() + offset);
  }
  CUresult copy(CUdeviceptr to, CUdeviceptr from, int stream,
                std::size_t bytes = 1000) {
    return cuda.cuMemcpyAsync(to, from, bytes,
                              streams[static_cast<std::size_t>(stream)]);
  }
  // Expects misuse whose sentence has this part.
  void expectFound(const std::string& part) {
    expect_misuse = true;
    EXPECT_NE(found.find(part), std::string::npos) << found;
  }

  std::unique_ptr<EmulatedDriver> driver;
  runtime::CudaDriver cuda;
  CUcontext context = nullptr;
  CUdeviceptr range = 0;
  std::vector<CUstream> streams{nullptr, nullptr};
  CUevent event = nullptr;
  std::vector<std::byte> host = std::vector<std::byte>(16 * 4096);
  int devices = 1;
  bool mapped = true;
  bool expect_misuse = false;
  std::string found;
};

TEST_F(EmulatedDriverTest, WorkRunsLateAndInOrder) {
  host[0] = std::byte{7};
  ok(copy(range, hostAt(0), 0));
  ok(copy(hostAt(2000), range, 0));
  EXPECT_EQ(host[2000], std::byte{0});
  EXPECT_FALSE(driver->idle(0, streams[0]));
  ok(cuda.cuStreamSynchronize(streams[0]));
  EXPECT_EQ(host[2000], std::byte{7});
}

TEST_F(EmulatedDriverTest, AWaitOrdersStreams) {
  host[0] = std::byte{7};
  ok(copy(range, hostAt(0), 0));
  ok(cuda.cuEventRecord(event, streams[0]));
  ok(cuda.cuStreamWaitEvent(streams[1], event, 0));
  ok(copy(hostAt(2000), range, 1));
  driver->run(0, streams[1], ~std::uint64_t{0}); // runs the other one first
  EXPECT_EQ(host[2000], std::byte{7});
}

TEST_F(EmulatedDriverTest, AnEventStandsForItsLastRecordAtTheWait) {
  ok(cuda.cuEventRecord(event, streams[0]));
  ok(copy(range, hostAt(0), 0));
  ok(cuda.cuStreamWaitEvent(streams[1], event, 0));
  ok(copy(hostAt(2000), range, 1));
  expectFound("no wait orders them");
}

TEST_F(EmulatedDriverTest, AMissingWaitIsFoundHoweverTheWorkRan) {
  for (Lateness lateness :
       {Lateness::kLate, Lateness::kRandom, Lateness::kPrompt}) {
    close();
    found.clear();
    open(lateness);
    ok(copy(range, hostAt(0), 0));
    ok(copy(hostAt(2000), range, 1));
    expectFound("entry 1 of line 3 reads");
    expectFound("may still write");
  }
}

TEST_F(EmulatedDriverTest, ReadsNeedNoWait) {
  ok(copy(range, hostAt(0), 0));
  ok(copy(range + 2000, hostAt(0), 1));
}

TEST_F(EmulatedDriverTest, AWriteOverAReadNeedsOne) {
  ok(copy(range, hostAt(0), 0));
  ok(copy(hostAt(500), range + 8000, 1));
  expectFound("writes");
}

TEST_F(EmulatedDriverTest, WhatTheHostWaitedForIsOver) {
  ok(copy(range, hostAt(0), 0));
  ok(cuda.cuEventRecord(event, streams[0]));
  ok(cuda.cuEventSynchronize(event));
  ok(copy(hostAt(2000), range, 1));
}

TEST_F(EmulatedDriverTest, AQuestionThatSaysYesIsAWait) {
  ok(copy(range, hostAt(0), 0));
  ok(cuda.cuEventRecord(event, streams[0]));
  int questions = 1;
  while (cuda.cuEventQuery(event) == CUDA_ERROR_NOT_READY) ++questions;
  EXPECT_GT(questions, 1);
  ok(copy(hostAt(2000), range, 1));
}

TEST_F(EmulatedDriverTest, UnmappedMemory) {
  EXPECT_EQ(copy(range + kUnit, hostAt(0), 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy(range + kUnit - 10, hostAt(0), 0), CUDA_ERROR_INVALID_VALUE);
  expectFound("device memory that is not mapped");
}

TEST_F(EmulatedDriverTest, MemoryUnmappedWhileInUse) {
  ok(copy(range, hostAt(0), 0));
  ok(cuda.cuMemUnmap(range, kUnit));
  mapped = false;
  expectFound("cuMemUnmap of");
  driver->runAll();
  expectFound("a copy runs after its device memory was unmapped");
}

TEST_F(EmulatedDriverTest, MemoryUnmappedBeforeItsKernelRuns) {
  const runtime::ByteRange bytes{reinterpret_cast<std::byte*>(range), 512};
  driver->launch(0, 0, {}, {&bytes, 1}, [] { FAIL(); });
  ok(cuda.cuMemUnmap(range, kUnit));
  mapped = false;
  expectFound("cuMemUnmap of");
  driver->runAll();
  expectFound("a kernel runs after its device memory was unmapped");
}

TEST_F(EmulatedDriverTest, MemoryUnmappedAfterAWaitIsFine) {
  ok(copy(range, hostAt(0), 0));
  ok(cuda.cuStreamSynchronize(streams[0]));
  ok(cuda.cuMemUnmap(range, kUnit));
  mapped = false;
}

TEST_F(EmulatedDriverTest, HostMemoryGivenBackWhileInUse) {
  ok(copy(range, hostAt(0), 0));
  ok(cuda.cuMemHostUnregister(host.data()));
  expectFound("cuMemHostUnregister of");
  ok(cuda.cuStreamSynchronize(streams[0]));
  ok(cuda.cuMemHostRegister(host.data(), host.size(), 0));
}

TEST_F(EmulatedDriverTest, HostMemoryRegisteredInPart) {
  EXPECT_EQ(copy(range, hostAt(host.size() - 10), 0, 20),
            CUDA_ERROR_INVALID_VALUE);
  expectFound("not in one registration");
}

TEST_F(EmulatedDriverTest, HostMemoryRegisteredBeforeItsPagesAreThere) {
  constexpr std::size_t kPages = 4;
  std::byte* const memory = runtime::map_memory(kPages * 4096).value();
  (void)madvise(memory, kPages * 4096, MADV_NOHUGEPAGE); // pages one by one
  for (std::size_t i = 0; i + 1 < kPages; ++i) memory[i * 4096] = std::byte{1};
  ok(cuda.cuMemHostRegister(memory, (kPages - 1) * 4096, 0));
  ok(cuda.cuMemHostUnregister(memory));
  EXPECT_EQ(found, "");
  ok(cuda.cuMemHostRegister(memory, (kPages - 1) * 4096 + 1, 0));
  expectFound("pages that are not populated");
  ok(cuda.cuMemHostUnregister(memory));
  runtime::unmap_memory(memory, kPages * 4096);
}

TEST_F(EmulatedDriverTest, RegistrationsThatTouchAreTwo) {
  std::vector<std::byte> two(2 * 4096);
  ok(cuda.cuMemHostRegister(two.data(), 4096, 0));
  ok(cuda.cuMemHostRegister(two.data() + 4096, 4096, 0));
  const auto border = reinterpret_cast<CUdeviceptr>(two.data() + 4096);
  ok(copy(range, border - 1000, 0));
  ok(copy(range, border, 0));
  EXPECT_EQ(copy(range, border - 10, 0, 20), CUDA_ERROR_INVALID_VALUE);
  expectFound("not in one registration");
  ok(cuda.cuStreamSynchronize(streams[0]));
  ok(cuda.cuMemHostUnregister(two.data()));
  ok(cuda.cuMemHostUnregister(two.data() + 4096));
}

TEST_F(EmulatedDriverTest, TheAttributesOfABatchAreChecked) {
  CUdeviceptr to[] = {range, range + 4096};
  CUdeviceptr from[] = {hostAt(0), hostAt(4096)};
  CUmemcpyAttributes good{};
  good.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  const auto answer = [&](CUmemcpyAttributes attributes, std::size_t first,
                          std::size_t count, std::size_t bytes) {
    std::size_t sizes[] = {1000, bytes};
    return cuda.cuMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first,
                                   count, streams[0]);
  };
  CUmemcpyAttributes no_order = good;
  no_order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  CUmemcpyAttributes strange = good;
  strange.flags = 0x80;
  EXPECT_EQ(answer(good, 1, 1, 1000), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(good, 0, 0, 1000), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(good, 0, 3, 1000), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(good, 0, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(no_order, 0, 1, 1000), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(strange, 0, 1, 1000), CUDA_ERROR_INVALID_VALUE);
  expectFound("cuMemcpyBatchAsync with bad arguments");
  good.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
  ok(answer(good, 0, 1, 1000));
}

TEST_F(EmulatedDriverTest, MappedMemoryIsForThoseThatHaveAccess) {
  close();
  devices = 2;
  open(Lateness::kLate);
  CUcontext second = nullptr;
  ok(cuda.cuDevicePrimaryCtxRetain(&second, 1));
  ok(cuda.cuCtxPushCurrent(second));
  CUdeviceptr plain = 0;
  ok(cuda.cuMemAlloc(&plain, 4096));
  EXPECT_EQ(cuda.cuMemcpyAsync(plain, range, 1000, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  expectFound("mapped memory to which its device has no access");
  found.clear();
  // Either the copy that names both devices, or access.
  const runtime::Copy across{reinterpret_cast<std::byte*>(plain),
                             reinterpret_cast<std::byte*>(range), 1000};
  ok(driver->copyBetween(nullptr, across));
  ok(cuda.cuStreamSynchronize(nullptr));
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ok(cuda.cuMemSetAccess(range, kUnit, &access, 1));
  ok(cuda.cuMemcpyAsync(plain, range, 1000, nullptr));
  ok(cuda.cuStreamSynchronize(nullptr));
  EXPECT_EQ(found, "");
  // Plain memory may be copied from anywhere, and used by peers.
  CUcontext popped = nullptr;
  ok(cuda.cuCtxPopCurrent(&popped));
  ok(copy(hostAt(0), plain, 0));
  ok(cuda.cuStreamSynchronize(streams[0]));
  EXPECT_EQ(found, "");
  const runtime::ByteRange bytes{reinterpret_cast<std::byte*>(plain), 512};
  driver->launch(0, 0, {&bytes, 1}, {}, {});
  expectFound("memory of another device to which it has no access");
  found.clear();
  driver->enablePeers(0, 1);
  driver->launch(0, 0, {&bytes, 1}, {}, {});
  EXPECT_EQ(found, "");
  ok(cuda.cuStreamSynchronize(nullptr));
  ok(cuda.cuCtxPushCurrent(second));
  ok(cuda.cuMemFree(plain));
  ok(cuda.cuCtxPopCurrent(&popped));
  ok(cuda.cuDevicePrimaryCtxRelease(1));
}

// The driver goes through a batch from the front.
TEST_F(EmulatedDriverTest, ABatchIsTakenUpToWhatIsRefused) {
  for (std::size_t i = 0; i < 3; ++i) host[i * 4096] = std::byte{7};
  CUdeviceptr to[] = {range, range + kUnit, range + 4096};
  CUdeviceptr from[] = {hostAt(0), hostAt(4096), hostAt(2 * 4096)};
  std::size_t sizes[] = {1000, 1000, 1000};
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  std::size_t first = 0;
  EXPECT_EQ(cuda.cuMemcpyBatchAsync(to, from, sizes, 3, &attributes, &first, 1,
                                    streams[0]),
            CUDA_ERROR_INVALID_VALUE);
  expectFound("device memory that is not mapped");
  ok(cuda.cuStreamSynchronize(streams[0]));
  EXPECT_EQ(*reinterpret_cast<std::byte*>(range), std::byte{7});
  EXPECT_NE(*reinterpret_cast<std::byte*>(range + 4096), std::byte{7});
}

TEST_F(EmulatedDriverTest, DiscardedMemory) {
  const runtime::ByteRange bytes{reinterpret_cast<std::byte*>(range), 512};
  driver->discard(bytes);
  ok(copy(range + 511, hostAt(0), 0));
  expectFound("which was discarded and not revived since");
  found.clear();
  driver->revive(bytes);
  ok(copy(range + 511, hostAt(0), 0));
  EXPECT_EQ(found, "");
}

TEST_F(EmulatedDriverTest, KernelsAreWorkLikeAnyOther) {
  const runtime::ByteRange bytes{reinterpret_cast<std::byte*>(range), 512};
  bool ran = false;
  driver->launch(0, 5, {}, {&bytes, 1}, [&] { ran = true; });
  EXPECT_FALSE(ran);
  ok(copy(hostAt(0), range, 0));
  expectFound("no wait orders them");
  driver->run(0, driver->stream(0, 5), 1);
  EXPECT_TRUE(ran);
  const runtime::ByteRange outside{host.data(), 512};
  driver->launch(0, 5, {&outside, 1}, {}, {});
  expectFound("which is no device memory");
}

TEST_F(EmulatedDriverTest, CopiesOntoThemselvesAndWithinABatch) {
  ok(copy(range, range + 500, 0));
  expectFound("a copy onto itself");
  CUdeviceptr to[] = {range, hostAt(0)};
  CUdeviceptr from[] = {hostAt(4000), range + 100};
  std::size_t sizes[] = {200, 200};
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  std::size_t first = 0;
  ok(cuda.cuMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1,
                             streams[0]));
  expectFound("copies within a batch depend on each other");
  EXPECT_EQ(cuda.cuMemcpyBatchAsync(to, from, sizes, 1, &attributes, &first, 1,
                                    nullptr),
            CUDA_ERROR_INVALID_VALUE);
  expectFound("cuMemcpyBatchAsync with bad arguments");
}

TEST_F(EmulatedDriverTest, HandlesThatAreNotThere) {
  CUevent dead = nullptr;
  ok(cuda.cuEventCreate(&dead, CU_EVENT_DISABLE_TIMING));
  EXPECT_EQ(cuda.cuStreamWaitEvent(streams[0], dead, 0), CUDA_SUCCESS);
  expectFound("never recorded");
  ok(cuda.cuEventDestroy(dead));
  EXPECT_EQ(cuda.cuEventRecord(dead, streams[0]), CUDA_ERROR_INVALID_HANDLE);
  expectFound("an event that is not there");
  EXPECT_EQ(cuda.cuStreamSynchronize(reinterpret_cast<CUstream>(0x1234)),
            CUDA_ERROR_INVALID_HANDLE);
  expectFound("a stream that is not there");
  EXPECT_EQ(cuda.cuMemFree(range), CUDA_ERROR_INVALID_VALUE);
  expectFound("cuMemFree with bad arguments");
  EXPECT_EQ(cuda.cuMemUnmap(range + kUnit, kUnit), CUDA_ERROR_INVALID_VALUE);
  expectFound("cuMemUnmap with bad arguments");
}

TEST_F(EmulatedDriverTest, CallsNeedAContext) {
  CUcontext popped = nullptr;
  ok(cuda.cuCtxPopCurrent(&popped));
  EXPECT_EQ(copy(range, hostAt(0), 0), CUDA_ERROR_INVALID_HANDLE);
  expectFound("a call without a current context");
  ok(cuda.cuCtxPushCurrent(popped));
}

TEST_F(EmulatedDriverTest, StreamsThatBlockTheDefaultStream) {
  CUstream stream = nullptr;
  ok(cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_DEFAULT, 0));
  expectFound("waits for the default stream");
  ok(cuda.cuStreamDestroy(stream));
}

TEST_F(EmulatedDriverTest, Leaks) {
  CUdeviceptr memory = 0;
  ok(cuda.cuMemAlloc(&memory, 100));
  CUevent lost = nullptr;
  ok(cuda.cuEventCreate(&lost, CU_EVENT_DEFAULT));
  CUstream stream = nullptr;
  ok(cuda.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
  ok(cuda.cuMemHostRegister(&memory, sizeof memory, 0));
  CUcontext same = nullptr;
  ok(cuda.cuDevicePrimaryCtxRetain(&same, 0));
  EXPECT_EQ(same, context);
  expect_misuse = true;
  close();
  for (const char* leak :
       {"1 allocations leaked", "1 events leaked", "1 streams leaked",
        "1 registrations of host memory leaked",
        "1 references to contexts leaked"}) {
    expectFound(leak);
  }
}

TEST_F(EmulatedDriverTest, TheNthCallFails) {
  driver->failCall(DriverCall::cuMemcpyAsync, 2, CUDA_ERROR_UNKNOWN);
  ok(copy(range, hostAt(0), 0));
  EXPECT_EQ(copy(range, hostAt(0), 0), CUDA_ERROR_UNKNOWN);
  ok(copy(range, hostAt(0), 0));
  EXPECT_EQ(driver->calls(DriverCall::cuMemcpyAsync), 3u);
  driver->failCall(DriverCall::cuMemcpyAsync, 1, CUDA_ERROR_UNKNOWN, true);
  EXPECT_EQ(copy(range, hostAt(0), 0), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(copy(range, hostAt(0), 0), CUDA_ERROR_UNKNOWN);
}

TEST_F(EmulatedDriverTest, FreshMemoryHoldsGarbage) {
  ok(copy(hostAt(0), range, 0));
  ok(cuda.cuStreamSynchronize(streams[0]));
  EXPECT_EQ(host[0], std::byte{0xcb});
}

} // namespace
} // namespace chameleon::support
