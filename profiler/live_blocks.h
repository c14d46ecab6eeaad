// What the profiler keeps of each live block, in a dense table. The owner of a
// block keeps its slot and hands it in with every use: no map, no search.
//
// A slot is reused after its block died; (slot, identity) never is.
//
// Thread safety: none; the caller synchronises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace chameleon::profiler {

using BlockSlot = std::uint32_t;
inline constexpr BlockSlot kNoSlot = ~BlockSlot{0};

// One walk along one path.
struct Walk {
  std::uint32_t path = 0; // 0: none that is known
  std::uint32_t round = 0;
};

struct LiveBlock {
  std::uint64_t identity = 0; // 0: the slot is free
  std::uint64_t bytes = 0;
  void* owner = nullptr; // the block itself, to whoever knows its type
  // Hints, valid where the value they lead to has this identity.
  std::uint32_t value = 0;          // in the path that is followed
  std::uint32_t recorded_value = 0; // in the path that is being recorded
  // Birth: as which value, on which walk. Path 0: no op that is known made it.
  std::uint32_t birth_value = 0;
  Walk birth;
  std::uint64_t begun_at = 0; // the op that used it first; see begins()
  BlockSlot next_free = kNoSlot;
};

class LiveBlocks {
 public:
  // Of a block's owner: did the storage die, although nobody said so yet? With
  // this every block has an owner.
  using Gone = bool (*)(const void* owner);
  explicit LiveBlocks(Gone gone = nullptr) : gone_(gone) {}

  // REQUIRES: identity != 0, never used before.
  BlockSlot add(std::uint64_t identity, std::uint64_t bytes, void* owner);
  void remove(BlockSlot slot) noexcept {
    blocks_[slot].identity = 0;
    blocks_[slot].next_free = free_;
    free_ = slot;
  }

  LiveBlock& operator[](BlockSlot slot) noexcept { return blocks_[slot]; }
  const LiveBlock& operator[](BlockSlot slot) const noexcept {
    return blocks_[slot];
  }
  // The op being observed, by its number from 1.
  void setNow(std::uint64_t op) noexcept { now_ = op; }
  // A block that no op made, and that no op had used before that one: for all
  // who follow the run it begins there.
  bool begins(const LiveBlock& block) const noexcept {
    return (block.begun_at == 0 && block.birth.path == 0) ||
           block.begun_at == now_;
  }
  void beginNow(LiveBlock& block) const noexcept { block.begun_at = now_; }
  // No op made it, and it stands for what lived before.
  void beganBefore(LiveBlock& block) const noexcept {
    if (begins(block)) block.begun_at = kBefore;
  }
  bool alive(BlockSlot slot, std::uint64_t identity) const noexcept {
    return slot < blocks_.size() && identity != 0 &&
           blocks_[slot].identity == identity;
  }
  // The same at this very moment: deaths are heard of late. Not for hot paths.
  bool stillAlive(BlockSlot slot, std::uint64_t identity) const noexcept {
    return alive(slot, identity) &&
           (gone_ == nullptr || !gone_(blocks_[slot].owner));
  }
  std::size_t memoryBytes() const noexcept {
    return blocks_.capacity() * sizeof(LiveBlock);
  }

 private:
  static constexpr std::uint64_t kBefore = ~std::uint64_t{0};

  BlockSlot grow();

  const Gone gone_;
  std::vector<LiveBlock> blocks_;
  BlockSlot free_ = kNoSlot;
  std::uint64_t now_ = 1;
};

inline BlockSlot LiveBlocks::add(std::uint64_t identity, std::uint64_t bytes,
                                 void* owner) {
  const BlockSlot slot = free_ != kNoSlot ? free_ : grow();
  LiveBlock& block = blocks_[slot];
  free_ = block.next_free;
  block.identity = identity;
  block.bytes = bytes;
  block.owner = owner;
  block.birth.path = 0;
  block.begun_at = 0;
  return slot;
}

// One more slot, free.
[[gnu::noinline]] inline BlockSlot LiveBlocks::grow() {
  blocks_.emplace_back();
  return static_cast<BlockSlot>(blocks_.size() - 1);
}

} // namespace chameleon::profiler
