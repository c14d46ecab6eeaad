// Where first fit puts what an op call allocates and frees in turn, in a hole
// that is empty at first and has no end: each piece at the lowest offset that
// has room for it. The same sequence gets the same offsets every time, so a
// hole of span() bytes holds every repetition of it, whatever lies around the
// hole. A span is never less than the most bytes that were live at once.
//
// A kernel over a list may hold a thousand pieces at once: what is searched are
// the gaps between them, of which there are few.
//
// Thread safety: none; the call's own thread uses it. Arithmetic only, no lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

namespace chameleon::memory {

class FirstFit {
 public:
  // The lowest offset with `bytes` free behind it. Counts in span() even if it
  // is not added.
  std::size_t find(std::size_t bytes) {
    const std::size_t offset = holeFor(bytes);
    span_ = std::max(span_, offset + bytes);
    return offset;
  }
  // Takes what was found. `address` names it from now on.
  // REQUIRES: `offset` is what find(bytes) gave, and nothing changed since.
  void add(std::size_t offset, std::size_t bytes, const std::byte* address) {
    const Piece piece{offset, bytes, address};
    // Pieces mostly come in the order of their addresses.
    live_.insert(live_.empty() || isBefore(live_.back(), address)
                     ? live_.end()
                     : std::ranges::upper_bound(live_, address, std::less<>(),
                                                &Piece::address),
                 piece);
    if (gaps_.capacity() < live_.size()) gaps_.reserve(live_.capacity());
    if (offset == end_) {
      end_ += bytes;
      return;
    }
    const auto gap = gapAt(offset);
    gap->offset += bytes;
    gap->bytes -= bytes;
    if (gap->bytes == 0) gaps_.erase(gap);
  }
  // No effect where nothing has that name.
  void remove(const std::byte* address) noexcept {
    const auto at = std::ranges::lower_bound(live_, address, std::less<>(),
                                             &Piece::address);
    if (at == live_.end() || at->address != address) return;
    const Gap freed{at->offset, at->bytes};
    live_.erase(at);
    addGap(freed);
  }
  void clear() noexcept {
    live_.clear();
    gaps_.clear();
    end_ = 0;
    span_ = 0;
  }
  std::size_t span() const noexcept { return span_; }

 private:
  struct Piece {
    std::size_t offset;
    std::size_t bytes;
    const std::byte* address;
  };
  struct Gap {
    std::size_t offset;
    std::size_t bytes;
  };

  static bool isBefore(const Piece& piece, const std::byte* address) noexcept {
    return std::less<>()(piece.address, address);
  }
  std::size_t holeFor(std::size_t bytes) const noexcept {
    for (const Gap& gap : gaps_) {
      if (gap.bytes >= bytes) return gap.offset;
    }
    return end_;
  }
  // The first gap at or behind an offset.
  std::vector<Gap>::iterator gapAt(std::size_t offset) noexcept {
    return std::ranges::lower_bound(gaps_, offset, std::less<>(), &Gap::offset);
  }
  // Becomes one with the gaps that touch it, or with what is free at the end.
  void addGap(Gap freed) noexcept {
    auto next = gapAt(freed.offset);
    if (next != gaps_.begin()) {
      const auto previous = next - 1;
      if (previous->offset + previous->bytes == freed.offset) {
        freed = {previous->offset, previous->bytes + freed.bytes};
        next = gaps_.erase(previous);
      }
    }
    const std::size_t freed_end = freed.offset + freed.bytes;
    if (freed_end == end_) {
      end_ = freed.offset;
    } else if (next != gaps_.end() && next->offset == freed_end) {
      *next = {freed.offset, freed.bytes + next->bytes};
    } else {
      gaps_.insert(next, freed);
    }
  }

  std::vector<Piece> live_; // by address
  // By offset; none touches another, nor the end. There are fewer than pieces
  // live at once: add() makes room for them, so that remove() needs no memory.
  std::vector<Gap> gaps_;
  std::size_t end_ = 0; // of the last piece: all behind it is free
  std::size_t span_ = 0;
};

} // namespace chameleon::memory
