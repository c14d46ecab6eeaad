// A heap like a binary one, but with four children per node: half as deep, and
// a node's children lie in one or two cache lines. The greatest comes first.
// Entries are never searched for or changed; who needs that leaves stale
// entries in and throws them away when they come to the top.
//
// `Entry` has a member `key`; equal keys come in no particular but repeatable
// order. Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace chameleon::memory {

template <typename Entry>
class DaryHeap {
 public:
  bool empty() const noexcept { return entries_.empty(); }
  void clear() noexcept { entries_.clear(); }
  const Entry& top() const noexcept { return entries_.front(); }

  void push(const Entry& entry) {
    std::size_t slot = entries_.size();
    entries_.push_back(entry);
    while (slot > 0) {
      const std::size_t parent = (slot - 1) / kWidth;
      if (!(entries_[parent].key < entry.key)) break;
      entries_[slot] = entries_[parent];
      slot = parent;
    }
    entries_[slot] = entry;
  }

  void pop() noexcept {
    const Entry entry = entries_.back();
    entries_.pop_back();
    const std::size_t size = entries_.size();
    if (size == 0) return;
    std::size_t slot = 0;
    for (;;) {
      const std::size_t first = kWidth * slot + 1;
      if (first >= size) break;
      std::size_t greatest = first;
      const std::size_t last = std::min(first + kWidth, size);
      for (std::size_t child = first + 1; child < last; ++child) {
        if (entries_[greatest].key < entries_[child].key) greatest = child;
      }
      if (!(entry.key < entries_[greatest].key)) break;
      entries_[slot] = entries_[greatest];
      slot = greatest;
    }
    entries_[slot] = entry;
  }

 private:
  static constexpr std::size_t kWidth = 4;
  std::vector<Entry> entries_;
};

} // namespace chameleon::memory
