#include "memory/space/freed_room.h"

#include <algorithm>
#include <iterator>

#include "memory/space/fence_joiner.h"

namespace chameleon::memory {

void FreedRoom::add(std::size_t offset, std::size_t bytes, const Fence& fence) {
  ++frees_;
  if (streams_.passed(fence)) return;
  pieces_.insert_or_assign(offset, Piece{bytes, fence, frees_});
  if (pieces_.size() > many_) joinNeighbours();
}

FreedRoom::Pieces::const_iterator FreedRoom::firstIn(std::size_t offset) const {
  auto at = pieces_.upper_bound(offset);
  if (at == pieces_.begin()) return at;
  const auto before = std::prev(at);
  return before->first + before->second.bytes > offset ? before : at;
}

void FreedRoom::take(std::size_t offset, std::size_t bytes, Fence& fence) {
  const std::size_t end = offset + bytes;
  for (auto at = firstIn(offset); at != pieces_.end() && at->first < end;) {
    const std::size_t begin = at->first;
    const Piece piece = at->second;
    at = pieces_.erase(at);
    if (streams_.passed(piece.fence)) continue;
    join(fence, piece.fence);
    const std::size_t piece_end = begin + piece.bytes;
    if (begin < offset) {
      pieces_.emplace(begin, Piece{offset - begin, piece.fence, piece.freed});
    }
    if (piece_end > end) {
      // mutant: cut-fence
      pieces_.emplace(end, Piece{piece_end - end, piece.fence, piece.freed});
      break;
    }
  }
}

std::uint64_t FreedRoom::youngest(std::size_t offset, std::size_t bytes,
                                  StreamIndex stream) const {
  std::uint64_t youngest = 0;
  for (auto at = firstIn(offset);
       at != pieces_.end() && at->first < offset + bytes; ++at) {
    for (const Position position : at->second.fence.slots()) {
      if (position.none()) break;
      if (streams_.follows(stream, position)) continue;
      youngest = std::max(youngest, at->second.freed);
    }
  }
  return youngest;
}

void FreedRoom::joinNeighbours() {
  for (auto at = pieces_.begin(); at != pieces_.end();) {
    const auto next = std::next(at);
    if (streams_.passed(at->second.fence)) {
      pieces_.erase(at);
    } else if (next != pieces_.end() &&
               at->first + at->second.bytes == next->first) {
      Piece both = at->second;
      both.bytes += next->second.bytes;
      both.freed = std::max(both.freed, next->second.freed);
      join(both.fence, next->second.fence);
      at->second = both;
      pieces_.erase(next);
      continue;
    }
    at = next;
  }
  many_ = std::max(kManyPieces, 2 * pieces_.size());
}

void FreedRoom::join(Fence& into, const Fence& from) {
  for (const Position position : from.slots()) {
    if (streams_.passed(position)) continue;
    // Streams that cannot be joined leave the host to wait. Where that fails
    // too the device is lost, and every later call on it says so.
    if (streams_.add(into, position)) {
      (void)streams_.synchronize(position).ok();
    }
  }
}

} // namespace chameleon::memory
