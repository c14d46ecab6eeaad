#include "profiler/op_history.h"

#include <algorithm>

namespace chameleon::profiler {
namespace {

bool same_blocks(const OpPath& old, const OpPath& path,
                 const LiveBlocks& blocks) {
  return std::all_of(path.carried().begin(), path.carried().end(),
                     [&](std::uint32_t v) {
                       const PathValue& was = old.values()[v];
                       return was.identity == path.values()[v].identity ||
                              !blocks.alive(was.slot, was.identity);
                     });
}

} // namespace

OpPath* OpHistory::find(PathId id) const noexcept {
  for (const auto& path : paths_) {
    if (path->id() == id) return path.get();
  }
  return nullptr;
}

std::shared_ptr<const OpPath> OpHistory::share(PathId id) const noexcept {
  for (const auto& path : paths_) {
    if (path->id() == id) return path;
  }
  return nullptr;
}

OpPath* OpHistory::findEqual(const OpPath& path,
                             const LiveBlocks& blocks) noexcept {
  for (const auto& old : paths_) {
    if (old->structure() == path.structure() && old->size() == path.size() &&
        old->values().size() == path.values().size() &&
        same_blocks(*old, path, blocks)) {
      return old.get();
    }
  }
  return nullptr;
}

OpPath& OpHistory::add(OpPath path, const OpPath* keep) {
  const std::size_t bytes = path.memoryBytes();
  std::size_t i = paths_.size();
  while (i > 0 &&
         (paths_.size() >= kMaxPaths || bytes_ + bytes > limit_bytes_)) {
    --i;
    if (paths_[i].get() == keep) continue;
    bytes_ -= paths_[i]->memoryBytes();
    paths_.erase(paths_.begin() + static_cast<std::ptrdiff_t>(i));
    ++dropped_;
  }
  bytes_ += bytes;
  paths_.insert(paths_.begin(), std::make_shared<OpPath>(std::move(path)));
  return *paths_.front();
}

void OpHistory::used(const OpPath& path) noexcept {
  if (paths_.front().get() == &path) return;
  const auto at =
      std::find_if(paths_.begin(), paths_.end(),
                   [&](const auto& other) { return other.get() == &path; });
  if (at != paths_.end()) std::rotate(paths_.begin(), at, at + 1);
}

std::uint64_t OpHistory::ops() const noexcept {
  std::uint64_t ops = 0;
  for (const auto& path : paths_) ops += path->size();
  return ops;
}

} // namespace chameleon::profiler
