// A stand-in for CUDA's libraries, loaded before PyTorch's (LD_PRELOAD): the
// runtime calls that PyTorch's libraries import, and libcuda.so.1's way to
// look up driver calls, both on one emulated driver (emulated_driver.h). So
// PyTorch initialises CUDA, allocates, copies, records and waits for real, on
// host memory. Kernels do not run: they are counted, unless a test computes
// what they would, between emulated_begin_kernel() and emulated_end_kernel().
//
// Misuse of the driver prints one sentence and aborts. CHAMELEON_EMULATED
// chooses, as "late seed=3 mebibytes=512 devices=2 pin_us=250": when work runs
// (prompt, late, else at random times), the seed of that, a device's memory,
// how many there are (peers of each other), what pinning takes a MiB.
#include "tests/cpp/support/emulated_cuda.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime_api.h>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <sys/mman.h>
#include <utility>
#include <vector>

#include "tests/cpp/support/emulated_driver.h"

namespace {

using chameleon::runtime::ByteRange;
using chameleon::runtime::CudaDriver;
using chameleon::support::EmulatedDriver;
using chameleon::support::EmulatedDriverOptions;
using chameleon::support::Lateness;

std::size_t number_after(const std::string& text, const char* key,
                         std::size_t otherwise) {
  const std::size_t at = text.find(key);
  return at == std::string::npos
             ? otherwise
             : std::strtoull(text.c_str() + at + std::strlen(key), nullptr, 10);
}

EmulatedDriverOptions options() {
  const char* const given = std::getenv("CHAMELEON_EMULATED");
  const std::string text = given != nullptr ? given : "";
  EmulatedDriverOptions result;
  result.seed = number_after(text, "seed=", 1);
  result.device_bytes = number_after(text, "mebibytes=", 1024) << 20;
  result.granularity = std::size_t{2} << 20;
  result.register_time_per_mebibyte =
      std::chrono::microseconds(number_after(text, "pin_us=", 0));
  result.devices = static_cast<int>(number_after(text, "devices=", 1));
  result.lateness = text.find("prompt") != std::string::npos ? Lateness::kPrompt
                    : text.find("late") != std::string::npos
                        ? Lateness::kLate
                        : Lateness::kRandom;
  return result;
}

struct Machine {
  const int devices = options().devices;
  EmulatedDriver driver{options()};
  const CudaDriver table = driver.table();
  std::vector<CUcontext> contexts;
  std::mutex mutex;
  // Guarded by mutex.
  std::map<const void*, std::size_t> device_memory;
  std::map<const void*, std::size_t> pinned;
  std::set<std::pair<int, cudaStream_t>> streams; // of which device
  std::map<cudaEvent_t, bool> recorded;

  Machine() : contexts(static_cast<std::size_t>(devices)) {
    for (int device = 0; device < devices; ++device) {
      table.cuDevicePrimaryCtxRetain(
          &contexts[static_cast<std::size_t>(device)], device);
    }
  }
};

std::atomic<bool> capturing{false};
thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0; // as cudaSetDevice() has it
// Sticky, as an error of a kernel is.
std::atomic<cudaError_t> lost{cudaSuccess};

std::atomic<bool> used{false};

Machine& machine() {
  used = true;
  static auto* const instance = new Machine; // leaked, as the driver is
  return *instance;
}

// The thread's context, as the runtime makes it current by itself.
const CudaDriver& driver() {
  Machine& all = machine();
  CUcontext current = nullptr;
  all.table.cuCtxGetCurrent(&current);
  if (current == nullptr) {
    all.table.cuCtxPushCurrent(
        all.contexts[static_cast<std::size_t>(current_device)]);
  }
  return all.table;
}

cudaError_t done(cudaError_t error) {
  if (lost != cudaSuccess) error = lost;
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}
// The numbers of errors are the same in both.
cudaError_t done(CUresult result) {
  return done(static_cast<cudaError_t>(result));
}

CUdeviceptr address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

bool lies_in(const std::map<const void*, std::size_t>& ranges,
             const void* pointer) {
  auto after = ranges.upper_bound(pointer);
  if (after == ranges.begin()) return false;
  const auto& [begin, bytes] = *--after;
  return static_cast<const char*>(pointer) <
         static_cast<const char*>(begin) + bytes;
}

bool was_recorded(cudaEvent_t event) {
  const std::lock_guard lock(machine().mutex);
  return machine().recorded[event];
}

CUresult unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }

void* driver_entry(const std::string& name) {
  const CudaDriver& table = machine().table;
#define CHAMELEON_FIND(call, version) \
  if (name == #call) return reinterpret_cast<void*>(table.call);
  CHAMELEON_CUDA_CALLS(CHAMELEON_FIND)
  CHAMELEON_CUDA_OPTIONAL_CALLS(CHAMELEON_FIND)
#undef CHAMELEON_FIND
  return nullptr;
}

} // namespace

cudaError_t chameleon::support::emulated_status() { return done(cudaSuccess); }

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
// ---- libcuda.so.1 ----------------------------------------------------------

EXPORT CUresult cuGetProcAddress_v2(const char* name, void** function, int,
                                    cuuint64_t,
                                    CUdriverProcAddressQueryResult*) {
  *function = driver_entry(name);
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
EXPORT CUresult cuInit(unsigned) {
  machine();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  return machine().table.cuCtxGetCurrent(context);
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return machine().table.cuDevicePrimaryCtxRetain(context, device);
}
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags,
                                           int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

// ---- for tests
// ---------------------------------------------------------------

EXPORT void emulated_capture(bool on) {
  capturing = on;
  machine().driver.capture(on);
}
EXPORT void emulated_fail(int error) {
  lost = static_cast<cudaError_t>(error);
  machine().driver.loseContext(static_cast<CUresult>(error));
}
// Whether anybody has called anything yet.
EXPORT bool emulated_was_used() { return used; }
// "3 events, 1 allocations": what would leak if the process ended now. All
// work has to be over.
EXPORT const char* emulated_live() {
  static std::string text;
  text.clear();
  for (const std::string& leak : machine().driver.leaks()) {
    text += (text.empty() ? "" : ", ") + leak.substr(0, leak.rfind(' '));
  }
  return text.c_str();
}
EXPORT std::uint64_t emulated_calls(const char* name) {
  using chameleon::support::DriverCall;
#define CHAMELEON_COUNT(call, version) \
  if (std::strcmp(name, #call) == 0)   \
    return machine().driver.calls(DriverCall::call);
  CHAMELEON_CUDA_CALLS(CHAMELEON_COUNT)
  CHAMELEON_CUDA_OPTIONAL_CALLS(CHAMELEON_COUNT)
#undef CHAMELEON_COUNT
  return 0;
}
// The host computes what a kernel on `stream` would: all work before it on the
// stream runs, of which the host learns nothing ...
EXPORT void emulated_begin_kernel(cudaStream_t stream) {
  driver();
  machine().driver.run(current_device, stream, ~std::uint64_t{0});
}
// ... and then the kernel is put on record, as work that is not over yet.
EXPORT void emulated_end_kernel(cudaStream_t stream, const ByteRange* ranges,
                                std::size_t reads, std::size_t writes) {
  driver();
  machine().driver.launchOn(current_device, stream, {ranges, reads},
                            {ranges + reads, writes}, [] {});
  chameleon::support::count_kernel();
}

// ---- devices
// -------------------------------------------------------------------

EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  *count = machine().devices;
  return done(cudaSuccess);
}
EXPORT cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
EXPORT cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= machine().devices) {
    return done(cudaErrorInvalidDevice);
  }
  CUcontext current = nullptr;
  machine().table.cuCtxGetCurrent(&current);
  if (current != nullptr) machine().table.cuCtxPopCurrent(&current);
  current_device = device;
  driver();
  return done(cudaSuccess);
}
EXPORT cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return cudaSuccess;
}
EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDA_VERSION;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* of, int) {
  *of = {};
  std::strncpy(of->name, "Emulated GPU", sizeof(of->name) - 1);
  std::size_t free = 0;
  driver().cuMemGetInfo(&free, &of->totalGlobalMem);
  of->major = 9;
  of->multiProcessorCount = 16;
  of->warpSize = 32;
  of->maxThreadsPerBlock = 1024;
  of->maxThreadsPerMultiProcessor = 2048;
  of->maxBlocksPerMultiProcessor = 32;
  of->sharedMemPerBlock = 48 << 10;
  of->sharedMemPerBlockOptin = 227 << 10;
  of->sharedMemPerMultiprocessor = 228 << 10;
  of->regsPerBlock = 65536;
  of->regsPerMultiprocessor = 65536;
  of->l2CacheSize = 50 << 20;
  for (int i = 0; i < 3; ++i) {
    of->maxThreadsDim[i] = i < 2 ? 1024 : 64;
    of->maxGridSize[i] = i == 0 ? 0x7fffffff : 65535;
  }
  return done(cudaSuccess);
}
EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr name,
                                          int) {
  *value = name == cudaDevAttrComputeCapabilityMajor         ? 9
           : name == cudaDevAttrMultiProcessorCount          ? 16
           : name == cudaDevAttrMaxThreadsPerBlock           ? 1024
           : name == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 227 << 10
                                                             : 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int) {
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:00:00.0");
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int other) {
  *can = device != other ? 1 : 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned) {
  machine().driver.enablePeers(current_device, other);
  return done(cudaSuccess);
}
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return done(driver().cuStreamSynchronize(stream));
}
EXPORT cudaError_t cudaDeviceSynchronize() {
  std::set<std::pair<int, cudaStream_t>> streams;
  {
    const std::lock_guard lock(machine().mutex);
    streams = machine().streams;
  }
  driver().cuStreamSynchronize(nullptr);
  for (const auto& [device, stream] : streams) {
    if (device == current_device) driver().cuStreamSynchronize(stream);
  }
  machine().driver.runAll();
  return done(cudaSuccess);
}

// ---- errors
// --------------------------------------------------------------------

EXPORT cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return lost != cudaSuccess ? lost.load() : error;
}
EXPORT cudaError_t cudaPeekAtLastError() {
  return lost != cudaSuccess ? lost.load() : last_error;
}
EXPORT const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
EXPORT const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorIllegalAddress
             ? "an illegal memory access was encountered"
             : "emulated error";
}

// ---- memory
// ----------------------------------------------------------------------

EXPORT cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  CUdeviceptr made = 0;
  const CUresult result = driver().cuMemAlloc(&made, bytes);
  *memory = reinterpret_cast<void*>(made);
  if (result == CUDA_SUCCESS) {
    const std::lock_guard lock(machine().mutex);
    machine().device_memory[*memory] = bytes;
  }
  return done(result);
}
EXPORT cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return done(cudaSuccess);
  {
    const std::lock_guard lock(machine().mutex);
    machine().device_memory.erase(memory);
  }
  return done(driver().cuMemFree(address(memory)));
}
EXPORT cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return done(driver().cuMemGetInfo(free, total));
}
EXPORT cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
  const CUresult result = driver().cuMemHostRegister(memory, bytes, 0);
  if (result == CUDA_SUCCESS) {
    const std::lock_guard lock(machine().mutex);
    machine().pinned[memory] = bytes;
  }
  return done(result);
}
EXPORT cudaError_t cudaHostUnregister(void* memory) {
  {
    const std::lock_guard lock(machine().mutex);
    machine().pinned.erase(memory);
  }
  return done(driver().cuMemHostUnregister(memory));
}
EXPORT cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*memory == MAP_FAILED) return done(cudaErrorMemoryAllocation);
  return cudaHostRegister(*memory, bytes, 0);
}
EXPORT cudaError_t cudaFreeHost(void* memory) {
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(machine().mutex);
    bytes = machine().pinned[memory];
  }
  const cudaError_t error = cudaHostUnregister(memory);
  munmap(memory, bytes);
  return error;
}
EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* of,
                                            const void* pointer) {
  *of = {};
  of->device = 0;
  const std::lock_guard lock(machine().mutex);
  if (lies_in(machine().pinned, pointer)) {
    of->type = cudaMemoryTypeHost;
    of->hostPointer = const_cast<void*>(pointer);
  } else if (lies_in(machine().device_memory, pointer)) {
    of->type = cudaMemoryTypeDevice;
    of->devicePointer = const_cast<void*>(pointer);
  } else {
    of->type = cudaMemoryTypeUnregistered;
    of->device = -1;
  }
  return done(cudaSuccess);
}

// Pageable memory has been read or written when the call returns: the driver
// stages it.
EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from,
                                   std::size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream) {
  const cudaError_t error =
      done(driver().cuMemcpyAsync(address(to), address(from), bytes, stream));
  const void* const host = kind == cudaMemcpyHostToDevice   ? from
                           : kind == cudaMemcpyDeviceToHost ? to
                                                            : nullptr;
  bool pageable = false;
  if (host != nullptr) {
    const std::lock_guard lock(machine().mutex);
    pageable = !lies_in(machine().pinned, host);
  }
  if (pageable) driver().cuStreamSynchronize(stream);
  return error;
}
EXPORT cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes,
                              cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}
EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int,
                                       std::size_t bytes, cudaStream_t stream) {
  driver();
  return done(machine().driver.copyBetween(
      stream, {static_cast<std::byte*>(to), static_cast<const std::byte*>(from),
               bytes}));
}
EXPORT cudaError_t cudaMemcpyToSymbol(const void*, const void*, std::size_t,
                                      std::size_t, cudaMemcpyKind) {
  return done(cudaSuccess);
}
EXPORT cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes,
                                   cudaStream_t stream) {
  driver();
  const ByteRange range{static_cast<const std::byte*>(memory), bytes};
  machine().driver.launchOn(current_device, stream, {}, {&range, 1},
                            [=] { std::memset(memory, value, bytes); });
  return done(cudaSuccess);
}
EXPORT cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}

// ---- streams and events
// --------------------------------------------------------

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream,
                                                unsigned flags, int priority) {
  const CUresult result =
      driver().cuStreamCreateWithPriority(stream, flags, priority);
  const std::lock_guard lock(machine().mutex);
  machine().streams.emplace(current_device, *stream);
  return done(result);
}
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(machine().mutex);
    std::erase_if(machine().streams,
                  [&](const auto& each) { return each.second == stream; });
  }
  return done(driver().cuStreamDestroy(stream));
}
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
  driver();
  return done(machine().driver.idle(current_device, stream)
                  ? cudaSuccess
                  : cudaErrorNotReady);
}
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t,
                                         cudaStreamCaptureStatus* status) {
  *status =
      capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id,
    cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**,
    std::size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 0;
  return cudaSuccess;
}
EXPORT cudaError_t
cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  auto same = static_cast<CUstreamCaptureMode>(*mode); // by number
  const CUresult result = driver().cuThreadExchangeStreamCaptureMode(&same);
  *mode = static_cast<cudaStreamCaptureMode>(same);
  return done(result);
}
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event,
                                            unsigned flags) {
  return done(driver().cuEventCreate(event, flags));
}
EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  {
    const std::lock_guard lock(machine().mutex);
    machine().recorded.erase(event);
  }
  return done(driver().cuEventDestroy(event));
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  {
    const std::lock_guard lock(machine().mutex);
    machine().recorded[event] = true;
  }
  return done(driver().cuEventRecord(event, stream));
}
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event,
                                            cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!was_recorded(event)) return done(cudaSuccess);
  return done(driver().cuEventQuery(event));
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (!was_recorded(event)) return done(cudaSuccess);
  return done(driver().cuEventSynchronize(event));
}
EXPORT cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start,
                                        cudaEvent_t end) {
  return done(driver().cuEventElapsedTime(ms, start, end));
}
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                       unsigned) {
  if (!was_recorded(event)) return done(cudaSuccess);
  return done(driver().cuStreamWaitEvent(stream, event, 0));
}

// PyTorch wants every function that it looks for.
EXPORT cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned, unsigned long long,
    cudaDriverEntryPointQueryResult* result) {
  *function = driver_entry(name);
  if (*function == nullptr) *function = reinterpret_cast<void*>(&unsupported);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
// NOLINTEND(readability-identifier-naming)
