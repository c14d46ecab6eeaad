// The paths that were seen: each different sequence once, however often it
// ran. Bounded in bytes and in number; the path that was not followed for the
// longest time goes first.
//
// Tests: profiler_test.cpp.
//
// Thread safety: none; the caller synchronises. Pointers to paths stay valid
// until the path is dropped, which add() alone does, never to `keep`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "profiler/live_blocks.h"
#include "profiler/op_path.h"

namespace chameleon::profiler {

class OpHistory {
 public:
  static constexpr std::size_t kMaxPaths = 64;
  static constexpr std::size_t kDefaultBytes = std::size_t{64} << 20;

  explicit OpHistory(std::size_t limit_bytes = kDefaultBytes)
      : limit_bytes_(limit_bytes) {}

  PathId nextId() noexcept { return ++last_id_; }
  OpPath* find(PathId id) const noexcept;
  // Keeps it alive whatever is dropped.
  std::shared_ptr<const OpPath> share(PathId id) const noexcept;
  // The same sequence over the same persistent blocks (dead ones may have been
  // replaced), or null.
  OpPath* findEqual(const OpPath& path, const LiveBlocks& blocks) noexcept;
  // REQUIRES: finished. Drops others where it must.
  OpPath& add(OpPath path, const OpPath* keep);
  void used(const OpPath& path) noexcept; // is followed from now on

  // Most recently used first.
  const std::vector<std::shared_ptr<OpPath>>& paths() const noexcept {
    return paths_;
  }
  // A path longer than this is cut.
  std::size_t pathLimitBytes() const noexcept { return limit_bytes_ / 4; }
  std::size_t limitBytes() const noexcept { return limit_bytes_; }
  std::size_t bytes() const noexcept { return bytes_; }
  std::uint64_t ops() const noexcept;
  std::uint64_t dropped() const noexcept { return dropped_; }

 private:
  std::vector<std::shared_ptr<OpPath>> paths_;
  std::size_t limit_bytes_;
  std::size_t bytes_ = 0;
  std::uint64_t dropped_ = 0;
  PathId last_id_ = 0;
};

} // namespace chameleon::profiler
