// Least recently used, exact, without any work on the hot path: an op only
// stores the tick of its call in each operand (Block::last_use_tick). Blocks
// lie in a binary heap by the tick they had when they were put there; one that
// was used since is put back under its new tick when it comes to the top.
// Blocks of one tick go in order of birth, so decisions repeat from run to
// run.
//
// Cost: O(log n) amortised per victim and per use that a victim search sees.
// Thread safety: as Policy says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "memory/policy/policy.h"

namespace chameleon::memory {

class LruPolicy final : public Policy {
 public:
  std::string_view name() const noexcept override { return "lru"; }
  void entered(Block& block) override;
  void left(Block& block) noexcept override;
  using Policy::victim;
  Block* nextVictim(Usable usable, const Need& need) override;
  Block* victim(Usable usable, const Need& need) override;
  std::size_t size() const noexcept override { return heap_.size(); }

 private:
  struct Entry {
    // When put here; the block may be used, or even born again, since.
    std::uint64_t tick;
    std::uint64_t identity;
    Block* block;
  };
  static Entry entryOf(Block& block) noexcept;
  static bool before(const Entry& a, const Entry& b) noexcept;
  void place(std::size_t slot, Entry entry) noexcept;
  void siftUp(std::size_t slot, Entry entry) noexcept;
  void siftDown(std::size_t slot, Entry entry) noexcept;
  void remove(std::size_t slot) noexcept;

  std::vector<Entry> heap_;
  std::vector<Block*> skipped_; // scratch of nextVictim()
};

} // namespace chameleon::memory
