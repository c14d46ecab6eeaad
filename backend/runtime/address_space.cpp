#include "backend/runtime/address_space.h"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/runtime/byte_size.h"
#include "backend/runtime/check.h"

namespace chameleon::runtime {

namespace {

Result<std::byte*> map(std::size_t bytes, int protection, int flags) {
  void* const address =
      mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags,
           /*fd=*/-1, /*offset=*/0);
  if (address == MAP_FAILED) {
    return system_error(ErrorCode::kOutOfHostMemory, "map", bytes);
  }
  return static_cast<std::byte*>(address);
}

} // namespace

Error system_error(ErrorCode code, const char* what, std::size_t bytes) {
  const int number = errno;
  return {code, std::string("cannot ") + what + " " + format_bytes(bytes) +
                    ": " + std::strerror(number)};
}

Result<std::byte*> reserve_address_space(std::size_t bytes,
                                         std::size_t alignment) {
  // mmap aligns to pages only: map more, give the ends back.
  Result<std::byte*> mapped = map(bytes + alignment, PROT_NONE, MAP_NORESERVE);
  if (!mapped.ok()) return mapped;
  const auto start = reinterpret_cast<std::uintptr_t>(*mapped);
  const std::size_t before = alignment - start % alignment;
  std::byte* const aligned = *mapped + before;
  unmap_memory(*mapped, before);
  const std::size_t after = alignment - before;
  const auto page = static_cast<std::size_t>(getpagesize());
  const std::size_t end = (bytes + page - 1) / page * page;
  if (after != 0) unmap_memory(aligned + end, after);
  return aligned;
}

Result<std::byte*> map_memory(std::size_t bytes) {
  return map(bytes, PROT_READ | PROT_WRITE, /*flags=*/0);
}

Error open_address_space(std::byte* address, std::size_t bytes) {
  if (mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0) return {};
  return system_error(ErrorCode::kOutOfHostMemory, "map", bytes);
}

void close_address_space(std::byte* address, std::size_t bytes) noexcept {
  // Without a moment in which the addresses are somebody else's to map.
  const void* const mapped =
      mmap(address, bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, /*fd=*/-1,
           /*offset=*/0);
  CHAMELEON_CHECK(mapped == address, "address space could not be closed");
}

void populate_memory(std::byte* address, std::size_t bytes) noexcept {
#ifndef MADV_POPULATE_WRITE
  constexpr int MADV_POPULATE_WRITE = 23; // as Linux has it since 5.14
#endif
  if (madvise(address, bytes, MADV_POPULATE_WRITE) != 0 && errno == EINVAL) {
    touch_memory(address, bytes);
  }
}

void touch_memory(std::byte* address, std::size_t bytes) noexcept {
  const auto page = static_cast<std::size_t>(getpagesize());
  for (std::size_t at = 0; at < bytes; at += page) {
    // Whoever writes there at the same time is not undone.
    std::atomic_ref(reinterpret_cast<unsigned char&>(address[at]))
        .fetch_or(0, std::memory_order_relaxed);
  }
}

void unmap_memory(std::byte* address, std::size_t bytes) noexcept {
  CHAMELEON_CHECK(munmap(address, bytes) == 0, "munmap of a bad range");
}

} // namespace chameleon::runtime
