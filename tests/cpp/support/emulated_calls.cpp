// The functions behind an EmulatedDriver's table.
#include <algorithm>
#include <atomic>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "tests/cpp/support/emulated_driver.h"

namespace chameleon::support {

using runtime::Copy;
using runtime::Interval;

namespace {

std::byte* bytes_at(CUdeviceptr address) {
  return reinterpret_cast<std::byte*>(address);
}

// Whether every page has physical memory.
bool populated(const void* address, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(getpagesize());
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t first = begin / page * page;
  const std::size_t length = begin + bytes - first;
  std::vector<unsigned char> pages((length + page - 1) / page);
  return mincore(reinterpret_cast<void*>(first), length, pages.data()) == 0 &&
         std::ranges::all_of(pages,
                             [](unsigned char each) { return each & 1; });
}

// Never used twice, so that a dead handle is not somebody else's.
template <typename Handle>
Handle new_handle() {
  static std::atomic<std::uintptr_t> last{0x10000000};
  return reinterpret_cast<Handle>(last.fetch_add(16) + 16);
}

CUstreamCaptureMode& capture_mode_of_thread() {
  thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

std::vector<CUcontext>& contexts_of_thread() {
  thread_local std::vector<CUcontext> stack;
  return stack;
}

} // namespace

EmulatedDriver::Device* EmulatedDriver::currentDevice() {
  const std::vector<CUcontext>& stack = contexts_of_thread();
  for (Device& device : devices_) {
    if (!stack.empty() && device.retained > 0 &&
        device.context == stack.back()) {
      return &device;
    }
  }
  misuse("a call without a current context");
  return nullptr;
}

std::size_t EmulatedDriver::lineOf(CUstream stream) {
  Device* const device = currentDevice();
  if (device == nullptr) return kNoLine;
  if (stream == nullptr) return device->default_line;
  const auto found = streams_.find(stream);
  if (found == streams_.end()) {
    misuse("a stream that is not there (any more)");
    return kNoLine;
  }
  if (&devices_[static_cast<std::size_t>(lines_[found->second].device)] !=
      device) {
    misuse("a stream of another device than the current context's");
    return kNoLine;
  }
  return found->second;
}

EmulatedDriver::RecordedEvent* EmulatedDriver::eventOf(CUevent event) {
  const auto found = events_.find(event);
  if (found != events_.end()) return &found->second;
  misuse("an event that is not there (any more)");
  return nullptr;
}

// Each runs under the driver's lock, after the call has been counted.
struct DriverCalls {
  using Driver = EmulatedDriver;

  // A refusal by the memory is the caller's mistake, unless it is full.
  static CUresult checked(Driver& driver, CUresult result, const char* call) {
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
      driver.misuse(std::string(call) + " with bad arguments");
    }
    return result;
  }

  // ---- process, device, context ------------------------------------------
  static CUresult cuInit(Driver&, unsigned) { return CUDA_SUCCESS; }
  static CUresult cuDriverGetVersion(Driver&, int* version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
  }
  static CUresult cuGetErrorName(Driver&, CUresult result, const char** text) {
    *text = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                               : "CUDA_ERROR";
    return CUDA_SUCCESS;
  }
  static CUresult cuGetErrorString(Driver&, CUresult, const char** text) {
    *text = "emulated error";
    return CUDA_SUCCESS;
  }
  static CUresult cuDeviceGetCount(Driver& driver, int* count) {
    *count = driver.options_.devices;
    return CUDA_SUCCESS;
  }
  static CUresult cuDeviceGet(Driver& driver, CUdevice* device, int ordinal) {
    if (ordinal < 0 || ordinal >= driver.options_.devices) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
  }
  static CUresult cuDeviceGetAttribute(Driver& driver, int* value,
                                       CUdevice_attribute name, CUdevice) {
    switch (name) {
      case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        *value = driver.options_.maps_memory ? 1 : 0;
        return CUDA_SUCCESS;
      case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
        *value = driver.options_.host_numa_node;
        return CUDA_SUCCESS;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  }
  static CUresult cuDevicePrimaryCtxRetain(Driver& driver, CUcontext* context,
                                           CUdevice ordinal) {
    auto& device = driver.devices_[static_cast<std::size_t>(ordinal)];
    if (device.context == nullptr) device.context = new_handle<CUcontext>();
    ++device.retained;
    *context = device.context;
    return CUDA_SUCCESS;
  }
  static CUresult cuDevicePrimaryCtxRelease(Driver& driver, CUdevice ordinal) {
    auto& device = driver.devices_[static_cast<std::size_t>(ordinal)];
    if (device.retained == 0) {
      driver.misuse("a context was released once too often");
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    --device.retained;
    return CUDA_SUCCESS;
  }
  static CUresult cuCtxGetCurrent(Driver&, CUcontext* context) {
    const std::vector<CUcontext>& stack = contexts_of_thread();
    *context = stack.empty() ? nullptr : stack.back();
    return CUDA_SUCCESS;
  }
  static CUresult cuCtxPushCurrent(Driver&, CUcontext context) {
    contexts_of_thread().push_back(context);
    return CUDA_SUCCESS;
  }
  static CUresult cuCtxPopCurrent(Driver& driver, CUcontext* context) {
    std::vector<CUcontext>& stack = contexts_of_thread();
    if (stack.empty()) {
      driver.misuse("cuCtxPopCurrent without a current context");
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    *context = stack.back();
    stack.pop_back();
    return CUDA_SUCCESS;
  }
  static CUresult cuThreadExchangeStreamCaptureMode(Driver&,
                                                    CUstreamCaptureMode* mode) {
    std::swap(*mode, capture_mode_of_thread());
    return CUDA_SUCCESS;
  }
  // What a thread may not do while another one captures a graph, unless it has
  // said that the two have nothing to do with each other.
  static CUresult breaksCapture(Driver& driver, const char* call) {
    if (!driver.capturing_ ||
        capture_mode_of_thread() == CU_STREAM_CAPTURE_MODE_RELAXED) {
      return CUDA_SUCCESS;
    }
    driver.misuse(std::string(call) + " breaks another thread's capture");
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  static CUresult cuCtxGetStreamPriorityRange(Driver& driver, int* least,
                                              int* greatest) {
    (void)driver.currentDevice();
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
  }

  // ---- memory --------------------------------------------------------------
  static CUresult cuMemGetInfo(Driver& driver, std::size_t* free,
                               std::size_t* total) {
    auto* const device = driver.currentDevice();
    if (device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *total = driver.memory_.deviceBytes();
    *free = *total - driver.memory_.usedBytes(
                         static_cast<int>(device - driver.devices_.data()));
    return CUDA_SUCCESS;
  }
  static CUresult cuMemAlloc(Driver& driver, CUdeviceptr* address,
                             std::size_t bytes) {
    auto* const device = driver.currentDevice();
    if (device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    return checked(
        driver,
        driver.memory_.allocate(
            static_cast<int>(device - driver.devices_.data()), bytes, *address),
        "cuMemAlloc");
  }
  // Waits for the device, as the real one does.
  static CUresult cuMemFree(Driver& driver, CUdeviceptr address) {
    driver.runEverything();
    for (std::size_t i = 0; i < driver.lines_.size(); ++i) {
      driver.lines_[kHostLine].clock.add({i, driver.lines_[i].done});
    }
    std::size_t bytes = 0;
    const CUresult result = driver.memory_.free(address, bytes);
    if (result == CUDA_SUCCESS) {
      driver.gone({address, address + bytes}, "cuMemFree");
    }
    return checked(driver, result, "cuMemFree");
  }
  static CUresult cuMemGetAllocationGranularity(
      Driver& driver, std::size_t* bytes, const CUmemAllocationProp*,
      CUmemAllocationGranularity_flags) {
    *bytes = driver.memory_.granularity();
    return CUDA_SUCCESS;
  }
  static CUresult cuMemAddressReserve(Driver& driver, CUdeviceptr* address,
                                      std::size_t bytes, std::size_t alignment,
                                      CUdeviceptr, unsigned long long) {
    return checked(driver, driver.memory_.reserve(bytes, alignment, *address),
                   "cuMemAddressReserve");
  }
  static CUresult cuMemAddressFree(Driver& driver, CUdeviceptr address,
                                   std::size_t bytes) {
    return checked(driver, driver.memory_.unreserve(address, bytes),
                   "cuMemAddressFree");
  }
  static CUresult cuMemCreate(Driver& driver,
                              CUmemGenericAllocationHandle* handle,
                              std::size_t bytes, const CUmemAllocationProp* how,
                              unsigned long long) {
    if (how->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        how->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        how->location.id < 0 || how->location.id >= driver.options_.devices) {
      return checked(driver, CUDA_ERROR_INVALID_VALUE, "cuMemCreate");
    }
    return checked(driver,
                   driver.memory_.create(how->location.id, bytes, *handle),
                   "cuMemCreate");
  }
  static CUresult cuMemRelease(Driver& driver,
                               CUmemGenericAllocationHandle handle) {
    return checked(driver, driver.memory_.release(handle), "cuMemRelease");
  }
  static CUresult cuMemMap(Driver& driver, CUdeviceptr address,
                           std::size_t bytes, std::size_t offset,
                           CUmemGenericAllocationHandle handle,
                           unsigned long long) {
    return checked(driver,
                   offset != 0 ? CUDA_ERROR_INVALID_VALUE
                               : driver.memory_.map(address, bytes, handle),
                   "cuMemMap");
  }
  static CUresult cuMemUnmap(Driver& driver, CUdeviceptr address,
                             std::size_t bytes) {
    driver.gone({address, address + bytes}, "cuMemUnmap");
    return checked(driver, driver.memory_.unmap(address, bytes), "cuMemUnmap");
  }
  static CUresult cuMemSetAccess(Driver& driver, CUdeviceptr address,
                                 std::size_t bytes, const CUmemAccessDesc* who,
                                 std::size_t count) {
    std::uint32_t devices = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (who[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
          who[i].location.id < 0 ||
          who[i].location.id >= driver.options_.devices ||
          who[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        return checked(driver, CUDA_ERROR_INVALID_VALUE, "cuMemSetAccess");
      }
      devices |= 1u << who[i].location.id;
    }
    return checked(driver, driver.memory_.setAccess(address, bytes, devices),
                   "cuMemSetAccess");
  }
  static CUresult cuMemHostRegister(Driver& driver, void* address,
                                    std::size_t bytes, unsigned) {
    if (driver.currentDevice() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (const CUresult result = breaksCapture(driver, "cuMemHostRegister")) {
      return result;
    }
    if (driver.options_.registers_populated_only &&
        !populated(address, bytes)) {
      driver.misuse("cuMemHostRegister of pages that are not populated");
    }
    std::this_thread::sleep_for(driver.options_.register_time_per_mebibyte *
                                (bytes >> 20));
    return checked(
        driver,
        driver.memory_.pin(reinterpret_cast<std::uintptr_t>(address), bytes),
        "cuMemHostRegister");
  }
  static CUresult cuMemHostUnregister(Driver& driver, void* address) {
    if (const CUresult result = breaksCapture(driver, "cuMemHostUnregister")) {
      return result;
    }
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    std::size_t bytes = 0;
    const CUresult result = driver.memory_.unpin(begin, bytes);
    const std::uint64_t before = driver.misuses_;
    driver.gone({begin, begin + bytes}, "cuMemHostUnregister");
    // Its owner may unmap it now: what is left must not run later.
    if (driver.misuses_ != before) driver.runEverything();
    return checked(driver, result, "cuMemHostUnregister");
  }

  // ---- copies
  // ----------------------------------------------------------------
  static CUresult cuMemcpyAsync(Driver& driver, CUdeviceptr to,
                                CUdeviceptr from, std::size_t bytes,
                                CUstream stream) {
    const std::size_t line = driver.lineOf(stream);
    if (line == Driver::kNoLine) return CUDA_ERROR_INVALID_HANDLE;
    return driver.copy(line, {{bytes_at(to), bytes_at(from), bytes}});
  }
  static CUresult cuMemcpyBatchAsync(
      Driver& driver, CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes,
      std::size_t count, CUmemcpyAttributes* attributes, std::size_t* first,
      std::size_t attribute_count, CUstream stream) {
    const std::size_t line = driver.lineOf(stream);
    if (line == Driver::kNoLine) return CUDA_ERROR_INVALID_HANDLE;
    bool valid = stream != nullptr && count != 0 && attribute_count != 0 &&
                 attribute_count <= count && first[0] == 0;
    for (std::size_t i = 0; valid && i < attribute_count; ++i) {
      // Each holds from its copy on. (The driver knows other orders as well.)
      valid =
          first[i] < count && (i == 0 || first[i] > first[i - 1]) &&
          attributes[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM &&
          (attributes[i].flags &
           ~unsigned{CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE}) == 0;
    }
    for (std::size_t i = 0; valid && i < count; ++i) valid = sizes[i] != 0;
    if (!valid) {
      return checked(driver, CUDA_ERROR_INVALID_VALUE, "cuMemcpyBatchAsync");
    }
    std::vector<Copy> copies;
    for (std::size_t i = 0; i < count; ++i) {
      copies.push_back({bytes_at(to[i]), bytes_at(from[i]), sizes[i]});
    }
    return driver.copy(line, std::move(copies));
  }
  // What is under way of a batch that fails for no fault of its own.
  static void partOfBatch(Driver& driver, CUdeviceptr* to, CUdeviceptr* from,
                          std::size_t* sizes, std::size_t count,
                          CUmemcpyAttributes* attributes, std::size_t* first,
                          std::size_t attribute_count, CUstream stream) {
    const std::size_t part = driver.random_() % count;
    if (driver.dead_ || part == 0) return;
    (void)cuMemcpyBatchAsync(driver, to, from, sizes, part, attributes, first,
                             attribute_count, stream);
  }

  // ---- streams
  // -----------------------------------------------------------------
  static CUresult cuStreamCreateWithPriority(Driver& driver, CUstream* stream,
                                             unsigned flags, int) {
    auto* const device = driver.currentDevice();
    if (device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (flags != CU_STREAM_NON_BLOCKING) {
      driver.misuse("a stream that waits for the default stream all the time");
    }
    *stream = new_handle<CUstream>();
    const std::size_t line =
        driver.addLine(static_cast<int>(device - driver.devices_.data()));
    driver.streams_[*stream] = line;
    driver.own_lines_.push_back(line);
    return CUDA_SUCCESS;
  }
  static CUresult cuStreamDestroy(Driver& driver, CUstream stream) {
    const std::size_t line = driver.lineOf(stream);
    if (line == Driver::kNoLine) return CUDA_ERROR_INVALID_HANDLE;
    driver.streams_.erase(stream); // what is left in it still runs
    return CUDA_SUCCESS;
  }
  static CUresult cuStreamSynchronize(Driver& driver, CUstream stream) {
    const std::size_t line = driver.lineOf(stream);
    if (line == Driver::kNoLine) return CUDA_ERROR_INVALID_HANDLE;
    driver.runUntil({line, driver.lines_[line].submitted});
    driver.lines_[kHostLine].clock.join(driver.lines_[line].clock);
    return CUDA_SUCCESS;
  }
  static CUresult cuStreamWaitEvent(Driver& driver, CUstream stream,
                                    CUevent handle, unsigned) {
    const std::size_t line = driver.lineOf(stream);
    const auto* const event = driver.eventOf(handle);
    if (line == Driver::kNoLine || event == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (event->point.count == 0) {
      driver.misuse("a wait for an event that was never recorded");
      return CUDA_SUCCESS;
    }
    EmulatedDriver::Task task;
    task.after = event->point;
    task.waits_for = handle;
    const WorkPoint point = driver.submit(line, std::move(task));
    LineClock& clock = driver.lines_[line].clock;
    clock.join(event->clock);
    clock.add(point);
    return CUDA_SUCCESS;
  }

  // ---- events
  // ------------------------------------------------------------------
  static CUresult cuEventCreate(Driver& driver, CUevent* event,
                                unsigned flags) {
    auto* const device = driver.currentDevice();
    if (device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *event = new_handle<CUevent>();
    auto& made = driver.events_[*event];
    made.device = static_cast<int>(device - driver.devices_.data());
    made.timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
    return CUDA_SUCCESS;
  }
  static CUresult cuEventDestroy(Driver& driver, CUevent event) {
    if (driver.eventOf(event) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    driver.events_.erase(event);
    return CUDA_SUCCESS;
  }
  static CUresult cuEventRecord(Driver& driver, CUevent handle,
                                CUstream stream) {
    const std::size_t line = driver.lineOf(stream);
    auto* const event = driver.eventOf(handle);
    if (line == Driver::kNoLine || event == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (event->device != driver.lines_[line].device) {
      driver.misuse("an event is recorded on another device than its own");
      return CUDA_ERROR_INVALID_HANDLE;
    }
    EmulatedDriver::Task task;
    task.marks = handle;
    event->point = driver.submit(line, std::move(task));
    LineClock& clock = driver.lines_[line].clock;
    clock.add(event->point);
    event->clock = clock;
    event->questions = 0;
    return CUDA_SUCCESS;
  }
  static CUresult cuEventQuery(Driver& driver, CUevent handle) {
    auto* const event = driver.eventOf(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (event->point.count == 0) {
      driver.misuse("a question for an event that was never recorded");
    }
    // So that who asks for ever is answered.
    const bool runs = ++event->questions > 1 && driver.random_() % 4 == 0;
    if (runs) driver.runUntil(event->point);
    if (!driver.passed(event->point)) return CUDA_ERROR_NOT_READY;
    driver.lines_[kHostLine].clock.join(event->clock);
    return CUDA_SUCCESS;
  }
  static CUresult cuEventSynchronize(Driver& driver, CUevent handle) {
    const auto* const event = driver.eventOf(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    driver.runUntil(event->point);
    driver.lines_[kHostLine].clock.join(event->clock);
    return CUDA_SUCCESS;
  }
  static CUresult cuEventElapsedTime(Driver& driver, float* ms, CUevent start,
                                     CUevent end) {
    const auto* const from = driver.eventOf(start);
    const auto* const to = driver.eventOf(end);
    if (from == nullptr || to == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (!from->timed || !to->timed) {
      driver.misuse("the time between events without timing");
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!driver.passed(from->point) || !driver.passed(to->point)) {
      return CUDA_ERROR_NOT_READY;
    }
    *ms = static_cast<float>((to->time_ns - from->time_ns) / 1e6);
    return CUDA_SUCCESS;
  }
};

// What the table points to: counts, may fail on request, works, lets the
// queues run a little.
template <int kSlot, DriverCall kCall, auto kFunction>
struct DriverEntry;

template <int kSlot, DriverCall kCall, typename... Args,
          CUresult (*kFunction)(EmulatedDriver&, Args...)>
struct DriverEntry<kSlot, kCall, kFunction> {
  static CUresult call(Args... args) {
    EmulatedDriver& driver = EmulatedDriver::at(kSlot);
    const std::lock_guard lock(driver.mutex_);
    if (const CUresult failure = driver.enter(kCall)) {
      if constexpr (kCall == DriverCall::cuMemcpyBatchAsync) {
        if (failure != CUDA_ERROR_NOT_SUPPORTED) {
          DriverCalls::partOfBatch(driver, args...);
        }
      }
      return failure;
    }
    const CUresult result = kFunction(driver, args...);
    driver.progress();
    return result;
  }
};

template <int kSlot>
runtime::CudaDriver EmulatedDriver::tableOf() const {
  runtime::CudaDriver driver;
#define CHAMELEON_ENTRY(name, version) \
  driver.name = &DriverEntry<kSlot, DriverCall::name, &DriverCalls::name>::call;
  CHAMELEON_CUDA_CALLS(CHAMELEON_ENTRY)
  if (options_.copies_batches) {
    CHAMELEON_CUDA_OPTIONAL_CALLS(CHAMELEON_ENTRY)
  }
#undef CHAMELEON_ENTRY
  return driver;
}

runtime::CudaDriver EmulatedDriver::table() const {
  return slot_ == 0 ? tableOf<0>() : tableOf<1>();
}

CUstream (*EmulatedDriver::streamOf() const)(int, std::uint64_t) {
  if (slot_ == 0) {
    return
        [](int device, std::uint64_t id) { return at(0).stream(device, id); };
  }
  return [](int device, std::uint64_t id) { return at(1).stream(device, id); };
}

} // namespace chameleon::support
