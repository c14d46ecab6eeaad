// Where first fit puts what an op call allocates and frees in turn, in a hole
// that is empty at first and has no end: each piece at the lowest offset that
// has room for it. The same sequence gets the same offsets every time, so a
// hole of span() bytes holds every repetition of it, whatever lies around the
// hole. A span is never less than the most bytes that were live at once.
//
// Arithmetic only: no memory, no lock. Used by the call's own thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace chameleon::memory {

class FirstFit {
 public:
  // The lowest offset with `bytes` free behind it. Counts in span() even if it
  // is not added.
  std::size_t find(std::size_t bytes) {
    std::size_t offset = 0;
    for (const Piece& piece : live_) {
      if (piece.offset - offset >= bytes) break;
      offset = piece.offset + piece.bytes;
    }
    span_ = std::max(span_, offset + bytes);
    return offset;
  }
  // Takes what was found. `address` names it from now on.
  void add(std::size_t offset, std::size_t bytes, const std::byte* address) {
    const auto at =
        std::find_if(live_.begin(), live_.end(),
                     [&](const Piece& piece) { return piece.offset > offset; });
    live_.insert(at, {offset, bytes, address});
  }
  // No effect where nothing has that name.
  void remove(const std::byte* address) noexcept {
    const auto at = std::find_if(
        live_.begin(), live_.end(),
        [&](const Piece& piece) { return piece.address == address; });
    if (at != live_.end()) live_.erase(at);
  }
  void clear() noexcept {
    live_.clear();
    span_ = 0;
  }
  std::size_t span() const noexcept { return span_; }

 private:
  struct Piece {
    std::size_t offset;
    std::size_t bytes;
    const std::byte* address;
  };

  std::vector<Piece> live_; // by offset
  std::size_t span_ = 0;
};

} // namespace chameleon::memory
