// Which earlier work still touches which free bytes, piece by piece. Where
// holes become one, one fence for all of it would make whoever takes a part
// wait for the whole; here each part keeps its own fence, and its age: how
// long ago it was freed, in order of the frees.
//
// Pieces whose fence has passed are forgotten. Where there are very many, those
// that touch become one: else every search would be long where much room is
// freed in small blocks.
//
// Thread safety: none; the owner of the arena or the host pool locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "memory/streams/fence.h"
#include "memory/streams/stream_positions.h"

namespace chameleon::memory {

class FreedRoom {
 public:
  static constexpr std::size_t kManyPieces = 512;

  explicit FreedRoom(StreamPositions& streams) : streams_(streams) {}

  // REQUIRES: no piece overlaps the range.
  void add(std::size_t offset, std::size_t bytes, const Fence& fence);
  // The range is in use: its pieces go, and `fence` covers them all.
  void take(std::size_t offset, std::size_t bytes, Fence& fence);

  // The youngest piece in a range that later work on the stream would wait for;
  // 0: none.
  std::uint64_t youngest(std::size_t offset, std::size_t bytes,
                         StreamIndex stream) const;
  // Calls visit(offset, bytes) for the pieces in a range, ascending, until one
  // says false.
  template <typename Visit>
  void visit(std::size_t offset, std::size_t bytes, Visit&& visit) const {
    for (auto at = firstIn(offset);
         at != pieces_.end() && at->first < offset + bytes; ++at) {
      if (!visit(at->first, at->second.bytes)) return;
    }
  }
  std::size_t size() const noexcept { return pieces_.size(); }
  // No piece lies in the range.
  bool empty(std::size_t offset, std::size_t bytes) const {
    const auto at = firstIn(offset);
    return at == pieces_.end() || at->first >= offset + bytes;
  }

 private:
  struct Piece {
    std::size_t bytes;
    Fence fence;
    std::uint64_t freed; // order of the frees, from 1
  };
  using Pieces = std::map<std::size_t, Piece>;

  Pieces::const_iterator firstIn(std::size_t offset) const;
  void join(Fence& into, const Fence& from);
  void joinNeighbours();

  StreamPositions& streams_;
  Pieces pieces_; // by offset
  std::uint64_t frees_ = 0;
  std::size_t many_ = kManyPieces; // when to join them
};

} // namespace chameleon::memory
