#include "memory/evacuation.h"

#include <algorithm>
#include <compare>
#include <tuple>
#include <utility>

namespace chameleon::memory {
namespace {

using Kind = Part::Kind;

// Pieces looked at before the search gives up: a fraction of a millisecond.
constexpr std::size_t kMostPieces = std::size_t{1} << 18;

constexpr std::size_t kEnd = ~std::size_t{0};

// Parts next to each other that hold what is wanted, and none of them in vain.
struct Place {
  std::size_t cost;
  std::size_t first;
  std::size_t end; // the piece behind it
  auto operator<=>(const Place&) const = default;
};

struct Hole {
  std::size_t cost;
  std::size_t bytes;
  std::size_t piece;
  auto operator<=>(const Hole&) const = default;
};

struct Limits {
  std::size_t cost;   // of the best so far
  std::size_t pieces; // to be looked at

  bool allow(std::size_t least_cost, std::size_t more_pieces) {
    if (least_cost >= cost || pieces < more_pieces) return false;
    pieces -= more_pieces;
    return true;
  }
};

// The arena as it is after some moves.
class Layout {
 public:
  explicit Layout(std::span<const Part> parts);

  // The cheapest first. What was moved, or is about to be, is in none.
  std::vector<Place> places(std::size_t bytes) const;
  // Moves what is in the place elsewhere; into holes that are there, or that
  // are made in the same way. False: it could not, and the layout is good for
  // nothing any more.
  bool empty(const Place& place, bool makes_holes, Limits& limits);

  std::size_t cost() const noexcept { return cost_; }
  std::size_t offset(const Place& place) const {
    return pieces_[place.first].offset;
  }
  std::vector<Evacuation::Move> takeMoves() { return std::move(moves_); }

 private:
  struct Piece {
    Kind kind;
    std::size_t bytes;
    std::size_t cost;
    std::size_t offset;
    std::size_t part;
    std::size_t next; // in address order
  };
  using Holes = std::vector<Hole>;

  Holes::iterator findHole(std::size_t bytes);
  bool makeHole(std::size_t bytes, Limits& limits);
  void moveInto(Holes::iterator hole, const Piece& block);

  std::vector<Piece> pieces_; // the first one is that of address 0
  Holes holes_;               // ascending
  std::vector<Evacuation::Move> moves_;
  std::size_t cost_ = 0;
};

Layout::Layout(std::span<const Part> parts) {
  std::size_t offset = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    pieces_.push_back({part.kind, part.bytes, part.cost, offset, i,
                       i + 1 < parts.size() ? i + 1 : kEnd});
    if (part.kind == Kind::kFree) holes_.push_back({part.cost, part.bytes, i});
    offset += part.bytes;
  }
  std::sort(holes_.begin(), holes_.end());
}

std::vector<Place> Layout::places(std::size_t bytes) const {
  std::vector<Place> found;
  if (pieces_.empty()) return found;
  std::size_t first = 0;
  std::size_t held = 0;
  std::size_t cost = 0;
  const auto cost_of = [](const Piece& piece) {
    return piece.kind == Kind::kFree ? 0 : piece.cost;
  };
  for (std::size_t i = 0; i != kEnd; i = pieces_[i].next) {
    const Piece& piece = pieces_[i];
    if (piece.kind == Kind::kStays) {
      first = piece.next;
      held = cost = 0;
      continue;
    }
    held += piece.bytes;
    cost += cost_of(piece);
    for (; held - pieces_[first].bytes >= bytes; first = pieces_[first].next) {
      held -= pieces_[first].bytes;
      cost -= cost_of(pieces_[first]);
    }
    if (held >= bytes) found.push_back({cost, first, piece.next});
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool Layout::empty(const Place& place, bool makes_holes, Limits& limits) {
  std::vector<Piece> blocks;
  for (std::size_t i = place.first; i != place.end; i = pieces_[i].next) {
    if (pieces_[i].kind == Kind::kMovable) blocks.push_back(pieces_[i]);
    pieces_[i].kind = Kind::kStays;
  }
  std::erase_if(holes_, [&](const Hole& hole) {
    return pieces_[hole.piece].kind == Kind::kStays;
  });
  std::sort(blocks.begin(), blocks.end(), [](const Piece& a, const Piece& b) {
    return std::tie(b.bytes, a.part) < std::tie(a.bytes, b.part);
  });
  for (const Piece& block : blocks) {
    cost_ += block.cost;
    if (cost_ >= limits.cost) return false;
    Holes::iterator hole = findHole(block.bytes);
    if (hole == holes_.end() && makes_holes && makeHole(block.bytes, limits)) {
      hole = findHole(block.bytes);
    }
    if (hole == holes_.end()) return false;
    moveInto(hole, block);
  }
  return true;
}

Layout::Holes::iterator Layout::findHole(std::size_t bytes) {
  return std::find_if(
      std::lower_bound(holes_.begin(), holes_.end(), Hole{0, bytes, 0}),
      holes_.end(), [&](const Hole& hole) { return hole.bytes >= bytes; });
}

// The first that works of the cheapest places.
bool Layout::makeHole(std::size_t bytes, Limits& limits) {
  for (const Place& place : places(bytes)) {
    if (!limits.allow(cost_ + place.cost, pieces_.size())) return false;
    Layout after = *this;
    if (!after.empty(place, /*makes_holes=*/false, limits)) continue;
    Piece& hole = after.pieces_[place.first];
    hole.kind = Kind::kFree;
    hole.cost = 0;
    hole.bytes = 0;
    for (std::size_t i = place.first; i != place.end; i = pieces_[i].next) {
      hole.bytes += pieces_[i].bytes;
      if (pieces_[i].kind == Kind::kFree) {
        hole.cost = std::max(hole.cost, pieces_[i].cost);
      }
    }
    hole.next = place.end;
    const Hole made{hole.cost, hole.bytes, place.first};
    *this = std::move(after);
    holes_.insert(std::upper_bound(holes_.begin(), holes_.end(), made), made);
    return true;
  }
  return false;
}

// To the hole's lower end.
void Layout::moveInto(Holes::iterator hole, const Piece& block) {
  const std::size_t rest = pieces_.size();
  pieces_.push_back(pieces_[hole->piece]);
  Piece& filled = pieces_[hole->piece];
  moves_.push_back({block.part, filled.offset});
  filled.kind = Kind::kStays;
  filled.bytes = block.bytes;
  filled.next = rest;
  pieces_[rest].bytes -= block.bytes;
  pieces_[rest].offset += block.bytes;
  const Hole left{hole->cost, hole->bytes - block.bytes, rest};
  holes_.erase(hole);
  if (left.bytes > 0) {
    holes_.insert(std::upper_bound(holes_.begin(), holes_.end(), left), left);
  }
}

} // namespace

std::optional<Evacuation> find_evacuation(std::span<const Part> parts,
                                          std::size_t bytes,
                                          std::size_t most_cost) {
  const Layout now(parts);
  const std::vector<Place> places = now.places(bytes);
  std::optional<Evacuation> best;
  Limits limits{most_cost, kMostPieces};
  for (const bool makes_holes : {false, true}) {
    limits.pieces = kMostPieces;
    for (const Place& place : places) {
      if (!limits.allow(place.cost, parts.size())) break;
      Layout after = now;
      if (!after.empty(place, makes_holes, limits)) continue;
      limits.cost = after.cost();
      best = {after.takeMoves(), now.offset(place), after.cost()};
    }
  }
  return best;
}

} // namespace chameleon::memory
