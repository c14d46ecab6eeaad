// Copies between blocks and ordinary host memory. Both directions block their
// caller, and prefer the host copy of a block to a fault.
#include <cstring>

#include "backend/runtime/check.h"
#include "memory/fence_joiner.h"
#include "memory/pager_impl.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::Stream;

namespace {

// What a link moves in about the time that a copy takes to start.
constexpr std::size_t kSmallReadBytes = 256 * 1024;
constexpr std::string_view kReadName = "a copy to the host";
constexpr std::string_view kWriteName = "a copy from the host";

} // namespace

Error PagerImpl::read(Block& block, std::size_t offset, std::byte* destination,
                      std::size_t bytes, Stream stream) {
  CHAMELEON_CHECK(offset <= block.bytes && bytes <= block.bytes - offset,
                  "read() past the end of a block");
  if (bytes == 0) return {};
  const std::byte* source = nullptr;
  Position ready;
  bool unbacked = false;
  {
    Lock lock(*this);
    if (Error error = restoreFor(lock, {&block, Access::kRead}, kReadName)) {
      return error;
    }
    settle(block);
    if (block.lost) return lostError(block);
    unbacked = block.state() == BlockState::kUnbacked && !block.host_writing;
    if (block.host != nullptr && !block.host_writing) {
      source = block.host_address + offset;
      ready = block.host_ready;
      beginHostAccess(block);
    }
  }
  if (source != nullptr) {
    Error error = timelines_.synchronize(ready);
    if (!error && runtime_.holdsData()) {
      std::memcpy(destination, source, bytes);
    }
    endHostAccess(block);
    return error;
  }
  if (unbacked) {
    if (runtime_.holdsData()) std::memset(destination, 0, bytes);
    return {};
  }
  return readDevice(block, offset, destination, bytes, stream);
}

Error PagerImpl::readDevice(Block& block, std::size_t offset,
                            std::byte* destination, std::size_t bytes,
                            Stream stream) {
  Call call;
  const Operand operand{&block, Access::kRead};
  counters_.ops_base.fetch_add(1, std::memory_order_relaxed); // no op
  static constexpr OpKind kKind{.name = kReadName, .may_retry = true};
  if (Error error = begin(call, {kKind, stream, {&operand, 1}})) {
    return error;
  }
  const runtime::Copy copy{destination, block.device_address + offset, bytes};
  Position done;
  Error error;
  if (bytes <= kSmallReadBytes) {
    // On the caller's stream, which begin() has ordered behind the writes, as
    // native does it: the queue of copies out may hold gigabytes.
    const StreamIndex index = timelines_.indexOf(stream);
    error = runtime_.readBack(stream, copy);
    done = timelines_.advance(index);
    timelines_.mark(index);
  } else {
    error = transfers_.out({&copy, 1}, writesOf(block), done);
  }
  stamp(block, done);
  if (Error late = timelines_.synchronize(done); late && !error) {
    error = std::move(late);
  }
  leave(call);
  return error;
}

Error PagerImpl::write(Block& block, std::size_t offset,
                       const std::byte* source, std::size_t bytes,
                       Stream stream) {
  CHAMELEON_CHECK(offset <= block.bytes && bytes <= block.bytes - offset,
                  "write() past the end of a block");
  if (bytes == 0) return {};
  HostPool::Place place;
  bool on_host = false;
  Fence before; // copies from and to the bytes about to be written
  {
    Lock lock(*this);
    drainReleased();
    if (Error error = restoreFor(lock, {&block, Access::kWrite}, kWriteName)) {
      return error;
    }
    settle(block);
    if (block.lost && bytes < block.bytes) return lostError(block);
    if (!block.host_writing && block.host_pins == 0) {
      const BlockState state = block.state();
      if (state == BlockState::kHost || state == BlockState::kEvicting) {
        place = {block.host, block.host_address};
        before = hostUsesOf(block);
      } else if (state == BlockState::kUnbacked &&
                 arena_->freeBytes() + spares_.bytes() < block.rounded_bytes) {
        Shortage ignored;
        place = hostPlace(block.rounded_bytes, ignored);
        if (place.extent != nullptr) before = place.extent->fence;
      }
      on_host = place.extent != nullptr;
    }
    if (on_host) {
      block.host_writing = true;
      beginHostAccess(block);
    }
  }
  if (!on_host) return writeDevice(block, offset, source, bytes, stream);

  Error error = memory::synchronize(timelines_, before);
  if (!error && runtime_.holdsData()) {
    std::memcpy(place.address + offset, source, bytes);
  }
  {
    const Lock lock(*this);
    block.host_writing = false;
    const bool is_new = block.host == nullptr;
    if (error && is_new) {
      host_pool_->free(place.extent, {});
    } else if (!error) {
      if (is_new) {
        place.extent->fence.clear();
        block.host = place.extent;
        block.host_address = place.address;
        block.lost = false;
      }
      block.become(Block::stateBits(BlockState::kHost));
      recreation_.written(block, /*extends=*/false);
      freeUnheld();
      block.host_ready = {};
      block.host_read = {};
      block.version.fetch_add(1, std::memory_order_relaxed);
    }
  }
  endHostAccess(block);
  return error;
}

Error PagerImpl::writeDevice(Block& block, std::size_t offset,
                             const std::byte* source, std::size_t bytes,
                             Stream stream) {
  Call call;
  // What is overwritten whole may be a block that has lost its bytes.
  const bool whole = bytes == block.bytes;
  const Operand operand{&block, whole ? Access::kOverwrite : Access::kWrite};
  counters_.ops_base.fetch_add(1, std::memory_order_relaxed); // no op
  static constexpr OpKind kKind{.name = kWriteName};
  if (Error error = begin(call, {kKind, stream, {&operand, 1}})) {
    return error;
  }
  // What begin() made the compute stream wait for is part of the uses.
  const runtime::Copy copy{block.device_address + offset, source, bytes};
  Position done;
  Error error = transfers_.in({&copy, 1}, usesOf(block), done);
  if (!done.none()) {
    stamp(block, done);
    block.last_write.store(done.word, std::memory_order_release);
    block.version.fetch_add(1, std::memory_order_relaxed);
  }
  if (Error late = timelines_.synchronize(done); late && !error) {
    error = std::move(late);
  }
  if (!error) call.overwritten();
  leave(call);
  return error;
}

// A host thread at the host copy counts as a call: who needs the copy to go
// waits for it as for any other.
void PagerImpl::beginHostAccess(Block& block) noexcept {
  ++block.host_pins;
  admission_.add(1, 0);
}

void PagerImpl::endHostAccess(Block& block) noexcept {
  {
    const Lock lock(*this);
    --block.host_pins;
  }
  admission_.subtract(1, 0);
  admission_.wake();
}

} // namespace chameleon::memory
