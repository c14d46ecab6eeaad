// The memory of emulated GPUs: host memory behind the driver's calls, mapped
// and protected as they say, so that an access to what is not mapped faults,
// and a copy of it is refused before it faults. Fresh memory holds garbage.
//
// Not thread safe. Methods return what the driver would.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <map>
#include <string>
#include <vector>

#include "backend/runtime/cpu/range_set.h"

namespace chameleon::support {

// What bytes are to a copy.
enum class MemoryKind {
  kDevice,   // mapped and accessible, or a plain allocation
  kUnmapped, // in a device range, not all of it mapped
  kPinned,   // host memory, all of it in one registration
  kMixed,    // host memory, in several registrations or partly in none
  kPageable, // any other
};

class EmulatedMemory {
 public:
  EmulatedMemory(int devices, std::size_t device_bytes, std::size_t granularity,
                 std::size_t register_limit);
  ~EmulatedMemory();
  EmulatedMemory(const EmulatedMemory&) = delete;
  EmulatedMemory& operator=(const EmulatedMemory&) = delete;

  CUresult reserve(std::size_t bytes, std::size_t alignment,
                   CUdeviceptr& address);
  CUresult unreserve(CUdeviceptr address, std::size_t bytes);
  CUresult create(int device, std::size_t bytes,
                  CUmemGenericAllocationHandle& handle);
  CUresult release(CUmemGenericAllocationHandle handle);
  CUresult map(CUdeviceptr address, std::size_t bytes,
               CUmemGenericAllocationHandle handle);
  // `devices`: which may use mapped memory from now on, by bit, besides those
  // that may already.
  CUresult setAccess(CUdeviceptr address, std::size_t bytes,
                     std::uint32_t devices);
  CUresult unmap(CUdeviceptr address, std::size_t bytes);
  CUresult allocate(int device, std::size_t bytes, CUdeviceptr& address);
  CUresult free(CUdeviceptr address, std::size_t& bytes);
  CUresult pin(std::uintptr_t address, std::size_t bytes);
  CUresult unpin(std::uintptr_t address, std::size_t& bytes);

  MemoryKind kindOf(runtime::Interval bytes) const;
  // Of device memory: whether it is mapped, else it is a plain allocation; and
  // whether a device has access to it, by setAccess() or as its own.
  bool isMapped(runtime::Interval bytes) const;
  bool mayUse(int device, runtime::Interval bytes) const;
  std::size_t usedBytes(int device) const {
    return used_bytes_[static_cast<std::size_t>(device)];
  }
  std::size_t pinnedBytes() const { return pinned_bytes_; }
  std::size_t granularity() const { return granularity_; }
  std::size_t deviceBytes() const { return device_bytes_; }
  // One line for each kind of thing that was not given back.
  std::vector<std::string> leaks() const;

 private:
  struct Physical {
    int device;
    std::size_t bytes;
    std::size_t mappings;
    bool held; // not released yet
  };
  struct Mapping {
    std::size_t bytes;
    CUmemGenericAllocationHandle handle;
    std::uint32_t devices; // that have access, by bit
  };
  struct Plain {
    int device;
    std::size_t bytes;
  };
  bool take(int device, std::size_t bytes);
  void dropIfUnused(CUmemGenericAllocationHandle handle);
  bool accessible(runtime::Interval bytes) const;

  const std::size_t device_bytes_;
  const std::size_t granularity_;
  const std::size_t register_limit_;
  std::vector<std::size_t> used_bytes_; // by device
  std::size_t pinned_bytes_ = 0;
  CUmemGenericAllocationHandle next_handle_ = 0x7000;
  std::map<std::uintptr_t, std::size_t> reserved_;
  std::map<CUmemGenericAllocationHandle, Physical> physical_;
  std::map<std::uintptr_t, Mapping> mappings_;
  std::map<std::uintptr_t, Plain> plain_;
  std::map<std::uintptr_t, std::size_t> pinned_;
};

} // namespace chameleon::support
