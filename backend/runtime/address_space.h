// Address space of this process: mapped, inaccessible, aligned.
//
// Thread safety: no shared state.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/runtime/result.h"

namespace chameleon::runtime {

inline constexpr std::size_t kPageBytes = 4096;

// `bytes` of inaccessible address space, aligned to `alignment` (a power of
// two, at least a page). Costs no memory.
Result<std::byte*> reserve_address_space(std::size_t bytes,
                                         std::size_t alignment);

// Readable and writable zeros.
Result<std::byte*> map_memory(std::size_t bytes);

// Makes whole pages of reserved address space readable and writable, zeros at
// first. On an error they stay as they were.
Error open_address_space(std::byte* address, std::size_t bytes);
// Their memory is given back, and they are as they were reserved.
void close_address_space(std::byte* address, std::size_t bytes) noexcept;

// Gives every page of mapped memory its own physical one now, rather than when
// it is first written. Bytes stay as they are, and others may use them
// meanwhile. Where there is no memory nothing happens: who writes finds out.
void populate_memory(std::byte* address, std::size_t bytes) noexcept;
// The same page by page, where the system has no call for it.
void touch_memory(std::byte* address, std::size_t bytes) noexcept;

// REQUIRES: a range, or a part in whole pages, of what the above gave.
void unmap_memory(std::byte* address, std::size_t bytes) noexcept;

// A range of whole pages, at least one.
inline bool is_in_pages(const std::byte* address, std::size_t bytes) noexcept {
  return bytes != 0 &&
         (reinterpret_cast<std::uintptr_t>(address) | bytes) % kPageBytes == 0;
}

// What the system said when it refused `what` ("map"), from errno.
Error system_error(ErrorCode code, const char* what, std::size_t bytes);

} // namespace chameleon::runtime
