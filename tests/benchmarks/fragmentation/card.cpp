#include "tests/benchmarks/fragmentation/card.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20; // as the driver's

struct Card {
  std::mutex mutex;
  // Guarded by mutex.
  std::size_t bytes = 0;
  std::size_t used = 0;
  card::Calls calls;
  std::uint64_t next_address = std::uint64_t{1} << 46;
  std::uint64_t next_handle = 1;
  std::map<std::uint64_t, std::size_t> allocated; // by address
  std::map<std::uint64_t, std::size_t> created;   // by handle
  cudaError_t last_error = cudaSuccess;

  bool take(std::size_t size) {
    if (size > bytes - used) return false;
    used += size;
    return true;
  }
  // An unmapped page lies between any two ranges.
  std::uint64_t range(std::size_t size) {
    const std::uint64_t address = next_address;
    next_address += (size + kPage - 1) / kPage * kPage + kPage;
    return address;
  }
  void give(std::map<std::uint64_t, std::size_t>& from, std::uint64_t key) {
    const auto at = from.find(key);
    if (at == from.end()) {
      std::fputs("card: given back what nobody took\n", stderr);
      std::abort();
    }
    used -= at->second;
    from.erase(at);
  }
};

Card& the_card() {
  static Card card;
  return card;
}

// ---- the driver -------------------------------------------------------------

CUresult reserve(CUdeviceptr* address, std::size_t bytes, std::size_t,
                 CUdeviceptr, unsigned long long) {
  Card& card = the_card();
  const std::lock_guard lock(card.mutex);
  *address = card.range(bytes);
  return CUDA_SUCCESS;
}
CUresult unreserve(CUdeviceptr, std::size_t) { return CUDA_SUCCESS; }
CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                const CUmemAllocationProp*, unsigned long long) {
  Card& card = the_card();
  const std::lock_guard lock(card.mutex);
  ++card.calls.created;
  if (!card.take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = card.next_handle++;
  card.created[*handle] = bytes;
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle handle) {
  Card& card = the_card();
  const std::lock_guard lock(card.mutex);
  ++card.calls.released;
  card.give(card.created, handle);
  return CUDA_SUCCESS;
}
CUresult map(CUdeviceptr, std::size_t, std::size_t,
             CUmemGenericAllocationHandle, unsigned long long) {
  Card& card = the_card();
  const std::lock_guard lock(card.mutex);
  ++card.calls.mapped;
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr, std::size_t) {
  Card& card = the_card();
  const std::lock_guard lock(card.mutex);
  ++card.calls.unmapped;
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr, std::size_t, const CUmemAccessDesc*,
                    std::size_t) {
  return CUDA_SUCCESS;
}
CUresult granularity(std::size_t* bytes, const CUmemAllocationProp*,
                     CUmemAllocationGranularity_flags) {
  *bytes = kPage;
  return CUDA_SUCCESS;
}
CUresult attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0; // nothing that is optional
  return CUDA_SUCCESS;
}
// PyTorch looks up more than it calls.
CUresult unexpected() {
  std::fputs("card: a call of the driver that it does not have\n", stderr);
  std::abort();
}

void* driver_call(std::string_view name) {
  struct Entry {
    std::string_view name;
    void* call;
  };
  static const Entry kEntries[] = {
      {"cuMemAddressReserve", reinterpret_cast<void*>(reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(unreserve)},
      {"cuMemCreate", reinterpret_cast<void*>(create)},
      {"cuMemRelease", reinterpret_cast<void*>(release)},
      {"cuMemMap", reinterpret_cast<void*>(map)},
      {"cuMemUnmap", reinterpret_cast<void*>(unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(set_access)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(granularity)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(attribute)},
  };
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.call;
  }
  return reinterpret_cast<void*>(unexpected);
}

} // namespace

namespace card {

void set_bytes(std::size_t bytes) { the_card().bytes = bytes; }

Calls calls() {
  Card& card = the_card();
  const std::lock_guard lock(card.mutex);
  return card.calls;
}

} // namespace card

// ---- the runtime ------------------------------------------------------------

extern "C" {

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  Card& card = the_card();
  const std::lock_guard lock(card.mutex);
  ++card.calls.allocations;
  if (!card.take(bytes)) return card.last_error = cudaErrorMemoryAllocation;
  const std::uint64_t at = card.range(bytes);
  card.allocated[at] = bytes;
  *address = reinterpret_cast<void*>(at);
  return cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  if (address == nullptr) return cudaSuccess;
  Card& card = the_card();
  const std::lock_guard lock(card.mutex);
  ++card.calls.frees;
  card.give(card.allocated, reinterpret_cast<std::uint64_t>(address));
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  Card& card = the_card();
  const std::lock_guard lock(card.mutex);
  *total = card.bytes;
  *free = card.bytes - card.used;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  Card& card = the_card();
  const std::lock_guard lock(card.mutex);
  return std::exchange(card.last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() { return the_card().last_error; }
const char* cudaGetErrorString(cudaError_t) { return "the card is full"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "card");
  properties->totalGlobalMem = the_card().bytes;
  properties->major = 9;
  properties->multiProcessorCount = 132;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return cudaSuccess;
}

// Nothing runs, so all is complete.
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t,
                                  cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** call, unsigned, unsigned long long,
    cudaDriverEntryPointQueryResult* result) {
  *call = driver_call(name);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

} // extern "C"
