// How fast host memory gets its pages and is pinned, by 1, 4 and 16 threads,
// asked in some 20 s. Each answer is one JSON line, flushed. Links with
// backend/runtime/cuda/cuda_driver.cpp alone, and runs where libcuda.so.1 is
// found.
//
//   pin_probe [--quick]
//
// --quick: less memory.
#include <array>
#include <cstdio>
#include <sys/mman.h>
#include <thread>
#include <vector>

#include "backend/runtime/cuda/cuda_driver.h"
#include "tests/gpu/probe.h"

namespace {

using chameleon::probe::kMiB;
using chameleon::probe::map_host;
using chameleon::probe::seconds;
using chameleon::probe::tell;
using chameleon::probe::touch;
using chameleon::runtime::CudaDriver;

// How pages come: not before they are pinned, by madvise, by being written.
enum class Way { kNone, kPopulate, kTouch };
constexpr std::array<const char*, 3> kWays = {"none", "populate", "touch"};

class PinProbe {
 public:
  PinProbe(const CudaDriver& driver, bool is_quick)
      : driver_(driver), chunk_((is_quick ? 1 : 64) * kMiB) {
    CUdevice device = 0;
    driver_.cuDeviceGet(&device, 0);
    driver_.cuDevicePrimaryCtxRetain(&context_, device);
    driver_.cuCtxPushCurrent(context_);
  }

  void ask() const {
    for (const std::size_t threads : {1, 4, 16}) {
      for (const Way way : {Way::kNone, Way::kPopulate, Way::kTouch}) {
        measure(threads, way);
      }
    }
  }

 private:
  static constexpr std::size_t kChunks = 64;

  // Seconds until all chunks are done, dealt out to so many threads.
  template <typename Do>
  double each_chunk(std::size_t threads, const Do& work) const {
    const double start = seconds();
    std::vector<std::thread> running;
    for (std::size_t first = 0; first < threads; ++first) {
      running.emplace_back([&, first] {
        driver_.cuCtxPushCurrent(context_);
        for (std::size_t i = first; i < kChunks; i += threads) work(i);
      });
    }
    for (std::thread& thread : running) thread.join();
    return seconds() - start;
  }

  void measure(std::size_t threads, Way way) const {
    const std::size_t total = kChunks * chunk_;
    std::byte* memory = map_host(total);
    std::array<CUresult, kChunks> results{};
    const double coming = each_chunk(threads, [&](std::size_t i) {
      std::byte* at = memory + i * chunk_;
      if (way == Way::kPopulate) madvise(at, chunk_, MADV_POPULATE_WRITE);
      if (way == Way::kTouch) touch(at, chunk_);
    });
    const double pinning = each_chunk(threads, [&](std::size_t i) {
      results[i] = driver_.cuMemHostRegister(memory + i * chunk_, chunk_,
                                             CU_MEMHOSTREGISTER_PORTABLE);
    });
    std::size_t pinned = 0;
    for (std::size_t i = 0; i < kChunks; ++i) {
      if (results[i] != CUDA_SUCCESS) continue;
      ++pinned;
      driver_.cuMemHostUnregister(memory + i * chunk_);
    }
    munmap(memory, total);
    const auto gb_s = [&](double time) {
      return static_cast<double>(total) / time / 1e9;
    };
    tell("finding", "pin",
         "\"threads\": %zu, \"pages_by\": \"%s\", \"bytes\": %zu, "
         "\"chunks\": %zu, \"pinned_chunks\": %zu, \"pages_gb_s\": %.2f, "
         "\"pin_gb_s\": %.2f, \"both_gb_s\": %.2f",
         threads, kWays[static_cast<std::size_t>(way)], total, kChunks, pinned,
         way == Way::kNone ? 0.0 : gb_s(coming), gb_s(pinning),
         gb_s(coming + pinning));
  }

  const CudaDriver& driver_;
  const std::size_t chunk_;
  CUcontext context_ = nullptr;
};

} // namespace

int main(int argc, char** argv) {
  return chameleon::probe::run<PinProbe>(argc, argv);
}
