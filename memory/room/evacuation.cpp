#include "memory/room/evacuation.h"

#include <algorithm>
#include <compare>
#include <functional>
#include <tuple>
#include <utility>

namespace chameleon::memory {
namespace {

using PartKind = Part::Kind;

// What it costs to make holes for what fits into none, by its bytes: a guess.
constexpr std::size_t kMisfit = 32;

constexpr std::size_t kEnd = ~std::size_t{0};

// Parts next to each other that hold what is wanted, and none of them in vain.
struct Place {
  std::size_t cost;
  std::size_t first;
  std::size_t end; // the piece behind it
  auto operator<=>(const Place&) const = default;
};

// One after another, the cheapest first.
class PlaceQueue {
 public:
  explicit PlaceQueue(std::vector<Place> places) : left_(std::move(places)) {
    std::ranges::make_heap(left_, std::greater<>());
  }
  std::optional<Place> next() {
    if (left_.empty()) return std::nullopt;
    std::ranges::pop_heap(left_, std::greater<>());
    const Place place = left_.back();
    left_.pop_back();
    return place;
  }

 private:
  std::vector<Place> left_;
};

struct Hole {
  std::size_t cost;
  std::size_t bytes;
  std::size_t piece;
  auto operator<=>(const Hole&) const = default;
};

// The arena as it is after some moves. What has moved, or is about to, is in
// none of the places that it finds.
class Layout {
 public:
  // `looks` counts the pieces looked at, of this one and its copies; of more
  // than `most_looks` the search gives up.
  Layout(std::span<const Part> parts, std::size_t most_looks,
         std::size_t& looks);

  // Those that could be emptied for less than `most_cost`, if there were holes
  // for their blocks.
  PlaceQueue places(std::size_t bytes, std::size_t most_cost) const;
  // Bytes of the place's blocks that fit into none of the holes, when all are
  // moved into holes that are there.
  std::size_t misfit(const Place& place) const;
  // From a hole to a hole, with `bytes` free: where the least has to slide.
  std::optional<Place> slide(std::size_t bytes) const;

  // Moves what is in the place elsewhere, into holes that are there, and into
  // some that are made for what is a misfit(). False: it could not, or not for
  // less than `most_cost`, and the layout is good for nothing any more.
  bool empty(const Place& place, std::size_t most_cost);
  // Down. Returns where all that is free in the place lies then, at its end.
  std::size_t slideTogether(const Place& place);

  std::size_t cost() const noexcept { return cost_; }
  std::size_t offset(const Place& place) const {
    return pieces_[place.first].offset;
  }
  std::vector<Evacuation::Move> takeMoves() { return std::move(moves_); }

 private:
  struct Piece {
    PartKind kind;
    std::size_t bytes;
    std::size_t cost;
    std::size_t offset;
    std::size_t part;
    std::size_t next; // in address order
  };
  using Holes = std::vector<Hole>;

  std::size_t start() const { return pieces_.empty() ? kEnd : 0; }
  static Holes::iterator findHole(Holes& holes, std::size_t bytes);
  static void addHole(Holes& holes, const Hole& hole);
  bool makeHole(std::size_t bytes, std::size_t most_cost);
  Piece emptied(const Place& place) const;
  void moveInto(Holes::iterator hole, const Piece& block);
  void addHole(std::size_t piece);

  std::vector<Piece> pieces_;
  Holes holes_; // ascending
  std::vector<Evacuation::Move> moves_;
  std::size_t cost_ = 0;
  std::size_t most_looks_;
  std::size_t* looks_;
};

Layout::Layout(std::span<const Part> parts, std::size_t most_looks,
               std::size_t& looks)
    : most_looks_(most_looks), looks_(&looks) {
  std::size_t offset = 0;
  pieces_.reserve(parts.size());
  holes_.reserve(parts.size() / 2 + 1); // two that are free are no neighbours
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    pieces_.push_back({part.kind, part.bytes, part.cost_bytes, offset, i,
                       i + 1 < parts.size() ? i + 1 : kEnd});
    if (part.kind == PartKind::kFree)
      holes_.push_back({part.cost_bytes, part.bytes, i});
    offset += part.bytes;
  }
  std::sort(holes_.begin(), holes_.end());
}

PlaceQueue Layout::places(std::size_t bytes, std::size_t most_cost) const {
  std::vector<Place> found;
  std::size_t first = start();
  std::size_t held = 0;
  std::size_t cost = 0;
  const auto cost_of = [](const Piece& piece) {
    return piece.kind == PartKind::kFree ? 0 : piece.cost;
  };
  for (std::size_t i = first; i != kEnd; i = pieces_[i].next) {
    const Piece& piece = pieces_[i];
    ++*looks_;
    if (piece.kind == PartKind::kStays || piece.kind == PartKind::kSlides) {
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
    if (held >= bytes && cost < most_cost) {
      found.push_back({cost, first, piece.next});
    }
  }
  return PlaceQueue(std::move(found));
}

// As empty() does it, but on the holes alone: most places are none.
std::size_t Layout::misfit(const Place& place) const {
  std::vector<std::size_t> blocks; // their bytes
  const std::size_t begin = offset(place);
  std::size_t end = begin;
  for (std::size_t i = place.first; i != place.end; i = pieces_[i].next) {
    const Piece& piece = pieces_[i];
    end += piece.bytes;
    ++*looks_;
    if (piece.kind == PartKind::kMovable) blocks.push_back(piece.bytes);
  }
  std::ranges::sort(blocks, std::greater<>());
  Holes holes;
  holes.reserve(holes_.size());
  for (const Hole& hole : holes_) {
    const std::size_t at = pieces_[hole.piece].offset;
    if (at < begin || at >= end) holes.push_back(hole);
  }
  *looks_ += holes.size() + blocks.size();
  std::size_t misfit = 0;
  for (const std::size_t bytes : blocks) {
    const Holes::iterator found = findHole(holes, bytes);
    if (found == holes.end()) {
      misfit += bytes;
      continue;
    }
    const Hole rest{found->cost, found->bytes - bytes, found->piece};
    holes.erase(found);
    if (rest.bytes > 0) addHole(holes, rest);
  }
  return misfit;
}

std::optional<Place> Layout::slide(std::size_t bytes) const {
  std::optional<Place> best;
  std::size_t first = kEnd; // the hole that it begins with
  std::size_t free_bytes = 0;
  std::size_t cost = 0;
  for (std::size_t i = start(); i != kEnd; i = pieces_[i].next) {
    const Piece& piece = pieces_[i];
    ++*looks_;
    if (piece.kind == PartKind::kStays) first = kEnd;
    if (piece.kind != PartKind::kFree) {
      cost += piece.cost;
      continue;
    }
    if (first == kEnd) {
      first = i;
      free_bytes = cost = 0;
    }
    free_bytes += piece.bytes;
    while (free_bytes - pieces_[first].bytes >= bytes) {
      free_bytes -= pieces_[first].bytes;
      for (first = pieces_[first].next; pieces_[first].kind != PartKind::kFree;
           first = pieces_[first].next) {
        cost -= pieces_[first].cost;
      }
    }
    if (free_bytes >= bytes && (!best || cost < best->cost)) {
      best = {cost, first, piece.next};
    }
  }
  return best;
}

bool Layout::empty(const Place& place, std::size_t most_cost) {
  *looks_ += pieces_.size();
  std::vector<Piece> blocks;
  for (std::size_t i = place.first; i != place.end; i = pieces_[i].next) {
    if (pieces_[i].kind == PartKind::kMovable) blocks.push_back(pieces_[i]);
    pieces_[i].kind = PartKind::kStays;
  }
  std::erase_if(holes_, [&](const Hole& hole) {
    return pieces_[hole.piece].kind == PartKind::kStays;
  });
  std::sort(blocks.begin(), blocks.end(), [](const Piece& a, const Piece& b) {
    return std::tie(b.bytes, a.part) < std::tie(a.bytes, b.part);
  });
  cost_ += place.cost;
  for (const Piece& block : blocks) {
    Holes::iterator hole = findHole(holes_, block.bytes);
    if (hole == holes_.end() && makeHole(block.bytes, most_cost)) {
      hole = findHole(holes_, block.bytes);
    }
    if (hole == holes_.end()) return false;
    moveInto(hole, block);
  }
  return cost_ < most_cost;
}

Layout::Holes::iterator Layout::findHole(Holes& holes, std::size_t bytes) {
  return std::find_if(
      std::lower_bound(holes.begin(), holes.end(), Hole{0, bytes, 0}),
      holes.end(), [&](const Hole& hole) { return hole.bytes >= bytes; });
}

// By the cheapest way: a place that can be emptied, or blocks that slide
// together.
bool Layout::makeHole(std::size_t bytes, std::size_t most_cost) {
  const std::optional<Place> sliding = slide(bytes);
  if (sliding) most_cost = std::min(most_cost, cost_ + sliding->cost + 1);
  if (cost_ >= most_cost) return false;
  PlaceQueue cheaper = places(bytes, most_cost - cost_);
  while (*looks_ < most_looks_) {
    const std::optional<Place> place = cheaper.next();
    if (!place) break;
    if (misfit(*place) > 0) continue;
    const Piece hole = emptied(*place);
    (void)empty(*place, most_cost); // it can
    pieces_[place->first] = hole;
    addHole(place->first);
    return true;
  }
  if (!sliding || cost_ + sliding->cost >= most_cost) return false;
  slideTogether(*sliding);
  return true;
}

// The place as one hole.
Layout::Piece Layout::emptied(const Place& place) const {
  Piece hole = pieces_[place.first];
  hole = {PartKind::kFree, 0, 0, hole.offset, hole.part, place.end};
  for (std::size_t i = place.first; i != place.end; i = pieces_[i].next) {
    const Piece& piece = pieces_[i];
    hole.bytes += piece.bytes;
    if (piece.kind == PartKind::kFree)
      hole.cost = std::max(hole.cost, piece.cost);
  }
  return hole;
}

std::size_t Layout::slideTogether(const Place& place) {
  std::size_t offset = pieces_[place.first].offset;
  std::size_t free_bytes = 0;
  std::size_t wait = 0;
  std::size_t last = place.first;
  for (std::size_t i = place.first; i != place.end; i = pieces_[i].next) {
    Piece& piece = pieces_[i];
    last = i;
    if (piece.kind == PartKind::kFree) {
      std::erase_if(holes_, [i](const Hole& hole) { return hole.piece == i; });
      free_bytes += piece.bytes;
      wait = std::max(wait, piece.cost);
      piece.bytes = 0;
    } else {
      moves_.push_back({piece.part, offset, true});
      cost_ += piece.cost;
      offset += piece.bytes;
    }
    piece.kind = PartKind::kStays;
  }
  pieces_[last] = {PartKind::kFree, free_bytes,         wait,
                   offset,          pieces_[last].part, place.end};
  addHole(last);
  return offset;
}

// To the hole's lower end.
void Layout::moveInto(Holes::iterator hole, const Piece& block) {
  const std::size_t index = hole->piece;
  holes_.erase(hole);
  Piece rest = pieces_[index];
  moves_.push_back({block.part, rest.offset, false});
  rest.bytes -= block.bytes;
  rest.offset += block.bytes;
  pieces_[index].kind = PartKind::kStays;
  pieces_[index].bytes = block.bytes;
  if (rest.bytes == 0) return;
  pieces_[index].next = pieces_.size();
  pieces_.push_back(rest);
  addHole(pieces_[index].next);
}

void Layout::addHole(std::size_t piece) {
  addHole(holes_, {pieces_[piece].cost, pieces_[piece].bytes, piece});
}

void Layout::addHole(Holes& holes, const Hole& hole) {
  holes.insert(std::upper_bound(holes.begin(), holes.end(), hole), hole);
}

} // namespace

std::optional<Evacuation> find_evacuation(std::span<const Part> parts,
                                          std::size_t bytes,
                                          std::size_t most_cost_bytes,
                                          std::size_t most_looks) {
  std::size_t looks = 0;
  const Layout now(parts, most_looks, looks);
  std::optional<Evacuation> best;
  const auto take = [&](Layout& after, std::size_t offset) {
    most_cost_bytes = after.cost();
    best = {after.takeMoves(), offset, most_cost_bytes};
  };
  std::optional<Place> sliding = now.slide(bytes);
  if (sliding && sliding->cost >= most_cost_bytes) sliding.reset();
  if (sliding)
    most_cost_bytes = sliding->cost + 1; // rather into holes elsewhere
  Layout after = now;                    // its memory serves all tries
  const auto attempt = [&](const Place& place) {
    after = now;
    if (!after.empty(place, most_cost_bytes)) return false;
    take(after, now.offset(place));
    return true;
  };
  // The first place whose blocks fit elsewhere is the cheapest such.
  std::vector<std::pair<std::size_t, Place>> tight;
  PlaceQueue places = now.places(bytes, most_cost_bytes);
  looks = 0;
  while (looks < most_looks) {
    const std::optional<Place> place = places.next();
    if (!place) break;
    const std::size_t misfit = now.misfit(*place);
    if (misfit == 0) {
      (void)attempt(*place);
      break;
    }
    tight.emplace_back(place->cost + kMisfit * misfit, *place);
  }
  // A cheaper one may be where holes are made for some of them. Where that
  // fails it does so a few small blocks further as well.
  std::ranges::sort(tight);
  std::vector<std::size_t> failed; // where places begin
  looks = 0;
  for (const auto& [guess, place] : tight) {
    if (looks >= most_looks) break;
    if (place.cost >= most_cost_bytes) continue;
    const std::size_t offset = now.offset(place);
    const auto is_near = [&](std::size_t other) {
      return std::max(offset, other) - std::min(offset, other) < bytes / 2;
    };
    if (std::ranges::any_of(failed, is_near)) continue;
    if (!attempt(place)) failed.push_back(offset);
  }
  if (!best && sliding) {
    after = now;
    take(after, after.slideTogether(*sliding));
  }
  return best;
}

} // namespace chameleon::memory
