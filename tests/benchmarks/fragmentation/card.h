// A card of some size without memory: it hands out addresses, counts bytes, and
// says when it is full. Beneath it are the calls of CUDA's runtime and driver
// that PyTorch's allocator makes (card.cpp); a program that has them uses them
// in place of CUDA's own.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace card {

// Calls of the driver, or of what asks the driver for the same.
struct Calls {
  std::uint64_t allocations = 0; // cudaMalloc
  std::uint64_t frees = 0;       // cudaFree
  std::uint64_t created = 0;     // cuMemCreate
  std::uint64_t released = 0;    // cuMemRelease
  std::uint64_t mapped = 0;      // cuMemMap, each with a cuMemSetAccess
  std::uint64_t unmapped = 0;    // cuMemUnmap
};

void set_bytes(std::size_t bytes); // before the first call
Calls calls();                     // so far

} // namespace card
