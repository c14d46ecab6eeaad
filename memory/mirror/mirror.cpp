#include "memory/mirror/mirror.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "backend/runtime/check.h"
#include "memory/host_pin.h"
#include "memory/room/out_of_memory.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::Result;

namespace {

// A piece keeps the link for 0.6 ms of 50 GB/s.
constexpr std::size_t kPieceBytes = std::size_t{32} << 20;
// What a writer waits for, where the bytes are on the host.
constexpr std::size_t kHostPieceBytes = std::size_t{4} << 20;
// Evictions come in bursts, layer by layer: pieces between them make each one
// late, and there is time enough in the backward pass.
constexpr std::chrono::nanoseconds kQuiet = std::chrono::milliseconds(1);
constexpr int kMostNaps = 64; // then a piece goes all the same

} // namespace

Mirror::Added Mirror::add(const MirrorCopy& copy, BlockValue& value) {
  Block& block = *copy.block;
  CHAMELEON_CHECK(
      copy.offset <= block.bytes && copy.bytes <= block.bytes - copy.offset,
      "a mirror copy past the end of a block");
  const PagerLock locked(core_);
  residency_.settle(locked, block);
  std::uint64_t word = block.word.load(std::memory_order_acquire);
  const bool resident = Block::stateOf(word) == BlockState::kResident;
  const BlockValue now{block.identity.load(std::memory_order_relaxed),
                       block.version.load(std::memory_order_acquire)};
  const bool awaits_op = block.has_deferred_op.load(std::memory_order_acquire);
  if (Block::pinsOf(word) == 0 && !block.host_writing && !awaits_op &&
      value == now) {
    return Added::kUnchanged;
  }
  value = {};
  // No thread without the lock writes it from here on.
  if (!awaits_op &&
      (block.host_writing || (!resident && block.host.extent == nullptr) ||
       Block::pinsOf(word) != 0 ||
       !block.word.compare_exchange_strong(word, word | Block::kMirroredBit,
                                           std::memory_order_acq_rel))) {
    return Added::kInUse;
  }
  if (awaits_op) {
    awaiting_.fetch_add(1, std::memory_order_relaxed);
  } else {
    value = now;
  }
  if (entries_.empty()) rate_.commitBegins();
  const auto last = last_.try_emplace(&block, kNone).first;
  Entry& entry = entries_.emplace_back();
  entry.copy = copy;
  entry.awaits_op = awaits_op;
  entry.earlier = last->second;
  last->second = entries_.size() - 1;
  core_.counters.mirrored_bytes.fetch_add(static_cast<std::int64_t>(copy.bytes),
                                          std::memory_order_relaxed);
  if (core_.runtime.modelsTime()) {
    core_.watched.store(true, std::memory_order_relaxed); // calls advance()
  }
  return Added::kLater;
}

Result<bool> Mirror::finish() {
  Position quiet; // a copy of others, after which there was none for a while
  int naps = 0;
  Position last;
  Error failure;
  for (;;) {
    bool is_busy = false; // the link, or not for long enough
    Entry* entry = nullptr;
    Position before;                   // a host wait for this
    const std::byte* source = nullptr; // on the host
    std::size_t from_bytes = 0;
    std::size_t piece_bytes = 0;
    {
      const PagerLock locked(core_);
      entry = first(locked);
      if (entry == nullptr) {
        if (awaiting_ > 0 && !failure_) return false;
        failure = end(locked, last);
        break;
      }
      Block& block = *entry->copy.block;
      if (entry->leftBytes() == 0 || block.device != nullptr) {
        if (entry->leftBytes() > 0) {
          const Position out = residency_.transfers().lastOut();
          // Where time is modelled it does not pass here.
          is_busy = out != sent_ && out != quiet && naps < kMostNaps &&
                    !core_.runtime.modelsTime();
          if (is_busy) {
            quiet = out;
            ++naps;
          } else {
            submitFrom(locked, first_, kPieceBytes);
            naps = 0;
          }
        }
        before = is_busy ? quiet : entry->done;
      } else if (block.host.extent != nullptr) {
        // mutant: mirror-host-ready
        before = block.host.ready;
        from_bytes = entry->copied_bytes;
        piece_bytes = std::min(kHostPieceBytes, entry->leftBytes());
        source = block.host.address + entry->copy.offset + from_bytes;
        pin_host_copy(locked, core_, block);
      } else {
        fail(locked, lost_error(core_, block));
      }
    }
    Error error = core_.streams.synchronize(before);
    if (is_busy) std::this_thread::sleep_for(kQuiet);
    if (source != nullptr) {
      if (!error && core_.runtime.holdsData()) {
        std::memcpy(entry->copy.destination + from_bytes, source, piece_bytes);
      }
      unpin_host_copy(core_, *entry->copy.block);
    }
    const PagerLock locked(core_);
    if (error) {
      fail(locked, std::move(error));
    } else if (!entry->passed) {
      entry->copied_bytes =
          std::max(entry->copied_bytes, from_bytes + piece_bytes);
      if (entry->leftBytes() == 0 && core_.streams.passed(entry->done)) {
        pass(locked, *entry);
      }
    }
  }
  // Destinations of a mirror that failed may go, too.
  (void)core_.streams.synchronize(last).ok();
  if (failure) return failure;
  return true;
}

Error Mirror::end(const Locked& locked, Position& last) {
  for (Entry& entry : entries_) {
    if (entry.done.word > last.word) last = entry.done;
    if (!entry.passed) pass(locked, entry);
  }
  if (!entries_.empty()) rate_.commitEnded(std::exchange(sent_bytes_, 0));
  entries_.clear();
  last_.clear();
  first_ = 0;
  awaiting_ = 0;
  return std::exchange(failure_, {});
}

void Mirror::deferredOpDone(Block& block) noexcept {
  if (awaiting_.load(std::memory_order_relaxed) == 0) return;
  const PagerLock locked(core_);
  const auto last = last_.find(&block);
  if (last == last_.end()) return;
  for (std::size_t i = last->second; i != kNone; i = entries_[i].earlier) {
    Entry& entry = entries_[i];
    if (!std::exchange(entry.awaits_op, false)) continue;
    awaiting_.fetch_sub(1, std::memory_order_relaxed);
    block.word.fetch_or(Block::kMirroredBit, std::memory_order_acq_rel);
  }
}

void Mirror::finishBefore(const Locked& locked, Block& block,
                          Fence& waits) noexcept {
  const auto last = last_.find(&block);
  if (last == last_.end()) return;
  for (std::size_t i = last->second; i != kNone; i = entries_[i].earlier) {
    Entry& entry = entries_[i];
    // What it awaits is this write.
    if (entry.passed || entry.awaits_op) continue;
    if (entry.leftBytes() > 0 && !failure_) {
      // Whoever writes this block is likely to write the next ones, and each
      // batch waits before its bytes flow.
      block.device != nullptr
          ? submitFrom(locked, i, std::max(kPieceBytes, entry.leftBytes()))
          : copyRestFromHost(locked, entry);
    }
    // mutant: mirror-write-wait
    core_.uses().addTo(waits, entry.done);
    pass(locked, entry);
  }
}

void Mirror::advance(StreamIndex stream) {
  {
    const PagerLock locked(core_);
    if (first(locked) == nullptr) return; // no op waits for the host any more
  }
  (void)core_.streams.synchronize(core_.streams.advance(stream)).ok();
  const PagerLock locked(core_);
  while (Entry* const entry = first(locked)) {
    const Block& block = *entry->copy.block;
    if (entry->leftBytes() > 0 && block.device == nullptr) {
      if (block.host_pins > 0) break; // finish() is at it
      copyRestFromHost(locked, *entry);
    }
    if (entry->leftBytes() > 0 || !core_.streams.poll(entry->done)) break;
    pass(locked, *entry);
  }
  if (first(locked) != nullptr && isQuiet(locked)) {
    submitFrom(locked, first_, kPieceBytes);
  }
}

Mirror::Entry* Mirror::first(const Locked& /*locked*/) noexcept {
  if (failure_) return nullptr;
  while (first_ < entries_.size() && entries_[first_].passed) ++first_;
  for (std::size_t i = first_; i < entries_.size(); ++i) {
    if (!entries_[i].passed && !entries_[i].awaits_op) return &entries_[i];
  }
  return nullptr;
}

bool Mirror::isQuiet(const Locked& /*locked*/) noexcept {
  const Position last = residency_.transfers().lastOut();
  if (!core_.streams.poll(last)) {
    quiet_since_ns_ = core_.runtime.now_ns();
    return false;
  }
  if (last == sent_) return true; // ours, and nothing came after it
  if (last != seen_) {
    seen_ = last;
    quiet_since_ns_ = core_.runtime.now_ns();
  }
  return last.none() ||
         core_.runtime.now_ns() - quiet_since_ns_ >= kQuiet.count();
}

// Of as many entries in a row as are in HBM and fit in.
void Mirror::submitFrom(const Locked& locked, std::size_t index,
                        std::size_t left_bytes) noexcept {
  for (std::size_t i = index; i < entries_.size() && left_bytes > 0; ++i) {
    Entry& entry = entries_[i];
    if (entry.passed || entry.awaits_op || entry.leftBytes() == 0) continue;
    if (entry.copy.block->device == nullptr) break;
    const std::size_t bytes = std::min(left_bytes, entry.leftBytes());
    take(locked, entry, bytes);
    left_bytes -= bytes;
  }
  submit(locked);
}

void Mirror::take(const Locked& /*locked*/, Entry& entry, std::size_t bytes) {
  const MirrorCopy& copy = entry.copy;
  copies_.push_back(
      {copy.destination + entry.copied_bytes,
       copy.block->device_address + copy.offset + entry.copied_bytes, bytes});
  entry.copied_bytes += bytes;
  sent_bytes_ += static_cast<std::int64_t>(bytes);
  core_.counters.mirror_bytes_out.fetch_add(static_cast<std::int64_t>(bytes),
                                            std::memory_order_relaxed);
  taken_.push_back(&entry);
}

void Mirror::submit(const Locked& locked) noexcept {
  if (copies_.empty()) return;
  Fence before;
  for (const Entry* entry : taken_) {
    // mutant: mirror-writes
    core_.uses().addTo(before, core_.uses().writesOf(*entry->copy.block));
  }
  Position done;
  Error error = residency_.transfers().out(copies_, before, done);
  for (Entry* entry : taken_) {
    if (done.none()) continue; // nothing was submitted
    entry->done = done;
    // mutant: mirror-use
    core_.uses().stamp(*entry->copy.block, done); // who gets its extent waits
  }
  if (!done.none()) sent_ = done;
  copies_.clear();
  taken_.clear();
  if (error) fail(locked, std::move(error));
}

void Mirror::copyRestFromHost(const Locked& locked, Entry& entry) noexcept {
  const MirrorCopy& copy = entry.copy;
  const HostPlace& place = copy.block->host;
  if (place.extent == nullptr) {
    fail(locked, lost_error(core_, *copy.block));
    return;
  }
  Error error = core_.streams.synchronize(place.ready);
  if (error) {
    fail(locked, std::move(error));
    return;
  }
  if (core_.runtime.holdsData()) {
    std::memcpy(copy.destination + entry.copied_bytes,
                place.address + copy.offset + entry.copied_bytes,
                entry.leftBytes());
  }
  entry.copied_bytes = copy.bytes;
}

// The block's last one frees it for who writes it.
void Mirror::pass(const Locked& /*locked*/, Entry& entry) noexcept {
  entry.passed = true;
  Block& block = *entry.copy.block;
  for (std::size_t i = last_.at(&block); i != kNone; i = entries_[i].earlier) {
    if (!entries_[i].passed && !entries_[i].awaits_op) return;
  }
  // mutant: mirror-bit
  block.word.fetch_and(~Block::kMirroredBit, std::memory_order_acq_rel);
}

void Mirror::check(const Locked& /*locked*/, const Block& block) const {
  bool expected = false;
  const auto last = last_.find(&block);
  for (std::size_t i = last == last_.end() ? kNone : last->second; i != kNone;
       i = entries_[i].earlier) {
    expected = expected || !(entries_[i].passed || entries_[i].awaits_op);
  }
  CHAMELEON_CHECK(block.isMirrored() == expected,
                  "the mirrored bit without a copy to come, or a copy without");
}

void Mirror::fail(const Locked& /*locked*/, Error error) noexcept {
  if (!failure_) failure_ = std::move(error);
}

} // namespace chameleon::memory
