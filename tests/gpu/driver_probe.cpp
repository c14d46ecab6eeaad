// What the cuda runtime takes for granted of a driver, asked in some 15 s. Each
// answer is one JSON line, flushed. Links with
// backend/runtime/cuda/cuda_driver.cpp alone, and runs where libcuda.so.1 is
// found.
//
//   driver_probe [--quick]
//
// --quick: less memory, and nothing that a driver should refuse, since an
// emulated one ends the process for that.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <vector>

#include "backend/runtime/cuda/cuda_driver.h"
#include "tests/gpu/probe.h"

namespace {

using chameleon::probe::kMiB;
using chameleon::probe::kPage;
using chameleon::probe::map_host;
using chameleon::probe::seconds;
using chameleon::probe::tell;
using chameleon::probe::touch;
using chameleon::runtime::CudaDriver;

constexpr std::size_t kUnit = 32 * kMiB; // what the arena commits at a time
constexpr std::size_t kUnits = 8;

CUdeviceptr address(const void* host) {
  return reinterpret_cast<CUdeviceptr>(host);
}

class Probe {
 public:
  Probe(const CudaDriver& driver, bool is_quick)
      : driver_(driver), is_quick_(is_quick) {
    driver_.cuDeviceGet(&device_, 0);
    driver_.cuDevicePrimaryCtxRetain(&context_, device_);
    driver_.cuCtxPushCurrent(context_);
    property_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    property_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    property_.location.id = device_;
    driver_.cuCtxGetStreamPriorityRange(&lowest_, &highest_);
    make(&in_, highest_);
    make(&out_, std::min(highest_ + 1, lowest_));
    make(&other_, lowest_);
  }

  void ask() {
    describe();
    commit();
    register_host();
    for (const bool populate : {false, true}) {
      for (const std::size_t chunk : {16 * kMiB, 64 * kMiB, 256 * kMiB}) {
        pin(chunk, populate);
      }
    }
    measure_link();
    read_behind_copies();
    time_events();
    move_inside();
    decommit();
  }

 private:
  std::string name(CUresult result) const {
    const char* text = nullptr;
    if (result == CUDA_SUCCESS) {
      return "ok";
    }
    driver_.cuGetErrorName(result, &text);
    return text != nullptr ? text : std::to_string(result);
  }

  void make(CUstream* stream, int priority) const {
    driver_.cuStreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING,
                                       priority);
  }

  CUresult wait(CUstream stream) const {
    return driver_.cuStreamSynchronize(stream);
  }

  int attribute(CUdevice_attribute which) const {
    int value = -1;
    driver_.cuDeviceGetAttribute(&value, which, device_);
    return value;
  }

  CUresult batch(std::vector<CUdeviceptr> to, std::vector<CUdeviceptr> from,
                 std::vector<std::size_t> bytes) const {
    if (driver_.cuMemcpyBatchAsync == nullptr) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
    std::size_t first = 0;
    return driver_.cuMemcpyBatchAsync(to.data(), from.data(), bytes.data(),
                                      bytes.size(), &attributes, &first, 1,
                                      in_);
  }

  void describe() const {
    int version = 0;
    driver_.cuDriverGetVersion(&version);
    std::size_t least = 0, best = 0, free = 0, total = 0;
    driver_.cuMemGetAllocationGranularity(&least, &property_,
                                          CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    driver_.cuMemGetAllocationGranularity(&best, &property_,
                                          CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    driver_.cuMemGetInfo(&free, &total);
    tell("probe", "driver",
         "\"version\": %d, \"has_batch\": %s, \"numa_node\": %d, "
         "\"pageable_access\": %d, \"host_pointer_is_device_pointer\": %d, "
         "\"granularity\": [%zu, %zu], \"free\": %zu, \"total\": %zu, "
         "\"priorities\": [%d, %d]",
         version, driver_.cuMemcpyBatchAsync != nullptr ? "true" : "false",
         attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID),
         attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS),
         attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),
         least, best, free, total, lowest_, highest_);
  }

  // Reserves, creates and maps as the arena does.
  void commit() {
    const CUresult reserved =
        driver_.cuMemAddressReserve(&range_, kUnits * kUnit, kUnit, 0, 0);
    CUresult mapped = CUDA_SUCCESS;
    double longest = 0;
    for (std::size_t i = 0; i < kUnits; ++i) {
      const double start = seconds();
      CUmemGenericAllocationHandle handle{};
      CUresult result = driver_.cuMemCreate(&handle, kUnit, &property_, 0);
      if (result == CUDA_SUCCESS) {
        result = driver_.cuMemMap(range_ + i * kUnit, kUnit, 0, handle, 0);
        driver_.cuMemRelease(handle);
      }
      mapped = result != CUDA_SUCCESS ? result : mapped;
      longest = std::max(longest, seconds() - start);
    }
    CUmemAccessDesc access{};
    access.location = property_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    const double start = seconds();
    const CUresult set =
        driver_.cuMemSetAccess(range_, kUnits * kUnit, &access, 1);
    tell("probe", "commit",
         "\"reserve\": \"%s\", \"is_aligned\": %s, \"map\": \"%s\", "
         "\"access\": \"%s\", \"map_ms\": %.3f, \"access_ms\": %.3f",
         name(reserved).c_str(), range_ % kUnit == 0 ? "true" : "false",
         name(mapped).c_str(), name(set).c_str(), 1e3 * longest,
         1e3 * (seconds() - start));
  }

  // Registrations that touch each other, and copies over their border.
  void register_host() {
    std::byte* host = map_host(96 * kMiB);
    touch(host, 96 * kMiB);
    const CUresult first =
        driver_.cuMemHostRegister(host, 16 * kMiB, CU_MEMHOSTREGISTER_PORTABLE);
    const CUresult second = driver_.cuMemHostRegister(
        host + 16 * kMiB, 16 * kMiB, CU_MEMHOSTREGISTER_PORTABLE);
    tell("probe", "register", "\"first\": \"%s\", \"second\": \"%s\"",
         name(first).c_str(), name(second).c_str());
    copy_over("one registration", host, host + kMiB, range_);
    copy_over("one registration, two mappings", host, host + kMiB,
              range_ + kUnit - 4 * kMiB);
    if (!is_quick_) {
      copy_over("two registrations", host, host + 12 * kMiB, range_);
      copy_over("registered and not", host, host + 28 * kMiB, range_);
    }
    driver_.cuMemHostUnregister(host + 16 * kMiB);
    driver_.cuMemHostUnregister(host);
    munmap(host, 96 * kMiB);
  }

  void copy_over(const char* what, const std::byte* host, const std::byte* at,
                 CUdeviceptr device) const {
    const std::size_t bytes = 8 * kMiB;
    const CUresult in = driver_.cuMemcpyAsync(device, address(at), bytes, in_);
    const CUresult in_done = wait(in_);
    const CUresult out =
        driver_.cuMemcpyAsync(address(at), device, bytes, out_);
    const CUresult out_done = wait(out_);
    const CUresult many = batch({device, range_ + 4 * kUnit},
                                {address(at), address(host)}, {bytes, kMiB});
    const CUresult many_done = wait(in_);
    tell("probe", "copy",
         "\"over\": \"%s\", \"in\": [\"%s\", \"%s\"], \"out\": [\"%s\", "
         "\"%s\"], \"batch\": [\"%s\", \"%s\"]",
         what, name(in).c_str(), name(in_done).c_str(), name(out).c_str(),
         name(out_done).c_str(), name(many).c_str(), name(many_done).c_str());
  }

  // How long pinning takes, and how long a thread that launches waits for it.
  void pin(std::size_t chunk, bool populate) const {
    const std::size_t total = is_quick_ ? chunk : std::max(chunk, 256 * kMiB);
    std::byte* memory = map_host(total);
    std::atomic<bool> is_over{false};
    double longest = 0;
    std::thread launches([&] {
      driver_.cuCtxPushCurrent(context_);
      CUevent event{};
      driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
      while (!is_over) {
        const double start = seconds();
        driver_.cuMemcpyAsync(range_, range_ + kUnit, kPage, other_);
        driver_.cuEventRecord(event, other_);
        longest = std::max(longest, seconds() - start);
        wait(other_); // the queue stays short
      }
      driver_.cuEventDestroy(event);
    });
    double populating = 0, pinning = 0;
    CUresult result = CUDA_SUCCESS;
    std::size_t pinned = 0;
    while (pinned < total && result == CUDA_SUCCESS) {
      double start = seconds();
      if (populate) {
        madvise(memory + pinned, chunk, MADV_POPULATE_WRITE);
        populating += seconds() - start;
      }
      start = seconds();
      result = driver_.cuMemHostRegister(memory + pinned, chunk,
                                         CU_MEMHOSTREGISTER_PORTABLE);
      pinning += seconds() - start;
      pinned += chunk;
    }
    is_over = true;
    launches.join();
    const double start = seconds();
    for (std::size_t at = 0; at < pinned; at += chunk) {
      driver_.cuMemHostUnregister(memory + at);
    }
    const double unpinning = seconds() - start;
    munmap(memory, total);
    const auto gb_s = [&](double time) {
      return time > 0 ? static_cast<double>(total) / time / 1e9 : 0.0;
    };
    tell("probe", "pin",
         "\"chunk_mib\": %zu, \"is_populated\": %s, \"result\": \"%s\", "
         "\"populate_gb_s\": %.2f, \"pin_gb_s\": %.2f, \"other_thread_ms\": "
         "%.3f, \"unpin_ms\": %.3f",
         chunk / kMiB, populate ? "true" : "false", name(result).c_str(),
         gb_s(populating), gb_s(pinning), 1e3 * longest, 1e3 * unpinning);
  }

  // GB/s of so many copies in, out, or both ways at a time.
  double speed(bool is_in, bool is_out, std::size_t bytes, int times,
               std::byte* host) const {
    CUevent start{}, end_in{}, end_out{};
    for (CUevent* event : {&start, &end_in, &end_out}) {
      driver_.cuEventCreate(event, CU_EVENT_DEFAULT);
    }
    driver_.cuEventRecord(start, is_in ? in_ : out_);
    driver_.cuStreamWaitEvent(is_in ? out_ : in_, start, 0);
    for (int i = 0; i < times; ++i) {
      if (is_in) {
        driver_.cuMemcpyAsync(range_, address(host), bytes, in_);
      }
      if (is_out) {
        driver_.cuMemcpyAsync(address(host + bytes), range_ + 4 * kUnit, bytes,
                              out_);
      }
    }
    driver_.cuEventRecord(end_in, in_);
    driver_.cuEventRecord(end_out, out_);
    driver_.cuEventSynchronize(end_in);
    driver_.cuEventSynchronize(end_out);
    float longest_ms = 0;
    for (const CUevent end : {end_in, end_out}) {
      float ms = 0;
      driver_.cuEventElapsedTime(&ms, start, end);
      longest_ms = std::max(longest_ms, ms);
    }
    for (const CUevent event : {start, end_in, end_out}) {
      driver_.cuEventDestroy(event);
    }
    const double moved = static_cast<double>(bytes) * times *
                         (static_cast<int>(is_in) + static_cast<int>(is_out));
    return longest_ms > 0 ? moved / (longest_ms * 1e6) : 0;
  }

  void measure_link() const {
    const std::size_t most = is_quick_ ? 16 * kMiB : 4 * kUnit;
    std::byte* pinned = map_host(2 * most);
    std::byte* pageable = map_host(2 * most);
    touch(pinned, 2 * most);
    touch(pageable, 2 * most);
    driver_.cuMemHostRegister(pinned, 2 * most, CU_MEMHOSTREGISTER_PORTABLE);
    for (const std::size_t bytes : {64 * kMiB / 1024, kMiB, 16 * kMiB, most}) {
      const int times = bytes < kMiB ? 64 : 8;
      speed(true, true, bytes, 1, pinned); // once unmeasured
      tell("probe", "link",
           "\"bytes\": %zu, \"in_gb_s\": %.2f, \"out_gb_s\": %.2f, "
           "\"both_gb_s\": %.2f, \"pageable_in_gb_s\": %.2f, "
           "\"pageable_out_gb_s\": %.2f",
           bytes, speed(true, false, bytes, times, pinned),
           speed(false, true, bytes, times, pinned),
           speed(true, true, bytes, times, pinned),
           speed(true, false, bytes, 2, pageable),
           speed(false, true, bytes, 2, pageable));
    }
    driver_.cuMemHostUnregister(pinned);
    munmap(pinned, 2 * most);
    munmap(pageable, 2 * most);
  }

  // A number that is read while much is on its way out.
  void read_behind_copies() const {
    const std::size_t bytes = is_quick_ ? kMiB : 4 * kUnit;
    std::byte* host = map_host(bytes + kPage);
    driver_.cuMemHostRegister(host, bytes + kPage, CU_MEMHOSTREGISTER_PORTABLE);
    for (const bool is_behind : {true, false}) {
      for (int i = 0; i < 8; ++i) {
        driver_.cuMemcpyAsync(address(host), range_, bytes, out_);
      }
      const CUstream stream = is_behind ? out_ : other_;
      const double start = seconds();
      driver_.cuMemcpyAsync(address(host + bytes), range_, 4, stream);
      wait(stream);
      tell("probe", "item", "\"is_behind_copies\": %s, \"ms\": %.3f",
           is_behind ? "true" : "false", 1e3 * (seconds() - start));
      wait(out_);
    }
    driver_.cuMemHostUnregister(host);
    munmap(host, bytes + kPage);
  }

  // Are times between events negative where the order is?
  void time_events() const {
    CUevent first{}, last{};
    driver_.cuEventCreate(&first, CU_EVENT_DEFAULT);
    driver_.cuEventCreate(&last, CU_EVENT_DEFAULT);
    driver_.cuEventRecord(first, in_);
    driver_.cuMemcpyAsync(range_, range_ + 4 * kUnit, kUnit, in_);
    driver_.cuEventRecord(last, in_);
    wait(in_);
    float forth = 0, back = 0;
    const CUresult ahead = driver_.cuEventElapsedTime(&forth, first, last);
    const CUresult behind = driver_.cuEventElapsedTime(&back, last, first);
    driver_.cuEventDestroy(first);
    driver_.cuEventDestroy(last);
    tell("probe", "elapsed",
         "\"forth\": [\"%s\", %.4f], \"back\": [\"%s\", %.4f]",
         name(ahead).c_str(), forth, name(behind).c_str(), back);
  }

  // Moves inside the device, as compaction makes them.
  void move_inside() const {
    CUevent start{}, end{};
    driver_.cuEventCreate(&start, CU_EVENT_DEFAULT);
    driver_.cuEventCreate(&end, CU_EVENT_DEFAULT);
    const int times = is_quick_ ? 1 : 16;
    driver_.cuEventRecord(start, other_);
    for (int i = 0; i < times; ++i) {
      driver_.cuMemcpyAsync(range_, range_ + 4 * kUnit, 4 * kUnit, other_);
    }
    driver_.cuEventRecord(end, other_);
    wait(other_);
    float ms = 0;
    driver_.cuEventElapsedTime(&ms, start, end);
    driver_.cuEventDestroy(start);
    driver_.cuEventDestroy(end);
    tell("probe", "move", "\"gb_s\": %.1f",
         ms > 0 ? 4.0 * times * kUnit / ms / 1e6 : 0.0);
  }

  void decommit() const {
    const CUresult many = driver_.cuMemUnmap(range_, 4 * kUnit);
    const CUresult rest = driver_.cuMemUnmap(range_ + 4 * kUnit, 4 * kUnit);
    const CUresult freed = driver_.cuMemAddressFree(range_, kUnits * kUnit);
    tell("probe", "decommit",
         "\"many\": \"%s\", \"rest\": \"%s\", \"free\": \"%s\"",
         name(many).c_str(), name(rest).c_str(), name(freed).c_str());
  }

  const CudaDriver& driver_;
  const bool is_quick_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUmemAllocationProp property_{};
  int lowest_ = 0, highest_ = 0;
  CUstream in_ = nullptr, out_ = nullptr, other_ = nullptr;
  CUdeviceptr range_ = 0;
};

} // namespace

int main(int argc, char** argv) {
  return chameleon::probe::run<Probe>(argc, argv);
}
