#include "backend/runtime/cuda/cuda_device_memory.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>

#include "backend/runtime/byte_size.h"
#include "backend/runtime/check.h"

namespace chameleon::runtime {

namespace {

constexpr std::size_t kPlainPercent = 90; // of what is free

CUmemAllocationProp properties_of(CUdevice device) {
  CUmemAllocationProp result{};
  result.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  result.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return result;
}

} // namespace

Result<std::unique_ptr<CudaDeviceMemory>> CudaDeviceMemory::create(
    const CudaContext& context, std::size_t unit_bytes) {
  const bool maps =
      context.attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                        0) != 0;
  std::size_t granularity = 1;
  if (maps) {
    const CUmemAllocationProp properties = properties_of(context.device());
    const CUresult result = context.driver().cuMemGetAllocationGranularity(
        &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (Error error = context.check(result, "cuMemGetAllocationGranularity")) {
      return error;
    }
  }
  unit_bytes = std::bit_ceil(std::max(unit_bytes, granularity));
  CHAMELEON_CHECK(unit_bytes % granularity == 0,
                  "the driver's granularity is no power of two");
  return std::unique_ptr<CudaDeviceMemory>(
      new CudaDeviceMemory(context, unit_bytes, maps));
}

Result<std::byte*> CudaDeviceMemory::reserve(std::size_t bytes) {
  if (!maps_) return allocatePlain(bytes);
  const std::size_t rounded = (bytes + unit_bytes_ - 1) & ~(unit_bytes_ - 1);
  CUdeviceptr base = 0;
  const CUresult result = context_.driver().cuMemAddressReserve(
      &base, rounded, unit_bytes_, /*addr=*/0, /*flags=*/0);
  if (Error error = context_.check(result, "cuMemAddressReserve")) {
    return error;
  }
  return reinterpret_cast<std::byte*>(base);
}

Error CudaDeviceMemory::commit(std::byte* address, std::size_t bytes) {
  CHAMELEON_CHECK(
      (device_pointer(address) | bytes) % unit_bytes_ == 0 || !maps_,
      "a commit is unaligned");
  if (!maps_) return commitPlain(address, bytes);
  const CudaDriver& driver = context_.driver();
  std::size_t mapped = 0;
  Error error;
  while (mapped < bytes && !error) {
    error = mapUnit(device_pointer(address) + mapped);
    if (!error) mapped += unit_bytes_;
  }
  if (!error) {
    CUmemAccessDesc access{};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, context_.device()};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    error = context_.check(
        driver.cuMemSetAccess(device_pointer(address), bytes, &access, 1),
        "cuMemSetAccess");
  }
  // All or nothing; nobody has used what was mapped.
  if (error && mapped != 0) driver.cuMemUnmap(device_pointer(address), mapped);
  return error;
}

// The mapping keeps the memory alive: unmapping gives it back.
Error CudaDeviceMemory::mapUnit(CUdeviceptr address) {
  const CudaDriver& driver = context_.driver();
  const CUmemAllocationProp properties = properties_of(context_.device());
  CUmemGenericAllocationHandle handle = 0;
  if (Error error = context_.check(
          driver.cuMemCreate(&handle, unit_bytes_, &properties, /*flags=*/0),
          "cuMemCreate")) {
    return error;
  }
  Error error = context_.check(
      driver.cuMemMap(address, unit_bytes_, /*offset=*/0, handle, /*flags=*/0),
      "cuMemMap");
  driver.cuMemRelease(handle);
  return error;
}

Error CudaDeviceMemory::decommit(std::byte* address, std::size_t bytes) {
  if (!maps_) return {};
  CHAMELEON_CHECK((device_pointer(address) | bytes) % unit_bytes_ == 0,
                  "a decommit is unaligned");
  return context_.check(
      context_.driver().cuMemUnmap(device_pointer(address), bytes),
      "cuMemUnmap");
}

void CudaDeviceMemory::unreserve(std::byte* address,
                                 std::size_t bytes) noexcept {
  const CudaDriver& driver = context_.driver();
  if (maps_) {
    const std::size_t rounded = (bytes + unit_bytes_ - 1) & ~(unit_bytes_ - 1);
    driver.cuMemAddressFree(device_pointer(address), rounded);
    return;
  }
  const std::lock_guard lock(mutex_);
  CHAMELEON_CHECK(plain_.erase(address) == 1, "unreserve of no reservation");
  driver.cuMemFree(device_pointer(address));
}

// ---- without virtual memory management -------------------------------------

Result<std::byte*> CudaDeviceMemory::allocatePlain(std::size_t bytes) {
  const CudaDriver& driver = context_.driver();
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (Error error = context_.check(
          driver.cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo")) {
    return error;
  }
  const std::size_t taken = std::min(bytes, free_bytes / 100 * kPlainPercent);
  CUdeviceptr base = 0;
  if (Error error =
          context_.check(driver.cuMemAlloc(&base, taken), "cuMemAlloc")) {
    return error;
  }
  auto* const address = reinterpret_cast<std::byte*>(base);
  const std::lock_guard lock(mutex_);
  plain_[address] = taken;
  return address;
}

Error CudaDeviceMemory::commitPlain(const std::byte* address,
                                    std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto range = plain_.upper_bound(address);
  CHAMELEON_CHECK(range != plain_.begin(), "a commit outside of every range");
  range = std::prev(range);
  const auto end = static_cast<std::size_t>(address - range->first) + bytes;
  if (end <= range->second) return {};
  return {ErrorCode::kOutOfDeviceMemory,
          "this GPU has no virtual memory management, and " +
              format_bytes(range->second) +
              " of its memory were free at first use; lower hbm_budget"};
}

} // namespace chameleon::runtime
