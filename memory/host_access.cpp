#include "memory/host_access.h"

#include <cstring>
#include <utility>

#include "backend/runtime/check.h"
#include "memory/host_pin.h"
#include "memory/room/out_of_memory.h"
#include "memory/space/fence_joiner.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::Stream;

namespace {

// What a link moves in about the time that a copy takes to start.
constexpr std::size_t kSmallReadBytes = 256 * 1024;
constexpr std::string_view kReadName = "a copy to the host";
constexpr std::string_view kWriteName = "a copy from the host";

} // namespace

Error HostAccess::read(Block& block, std::size_t offset, std::byte* destination,
                       std::size_t bytes, Stream stream) {
  CHAMELEON_CHECK(offset <= block.bytes && bytes <= block.bytes - offset,
                  "read() past the end of a block");
  if (bytes == 0) return {};
  const std::byte* source = nullptr;
  Position ready;
  bool unbacked = false;
  {
    PagerLock locked(core_);
    if (Error error = recomputer_.restoreFor(locked, {&block, Access::kRead},
                                             kReadName)) {
      return error;
    }
    residency_.settle(locked, block);
    if (block.lost) return lost_error(core_, block);
    unbacked = block.state() == BlockState::kUnbacked && !block.host_writing;
    if (block.host.extent != nullptr && !block.host_writing) {
      source = block.host.address + offset;
      ready = block.host.ready;
      pin_host_copy(locked, core_, block);
    }
  }
  if (source != nullptr) {
    // mutant: host-read-wait
    Error error = core_.streams.synchronize(ready);
    if (!error && core_.runtime.holdsData()) {
      std::memcpy(destination, source, bytes);
    }
    unpin_host_copy(core_, block);
    return error;
  }
  if (unbacked) {
    if (core_.runtime.holdsData()) std::memset(destination, 0, bytes);
    return {};
  }
  return readDevice(block, offset, destination, bytes, stream);
}

Error HostAccess::readDevice(Block& block, std::size_t offset,
                             std::byte* destination, std::size_t bytes,
                             Stream stream) {
  CallState call;
  const Operand operand{&block, Access::kRead};
  core_.counters.ops_base.fetch_add(1, std::memory_order_relaxed); // no op
  static constexpr OpKind kKind{.name = kReadName, .may_retry = true};
  if (Error error = pins_.begin(call, {kKind, stream, {&operand, 1}})) {
    return error;
  }
  const runtime::Copy copy{destination, block.device_address + offset, bytes};
  Position done;
  Error error;
  // mutant: small-read
  if (bytes <= kSmallReadBytes) {
    // On the caller's stream, which begin() has ordered behind the writes, as
    // native does it: the queue of copies out may hold gigabytes.
    const StreamIndex index = core_.streams.indexOf(stream);
    error = core_.runtime.readBack(stream, copy);
    done = core_.streams.advance(index);
    core_.streams.mark(index);
  } else {
    error = residency_.transfers().out({&copy, 1}, core_.uses().writesOf(block),
                                       done);
  }
  core_.uses().stamp(block, done);
  if (Error late = core_.streams.synchronize(done); late && !error) {
    error = std::move(late);
  }
  pins_.release(call);
  return error;
}

Error HostAccess::write(Block& block, std::size_t offset,
                        const std::byte* source, std::size_t bytes,
                        Stream stream) {
  CHAMELEON_CHECK(offset <= block.bytes && bytes <= block.bytes - offset,
                  "write() past the end of a block");
  if (bytes == 0) return {};
  HostPool::Place place;
  bool on_host = false;
  Fence before; // copies from and to the bytes about to be written
  {
    PagerLock locked(core_);
    table_.drainReleased(locked);
    if (Error error = recomputer_.restoreFor(locked, {&block, Access::kWrite},
                                             kWriteName)) {
      return error;
    }
    residency_.settle(locked, block);
    if (block.lost && bytes < block.bytes) return lost_error(core_, block);
    if (!block.host_writing && block.host_pins == 0) {
      const BlockState state = block.state();
      if (state == BlockState::kHost || state == BlockState::kEvicting) {
        mirror_.finishBefore(locked, block, before);
        place = {block.host.extent, block.host.address};
        core_.uses().addTo(before, core_.uses().hostUsesOf(block));
      } else if (state == BlockState::kUnbacked &&
                 core_.arena->freeBytes() + table_.spareBytes() <
                     block.rounded_bytes) {
        Shortage ignored;
        place = residency_.host().place(locked, block.rounded_bytes, ignored);
        if (place.extent != nullptr)
          core_.uses().addTo(before, place.extent->fence);
      }
      on_host = place.extent != nullptr;
    }
    if (on_host) {
      block.host_writing = true;
      pin_host_copy(locked, core_, block);
    }
  }
  if (!on_host) return writeDevice(block, offset, source, bytes, stream);

  // mutant: host-write-wait
  Error error = memory::synchronize(core_.streams, before);
  if (!error && core_.runtime.holdsData()) {
    std::memcpy(place.address + offset, source, bytes);
  }
  {
    const PagerLock locked(core_);
    block.host_writing = false;
    if (!error) {
      residency_.writtenOnHost(locked, block, place);
      core_.records.written(block, /*extends=*/false);
      table_.freeUnheld(locked);
      block.version.fetch_add(1, std::memory_order_relaxed);
    } else if (block.host.extent == nullptr) {
      core_.host_pool->free(place.extent, {});
    }
  }
  unpin_host_copy(core_, block);
  return error;
}

Error HostAccess::writeDevice(Block& block, std::size_t offset,
                              const std::byte* source, std::size_t bytes,
                              Stream stream) {
  CallState call;
  // What is overwritten whole may be a block that has lost its bytes.
  const bool whole = bytes == block.bytes;
  const Operand operand{&block, whole ? Access::kOverwrite : Access::kWrite};
  core_.counters.ops_base.fetch_add(1, std::memory_order_relaxed); // no op
  static constexpr OpKind kKind{.name = kWriteName};
  if (Error error = pins_.begin(call, {kKind, stream, {&operand, 1}})) {
    return error;
  }
  // What begin() made the compute stream wait for is part of the uses.
  const runtime::Copy copy{block.device_address + offset, source, bytes};
  Position done;
  Error error =
      residency_.transfers().in({&copy, 1}, core_.uses().usesOf(block), done);
  if (!done.none()) {
    core_.uses().stamp(block, done);
    block.last_write.store(done.word, std::memory_order_release);
    block.version.fetch_add(1, std::memory_order_relaxed);
  }
  if (Error late = core_.streams.synchronize(done); late && !error) {
    error = std::move(late);
  }
  if (!error) call.overwritten();
  pins_.release(call);
  return error;
}

} // namespace chameleon::memory
