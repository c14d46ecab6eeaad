// Ops that can be run again, on a pager: their kernels mix the bytes of their
// operands, so that any wrong byte shows in all that follows.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "memory/pager.h"
#include "tests/cpp/memory/pager_fixture.h"

namespace chameleon::memory {

using Bytes = std::vector<std::byte>;

// What an op is, whatever its operands are.
struct MixOp {
  std::uint64_t seed = 0;
  std::vector<Access> accesses;          // of the operands
  std::vector<std::size_t> result_bytes; // of what it creates
  std::vector<bool> side_effects;        // of the operands; empty: none
  bool isSideEffect(std::size_t i) const {
    return i < side_effects.size() && side_effects[i];
  }
};

// A digest of what the op reads.
inline std::uint64_t mixed(
    const MixOp& op,
    const std::vector<std::pair<const std::byte*, std::size_t>>& operands) {
  std::uint64_t state = op.seed * 0x9e3779b97f4a7c15 + 1;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (op.accesses[i] == Access::kOverwrite || op.isSideEffect(i)) continue;
    const auto [bytes, count] = operands[i];
    for (std::size_t k = 0; k < count; ++k) {
      state = (state ^ static_cast<std::uint64_t>(bytes[k])) * 0x100000001b3;
    }
  }
  return state;
}

class RerunTest : public PagerTest {
 protected:
  // Runs the op once; where it writes nothing and finds no room in HBM, it is
  // retried as kernels are. Results are appended.
  runtime::Error call(const MixOp& op, std::span<Block* const> blocks,
                      std::vector<Block*>& results, bool rerun) {
    Call call;
    for (;;) {
      runtime::Error error = attempt(call, op, blocks, results, rerun);
      const bool reads_only =
          std::none_of(op.accesses.begin(), op.accesses.end(), writes);
      if (!error || !reads_only || !call.worthRetrying()) return error;
    }
  }
  runtime::Error attempt(Call& call, const MixOp& op,
                         std::span<Block* const> blocks,
                         std::vector<Block*>& results, bool rerun) {
    const OpKind kind{.name = "mix",
                      .memory = op_memory,
                      .may_retry = std::none_of(op.accesses.begin(),
                                                op.accesses.end(), writes)};
    static const profiler::Token token = [] {
      profiler::TokenHasher hasher(7);
      return profiler::whole_token(hasher.token(), 7);
    }();
    const OpIdentity identity = OpIdentity::of(7, token);
    std::vector<Operand> operands;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      operands.push_back({blocks[i], op.accesses[i]});
    }
    if (rerun && before_rerun) {
      if (runtime::Error error = before_rerun()) return error;
    }
    if (runtime::Error error = pager->begin(
            call,
            {kind, stream, operands, rerun ? nullptr : &identity, rerun})) {
      return error;
    }
    std::vector<std::pair<const std::byte*, std::size_t>> read;
    for (const Block* block : blocks) {
      read.emplace_back(block->device_address, block->bytes);
    }
    const std::uint64_t state = mixed(op, read);
    std::vector<Block*> made;
    for (std::size_t i = 0; i < op.result_bytes.size(); ++i) {
      runtime::Result<std::byte*> bytes =
          pager->allocate(call, op.result_bytes[i]);
      if (!bytes.ok()) {
        pager->end(call);
        if (rerun) {
          results.insert(results.end(), made.begin(), made.end());
        } else {
          for (Block* const each : made) pager->release(each);
        }
        return bytes.takeError();
      }
      fill_pattern(*bytes, op.result_bytes[i], state + i);
      runtime::Result<Block*> block =
          pager->adopt(call, *bytes, op.result_bytes[i]);
      EXPECT_TRUE(block.ok());
      made.push_back(*block);
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (!writes(op.accesses[i])) continue;
      fill_pattern(blocks[i]->device_address, blocks[i]->bytes,
                   state + 100 + i);
    }
    // fill_pattern() wrote every byte.
    call.overwritten();
    if (!rerun && call.wantsRecord()) pager->record(call, recorded(op), made);
    pager->end(call);
    results.insert(results.end(), made.begin(), made.end());
    return {};
  }

  // The same to a model.
  static std::vector<Bytes> model(const MixOp& op,
                                  const std::vector<Bytes*>& operands) {
    std::vector<std::pair<const std::byte*, std::size_t>> read;
    for (const Bytes* bytes : operands) {
      read.emplace_back(bytes->data(), bytes->size());
    }
    const std::uint64_t state = mixed(op, read);
    std::vector<Bytes> results;
    for (std::size_t i = 0; i < op.result_bytes.size(); ++i) {
      results.push_back(pattern(op.result_bytes[i], state + i));
    }
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (!writes(op.accesses[i])) continue;
      *operands[i] = pattern(operands[i]->size(), state + 100 + i);
    }
    return results;
  }

  std::unique_ptr<RecordedOp> recorded(const MixOp& op) {
    class Recorded final : public RecordedOp {
     public:
      Recorded(RerunTest& test, const MixOp& op) : test_(test), op_(op) {
        ++test_.alive;
      }
      ~Recorded() override { --test_.alive; }
      runtime::Error run(std::span<Block* const> operands,
                         std::vector<Block*>& results) override {
        return test_.call(op_, operands, results, /*rerun=*/true);
      }
      bool isSideEffect(std::size_t i) const override {
        return op_.isSideEffect(i);
      }

     private:
      RerunTest& test_;
      const MixOp op_;
    };
    return std::make_unique<Recorded>(*this, op);
  }

  // ---- tensors with a model -------------------------------------------------
  struct Tensor {
    Block* block;
    Bytes bytes;
  };
  using Handle = std::shared_ptr<Tensor>; // released with the last of them

  Handle tensor(Block* block, Bytes bytes) {
    return {new Tensor{block, std::move(bytes)}, [this](Tensor* each) {
              pager->release(each->block);
              delete each;
            }};
  }
  Handle leaf(std::size_t bytes, std::uint64_t seed) {
    return tensor(filled(bytes, seed), pattern(bytes, seed));
  }
  // Runs an op on pager and model.
  std::vector<Handle> run(const MixOp& op,
                          const std::vector<Handle>& operands) {
    std::vector<Block*> blocks;
    std::vector<Bytes*> bytes;
    for (const Handle& each : operands) {
      blocks.push_back(each->block);
      bytes.push_back(&each->bytes);
    }
    std::vector<Block*> results;
    EXPECT_FALSE(failed(call(op, blocks, results, /*rerun=*/false)));
    std::vector<Bytes> expected = model(op, bytes);
    std::vector<Handle> made;
    for (std::size_t i = 0; i < results.size(); ++i) {
      made.push_back(tensor(results[i], std::move(expected[i])));
    }
    return made;
  }
  // One result of `bytes` from operands that are read.
  Handle unary(const std::vector<Handle>& operands, std::size_t bytes) {
    return run({next_seed++,
                std::vector<Access>(operands.size(), Access::kRead),
                {bytes},
                {}},
               operands)[0];
  }
  // Changes `first`, reads the others.
  void inPlace(const std::vector<Handle>& operands) {
    std::vector<Access> accesses(operands.size(), Access::kRead);
    accesses[0] = Access::kWrite;
    run({next_seed++, accesses, {}, {}}, operands);
  }
  void expectBytes(const Handle& each) {
    Bytes bytes(each->bytes.size());
    ASSERT_FALSE(failed(
        pager->read(*each->block, 0, bytes.data(), bytes.size(), stream)));
    ASSERT_TRUE(bytes == each->bytes);
  }
  bool isDropped(const Handle& each) const {
    return each->block->state() == BlockState::kDropped;
  }

  // Records every op and drops nothing by itself.
  void recordAll() { pager->stress().setDropStress(DropStress::kRecord); }

  runtime::Stream stream = kStream;
  OpMemory* op_memory = nullptr; // what is learned of all ops' memory
  std::uint64_t next_seed = 1;
  std::atomic<int> alive{0};                    // recorded ops
  std::function<runtime::Error()> before_rerun; // may fail
};

// In 1 MiB, all ops are recorded.
class PagerRerunTest : public RerunTest {
 protected:
  void SetUp() override {
    open(kMiB);
    recordAll();
  }
  Stats stats() const { return pager->stats(); }
};

} // namespace chameleon::memory
