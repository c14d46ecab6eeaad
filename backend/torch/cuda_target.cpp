// CUDA as the target: fills in the table of native_cuda.h. Part of the build
// where the PyTorch at hand is a CUDA build (ci/cmake/torch.cmake).
//
// Tests: test_cuda_emulated.py.
#include <algorithm>
#include <vector>

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "backend/runtime/cuda/cuda_driver.h"
#include "backend/runtime/physical_device.h"
#include "backend/torch/cuda_in_kernel_allocator.h"
#include "backend/torch/error.h"
#include "backend/torch/in_kernel_allocator.h"
#include "backend/torch/native_cuda.h"

namespace chameleon::backend {
namespace {

c10::cuda::CUDAStream stream_with(int device, c10::StreamId id) {
  return c10::cuda::CUDAStream(
      c10::cuda::CUDAStream::UNCHECKED,
      c10::Stream(c10::Stream::UNSAFE,
                  c10::Device(c10::DeviceType::CUDA,
                              static_cast<c10::DeviceIndex>(device)),
                  id));
}

CUstream_st* stream_of(int device, std::uint64_t id) {
  return stream_with(device, static_cast<c10::StreamId>(id)).stream();
}

int native_device_count() noexcept {
  return runtime::cuda_driver().ok() ? c10::cuda::device_count() : 0;
}

void initialise() {
  value_or_throw(runtime::cuda_driver()); // one sentence where there is none
  if (void (*python)() = cuda_initialiser()) python();
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  runtime::CudaSupport support;
  support.options.stream_of = &stream_of;
  support.device_count = &native_device_count;
  runtime::set_cuda_support(support);
}

// Of one device; the ids of two devices' streams may be the same.
struct StreamOfDevice {
  c10::DeviceIndex device;
  c10::StreamId id;
  bool operator==(const StreamOfDevice&) const = default;
};

// A handle of cuBLAS belongs to a thread and a device, its workspace to handle
// and stream. Where a library refuses, a kernel may yet do without it.
void prepare(const StreamOfDevice& stream) noexcept {
  thread_local std::vector<StreamOfDevice> prepared;
  if (std::ranges::find(prepared, stream) != prepared.end()) return;
  try {
    prepared.push_back(stream);
    const InKernelScope outside(nullptr, nullptr);
    const c10::cuda::OptionalCUDAGuard guard(stream.device);
    c10::cuda::set_device(stream.device, /*force=*/true); // its context too
    at::cuda::getCurrentCUDABlasHandle();
    at::cuda::getCUDABlasLtWorkspace();
  } catch (const std::exception&) {
    return; // what a kernel then takes from the arena is counted as foreign
  }
}

void prepare_native_thread(c10::DeviceIndex device) noexcept {
  prepare({device, c10::cuda::getCurrentCUDAStream(device).id()});
}

// Each op asks, so this is where a stream shows that torch.cuda.stream() has
// made current.
c10::StreamId native_current_stream(c10::DeviceIndex device) {
  if (memory_pools_are_open()) [[unlikely]]
    refuse_capture(device);
  const StreamOfDevice stream{device,
                              c10::cuda::getCurrentCUDAStream(device).id()};
  static constinit thread_local StreamOfDevice last{-1, 0};
  if (stream != last) [[unlikely]] {
    // mutant: workspace
    prepare(stream);
    last = stream;
  }
  return stream.id;
}

bool was_seeded(c10::DeviceIndex device) {
  return at::check_generator<at::CUDAGeneratorImpl>(
             at::cuda::detail::getDefaultCUDAGenerator(device))
      ->reset_rnn_state();
}

constexpr NativeCuda kTable{&native_device_count,
                            &initialise,
                            &install_cuda_in_kernel_allocator,
                            &native_current_stream,
                            &prepare_native_thread,
                            &was_seeded};

const bool table_set = [] {
  set_native_cuda(&kTable);
  return true;
}();

} // namespace
} // namespace chameleon::backend
