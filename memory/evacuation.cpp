#include "memory/evacuation.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace chameleon::memory {
namespace {

// Parts next to each other that hold `bytes`, and none of them in vain.
struct Place {
  std::size_t cost;
  std::size_t begin;
  std::size_t end;
};

std::vector<Place> places(std::span<const Part> parts, std::size_t bytes) {
  std::vector<Place> found;
  std::size_t begin = 0;
  std::size_t held = 0;
  std::size_t cost = 0;
  const auto cost_of = [](const Part& part) {
    return part.kind == Part::Kind::kFree ? 0 : part.cost;
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].kind == Part::Kind::kStays) {
      begin = i + 1;
      held = cost = 0;
      continue;
    }
    held += parts[i].bytes;
    cost += cost_of(parts[i]);
    while (held - parts[begin].bytes >= bytes) {
      held -= parts[begin].bytes;
      cost -= cost_of(parts[begin]);
      ++begin;
    }
    if (held >= bytes) found.push_back({cost, begin, i + 1});
  }
  std::sort(found.begin(), found.end(), [](const Place& a, const Place& b) {
    return std::tie(a.cost, a.begin) < std::tie(b.cost, b.begin);
  });
  return found;
}

// Holes looked at before the search gives up: milliseconds, in an arena of very
// many small blocks.
constexpr std::size_t kMostHoles = std::size_t{1} << 20;

struct Hole {
  std::size_t cost;
  std::size_t left;
  std::size_t part;
  auto operator<=>(const Hole&) const = default;
};

// What is in the place, into the holes (ascending) that are not. False: it does
// not fit.
bool fits(std::span<const Part> parts, const Place& place,
          std::vector<Hole> holes, std::vector<Evacuation::Move>& moves) {
  std::erase_if(holes, [&](const Hole& hole) {
    return hole.part >= place.begin && hole.part < place.end;
  });
  std::vector<std::size_t> blocks;
  for (std::size_t i = place.begin; i < place.end; ++i) {
    if (parts[i].kind == Part::Kind::kMovable) blocks.push_back(i);
  }
  std::sort(blocks.begin(), blocks.end(), [&](std::size_t a, std::size_t b) {
    return std::tie(parts[b].bytes, a) < std::tie(parts[a].bytes, b);
  });
  moves.clear();
  for (const std::size_t block : blocks) {
    const std::size_t bytes = parts[block].bytes;
    const auto at = std::find_if(
        std::lower_bound(holes.begin(), holes.end(), Hole{0, bytes, 0}),
        holes.end(), [&](const Hole& hole) { return hole.left >= bytes; });
    if (at == holes.end()) return false;
    moves.push_back({block, at->part});
    at->left -= bytes;
    // It is among the smaller ones now.
    std::rotate(std::upper_bound(holes.begin(), at, *at), at, at + 1);
  }
  return true;
}

} // namespace

std::optional<Evacuation> find_evacuation(std::span<const Part> parts,
                                          std::size_t bytes) {
  std::vector<Hole> holes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].kind != Part::Kind::kFree) continue;
    holes.push_back({parts[i].cost, parts[i].bytes, i});
  }
  std::sort(holes.begin(), holes.end());
  std::vector<Evacuation::Move> moves;
  std::size_t seen = 0;
  for (const Place& place : places(parts, bytes)) {
    if (seen > kMostHoles) break;
    seen += holes.size();
    if (fits(parts, place, holes, moves)) {
      return Evacuation{place.begin, place.end, std::move(moves)};
    }
  }
  return std::nullopt;
}

} // namespace chameleon::memory
