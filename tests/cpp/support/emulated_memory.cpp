#include "tests/cpp/support/emulated_memory.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <sys/mman.h>

#include "backend/runtime/address_space.h"
#include "backend/runtime/check.h"

namespace chameleon::support {

using runtime::Interval;

namespace {

constexpr int kGarbage = 0xcb;

std::byte* bytes_at(std::uintptr_t address) {
  return reinterpret_cast<std::byte*>(address);
}

void protect(std::uintptr_t address, std::size_t bytes, int protection) {
  CHAMELEON_CHECK(mprotect(bytes_at(address), bytes, protection) == 0,
                  "mprotect of emulated memory");
}

// The entry of a map of ranges by begin that holds `address`.
template <typename Map>
typename Map::const_iterator holder(const Map& map, std::uintptr_t address) {
  auto entry = map.upper_bound(address);
  return entry == map.begin() ? map.end() : std::prev(entry);
}

} // namespace

EmulatedMemory::EmulatedMemory(int devices, std::size_t device_bytes,
                               std::size_t granularity,
                               std::size_t register_limit)
    : device_bytes_(device_bytes),
      granularity_(granularity),
      register_limit_(register_limit),
      used_bytes_(static_cast<std::size_t>(devices)) {}

EmulatedMemory::~EmulatedMemory() {
  for (const auto& [address, bytes] : reserved_) {
    runtime::unmap_memory(bytes_at(address), bytes);
  }
  for (const auto& [address, plain] : plain_) {
    runtime::unmap_memory(bytes_at(address), plain.bytes);
  }
}

CUresult EmulatedMemory::reserve(std::size_t bytes, std::size_t alignment,
                                 CUdeviceptr& address) {
  if (bytes == 0 || bytes % granularity_ != 0) return CUDA_ERROR_INVALID_VALUE;
  auto base =
      runtime::reserve_address_space(bytes, std::max(alignment, granularity_));
  if (!base.ok()) return CUDA_ERROR_OUT_OF_MEMORY;
  address = reinterpret_cast<CUdeviceptr>(*base);
  reserved_[address] = bytes;
  return CUDA_SUCCESS;
}

CUresult EmulatedMemory::unreserve(CUdeviceptr address, std::size_t bytes) {
  const auto found = reserved_.find(address);
  if (found == reserved_.end() || found->second != bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto mapping = mappings_.lower_bound(address);
  if (mapping != mappings_.end() && mapping->first < address + bytes) {
    return CUDA_ERROR_INVALID_VALUE; // still mapped
  }
  runtime::unmap_memory(bytes_at(address), bytes);
  reserved_.erase(found);
  return CUDA_SUCCESS;
}

CUresult EmulatedMemory::create(int device, std::size_t bytes,
                                CUmemGenericAllocationHandle& handle) {
  if (bytes == 0 || bytes % granularity_ != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!take(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  handle = ++next_handle_;
  physical_[handle] = {device, bytes, 0, true};
  return CUDA_SUCCESS;
}

CUresult EmulatedMemory::release(CUmemGenericAllocationHandle handle) {
  const auto found = physical_.find(handle);
  if (found == physical_.end() || !found->second.held) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  found->second.held = false;
  dropIfUnused(handle);
  return CUDA_SUCCESS;
}

CUresult EmulatedMemory::map(CUdeviceptr address, std::size_t bytes,
                             CUmemGenericAllocationHandle handle) {
  const auto physical = physical_.find(handle);
  const auto range = holder(reserved_, address);
  if (physical == physical_.end() || !physical->second.held ||
      physical->second.bytes != bytes || range == reserved_.end() ||
      address + bytes > range->first + range->second) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto before = holder(mappings_, address);
  const auto after = mappings_.lower_bound(address);
  if ((before != mappings_.end() &&
       before->first + before->second.bytes > address) ||
      (after != mappings_.end() && after->first < address + bytes)) {
    return CUDA_ERROR_INVALID_VALUE; // mapped already
  }
  mappings_[address] = {bytes, handle, 0};
  ++physical->second.mappings;
  return CUDA_SUCCESS;
}

CUresult EmulatedMemory::setAccess(CUdeviceptr address, std::size_t bytes,
                                   std::uint32_t devices) {
  std::uintptr_t at = address;
  while (at < address + bytes) {
    const auto mapping = mappings_.find(at);
    if (mapping == mappings_.end()) return CUDA_ERROR_INVALID_VALUE;
    at += mapping->second.bytes;
  }
  if (at != address + bytes) return CUDA_ERROR_INVALID_VALUE;
  protect(address, bytes, PROT_READ | PROT_WRITE);
  for (auto mapping = mappings_.find(address);
       mapping != mappings_.end() && mapping->first < at; ++mapping) {
    auto& [begin, it] = *mapping;
    if (it.devices == 0) std::memset(bytes_at(begin), kGarbage, it.bytes);
    it.devices |= devices;
  }
  return CUDA_SUCCESS;
}

CUresult EmulatedMemory::unmap(CUdeviceptr address, std::size_t bytes) {
  std::uintptr_t at = address;
  while (at < address + bytes) { // whole mappings only
    const auto mapping = mappings_.find(at);
    if (mapping == mappings_.end()) return CUDA_ERROR_INVALID_VALUE;
    at += mapping->second.bytes;
  }
  if (at != address + bytes) return CUDA_ERROR_INVALID_VALUE;
  (void)madvise(bytes_at(address), bytes, MADV_DONTNEED);
  protect(address, bytes, PROT_NONE);
  for (auto mapping = mappings_.find(address);
       mapping != mappings_.end() && mapping->first < at;) {
    const CUmemGenericAllocationHandle handle = mapping->second.handle;
    mapping = mappings_.erase(mapping);
    --physical_.at(handle).mappings;
    dropIfUnused(handle);
  }
  return CUDA_SUCCESS;
}

CUresult EmulatedMemory::allocate(int device, std::size_t bytes,
                                  CUdeviceptr& address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!take(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto mapped = runtime::map_memory(bytes);
  CHAMELEON_CHECK(mapped.ok(), "the host has no memory for the emulated GPU");
  address = reinterpret_cast<CUdeviceptr>(*mapped);
  plain_[address] = {device, bytes};
  return CUDA_SUCCESS;
}

CUresult EmulatedMemory::free(CUdeviceptr address, std::size_t& bytes) {
  const auto found = plain_.find(address);
  if (found == plain_.end()) return CUDA_ERROR_INVALID_VALUE;
  bytes = found->second.bytes;
  used_bytes_[static_cast<std::size_t>(found->second.device)] -= bytes;
  runtime::unmap_memory(bytes_at(address), bytes);
  plain_.erase(found);
  return CUDA_SUCCESS;
}

CUresult EmulatedMemory::pin(std::uintptr_t address, std::size_t bytes) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (kindOf({address, address + bytes}) != MemoryKind::kPageable) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  if (pinned_bytes_ + bytes > register_limit_) return CUDA_ERROR_OUT_OF_MEMORY;
  pinned_[address] = bytes;
  pinned_bytes_ += bytes;
  return CUDA_SUCCESS;
}

CUresult EmulatedMemory::unpin(std::uintptr_t address, std::size_t& bytes) {
  const auto found = pinned_.find(address);
  if (found == pinned_.end()) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  bytes = found->second;
  pinned_bytes_ -= bytes;
  pinned_.erase(found);
  return CUDA_SUCCESS;
}

MemoryKind EmulatedMemory::kindOf(Interval bytes) const {
  const auto overlaps = [&](const auto& map, auto size_of) {
    const auto before = holder(map, bytes.end - 1);
    return before != map.end() &&
           before->first + size_of(before->second) > bytes.begin;
  };
  const auto size = [](std::size_t value) { return value; };
  if (overlaps(plain_, [](const Plain& plain) { return plain.bytes; })) {
    const auto plain = holder(plain_, bytes.begin);
    return plain != plain_.end() &&
                   bytes.end <= plain->first + plain->second.bytes
               ? MemoryKind::kDevice
               : MemoryKind::kUnmapped;
  }
  if (overlaps(reserved_, size)) {
    return accessible(bytes) ? MemoryKind::kDevice : MemoryKind::kUnmapped;
  }
  if (!overlaps(pinned_, size)) return MemoryKind::kPageable;
  // Registrations that touch each other are two all the same.
  const auto pinned = holder(pinned_, bytes.begin);
  return pinned != pinned_.end() && bytes.end <= pinned->first + pinned->second
             ? MemoryKind::kPinned
             : MemoryKind::kMixed;
}

bool EmulatedMemory::isMapped(Interval bytes) const {
  const auto range = holder(reserved_, bytes.begin);
  return range != reserved_.end() && bytes.begin < range->first + range->second;
}

bool EmulatedMemory::mayUse(int device, Interval bytes) const {
  if (!isMapped(bytes)) {
    return holder(plain_, bytes.begin)->second.device == device;
  }
  for (auto mapping = holder(mappings_, bytes.begin);
       mapping != mappings_.end() && mapping->first < bytes.end; ++mapping) {
    if ((mapping->second.devices >> device & 1) == 0) return false;
  }
  return true;
}

bool EmulatedMemory::accessible(Interval bytes) const {
  std::uintptr_t at = bytes.begin;
  while (at < bytes.end) {
    const auto mapping = holder(mappings_, at);
    if (mapping == mappings_.end() || mapping->second.devices == 0 ||
        mapping->first + mapping->second.bytes <= at) {
      return false;
    }
    at = mapping->first + mapping->second.bytes;
  }
  return true;
}

bool EmulatedMemory::take(int device, std::size_t bytes) {
  std::size_t& used = used_bytes_[static_cast<std::size_t>(device)];
  if (bytes > device_bytes_ - used) return false;
  used += bytes;
  return true;
}

void EmulatedMemory::dropIfUnused(CUmemGenericAllocationHandle handle) {
  const auto found = physical_.find(handle);
  if (found->second.held || found->second.mappings != 0) return;
  used_bytes_[static_cast<std::size_t>(found->second.device)] -=
      found->second.bytes;
  physical_.erase(found);
}

std::vector<std::string> EmulatedMemory::leaks() const {
  std::vector<std::string> result;
  const auto report = [&](std::size_t count, const char* what) {
    if (count != 0) {
      result.push_back(std::to_string(count) + " " + what + " leaked");
    }
  };
  report(reserved_.size(), "address ranges");
  report(physical_.size(), "physical allocations");
  report(mappings_.size(), "mappings");
  report(plain_.size(), "allocations");
  report(pinned_.size(), "registrations of host memory");
  return result;
}

} // namespace chameleon::support
