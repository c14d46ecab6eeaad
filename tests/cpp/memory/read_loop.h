// A run without a pager: round after round, op i reads block i. For the parts
// of a policy, which look at blocks and ask the profiler when they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "memory/block.h"
#include "profiler/op_names.h"
#include "profiler/profiler.h"

namespace chameleon::memory {

class ReadLoop {
 public:
  static constexpr std::uint64_t kBytes = std::uint64_t{1} << 20;

  explicit ReadLoop(std::size_t ops) {
    for (std::size_t i = 0; i < ops; ++i) {
      Block& block = blocks.emplace_back();
      block.identity = i + 1;
      block.bytes = block.rounded_bytes = kBytes;
      block.word = Block::kIdle;
      block.profiler_slot = profiler.born(block.identity, kBytes, &block);
    }
  }

  // The next op; a round ends behind the last one.
  profiler::OpTicket op() {
    Block& block = blocks[at_];
    const std::uint32_t name = profiler::op_names().add("read_loop::read");
    profiler::TokenHasher hasher(name);
    hasher.add(at_);
    block.last_use_tick = ++ticks_;
    const profiler::OpTicket ticket = profiler.observe(
        name, hasher.token(),
        std::vector<profiler::Use>{
            {block.identity, block.profiler_slot, profiler::Operand::kReads}});
    at_ = (at_ + 1) % blocks.size();
    if (at_ == 0) profiler.step();
    return ticket;
  }
  // Ops, up to the one before `position` of the next round; the path is known.
  void runTo(std::size_t position) {
    for (std::size_t rounds = 3; rounds > 0;) {
      op();
      if (at_ == 0) --rounds;
    }
    while (at_ != position) op();
  }

  profiler::Profiler profiler;
  std::deque<Block> blocks;

 private:
  std::size_t at_ = 0;
  std::uint64_t ticks_ = 0;
};

} // namespace chameleon::memory
