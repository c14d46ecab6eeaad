#include "memory/space/logical_space.h"

#include <algorithm>
#include <bit>
#include <string>

#include "backend/runtime/check.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::Result;

Result<std::unique_ptr<LogicalSpace>> LogicalSpace::create(
    runtime::DeviceRuntime& runtime, std::size_t preferred_bytes,
    std::size_t min_bytes) {
  CHAMELEON_CHECK(min_bytes > 0 && preferred_bytes >= min_bytes &&
                      preferred_bytes % kAlignment == 0,
                  "a logical range is empty or unaligned");
  for (std::size_t bytes = preferred_bytes;; bytes /= 2) {
    Result<std::byte*> base = runtime.reserveAddresses(bytes);
    if (base.ok()) {
      CHAMELEON_CHECK(reinterpret_cast<std::uintptr_t>(*base) % kAlignment == 0,
                      "a reserved range is unaligned");
      return std::unique_ptr<LogicalSpace>(
          new LogicalSpace(runtime, *base, bytes));
    }
    if (bytes / 2 < min_bytes || bytes / 2 % kAlignment != 0) {
      return Error(base.error().code(),
                   "cannot reserve " + std::to_string(bytes) +
                       " bytes of address space for logical addresses (raise "
                       "the limit on virtual memory, ulimit -v): " +
                       base.error().message());
    }
  }
}

LogicalSpace::LogicalSpace(runtime::DeviceRuntime& runtime, std::byte* base,
                           std::size_t range_bytes)
    : runtime_(runtime),
      base_(base),
      range_bytes_(range_bytes),
      untouched_end_(range_bytes) {}

LogicalSpace::~LogicalSpace() { runtime_.unreserve(base_, range_bytes_); }

std::byte* LogicalSpace::allocate(std::size_t bytes) {
  CHAMELEON_DCHECK(bytes > 0, "an address for no bytes");
  if (bytes > range_bytes_) return nullptr;
  const std::size_t size_class = classOf(bytes);
  const std::size_t class_bytes = bytesOf(size_class);
  std::size_t offset;
  if (std::vector<std::size_t>& freed = freed_[size_class]; !freed.empty()) {
    offset = freed.back();
    freed.pop_back();
  } else {
    if (untouched_end_ - untouched_begin_ < class_bytes &&
        !refill(size_class)) {
      return nullptr;
    }
    offset = untouched_begin_;
    untouched_begin_ += class_bytes;
  }
  ++live_count_;
  live_bytes_ += class_bytes;
  return base_ + offset;
}

void LogicalSpace::free(std::byte* address, std::size_t bytes) {
  const std::size_t size_class = classOf(bytes);
  const std::size_t class_bytes = bytesOf(size_class);
  CHAMELEON_CHECK(
      contains(address) && live_count_ > 0 && live_bytes_ >= class_bytes,
      "a logical address is freed that is not live");
  freed_[size_class].push_back(static_cast<std::size_t>(address - base_));
  --live_count_;
  live_bytes_ -= class_bytes;
}

std::size_t LogicalSpace::classBytes(std::size_t bytes) noexcept {
  return bytesOf(classOf(bytes));
}

// In units of kAlignment: 1, 2, 3, 4, then 5, 6, 7, 8, then 10, 12, 14, 16 ...
std::size_t LogicalSpace::classOf(std::size_t bytes) noexcept {
  const std::size_t last_unit = (bytes - 1) / kAlignment;
  if (last_unit < 4) return last_unit;
  const auto bits = static_cast<unsigned>(std::bit_width(last_unit)) - 1;
  return std::size_t{4} * (bits - 1) + (last_unit >> (bits - 2) & 3);
}

std::size_t LogicalSpace::bytesOf(std::size_t size_class) noexcept {
  if (size_class < 4) return (size_class + 1) * kAlignment;
  return (size_class % 4 + 5) << (size_class / 4 - 1) << 9;
}

// Makes a freed range of a larger class the untouched one; the rest of the old
// one goes to the stacks, in pieces of the classes' sizes.
bool LogicalSpace::refill(std::size_t size_class) {
  std::size_t larger = kClasses;
  while (larger > size_class + 1 && freed_[larger - 1].empty()) --larger;
  if (--larger == size_class) return false;
  while (untouched_begin_ < untouched_end_) {
    const std::size_t rest = untouched_end_ - untouched_begin_;
    std::size_t piece = classOf(rest);
    if (piece > 0 && bytesOf(piece) > rest) --piece;
    freed_[piece].push_back(untouched_begin_);
    untouched_begin_ += bytesOf(piece);
  }
  untouched_begin_ = freed_[larger].back();
  untouched_end_ = untouched_begin_ + bytesOf(larger);
  freed_[larger].pop_back();
  return true;
}

void LogicalSpace::check() const {
  CHAMELEON_CHECK(
      untouched_begin_ <= untouched_end_ && untouched_end_ <= range_bytes_,
      "the untouched part lies outside of the range");
  struct Piece {
    std::size_t offset;
    std::size_t bytes;
  };
  std::vector<Piece> pieces{
      {untouched_begin_, untouched_end_ - untouched_begin_}};
  for (std::size_t i = 0; i < kClasses; ++i) {
    for (const std::size_t offset : freed_[i]) {
      CHAMELEON_CHECK(offset % kAlignment == 0, "an unaligned address");
      pieces.push_back({offset, bytesOf(i)});
    }
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& left, const Piece& right) {
              return left.offset != right.offset ? left.offset < right.offset
                                                 : left.bytes < right.bytes;
            });
  std::size_t end = 0;
  std::size_t free_bytes = 0;
  for (const Piece& piece : pieces) {
    CHAMELEON_CHECK(piece.offset >= end, "L1: an address was freed twice");
    end = piece.offset + piece.bytes;
    free_bytes += piece.bytes;
  }
  CHAMELEON_CHECK(
      end <= range_bytes_ && free_bytes + live_bytes_ == range_bytes_,
      "L2: parts of the range are lost");
}

} // namespace chameleon::memory
