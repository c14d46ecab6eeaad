// How the bytes of blocks can be made again: by running again the ops that made
// them (recomputation). Book-keeping alone; Recomputer acts on it.
//
// A *record* is an op call that created blocks, followed by those of in-place
// ops that finished their values (batch norm, relu_): its *calls*. All of its
// outputs are made again together. An operand is a block at a version; one that
// is an output of the record itself is the one being made. There is one for
// each op that may run again, so it is small: what does not grow with operands
// is at most 200 bytes, with its RecordedOp (kernels/reruns/recorded_op.h). An
// operand takes 56, and 184 for its geometry.
//
// A record *holds* the blocks that it reads: a block whose tensor died while it
// is held keeps its value, counts in heldBytes(), and goes with the last record
// that reads it. A record goes when none of its outputs is left, when all have
// been made again, or when one of its operands gets another value: it is void
// then. Before that its Dropped outputs are made again, so that nothing is ever
// lost:
//
//   R1 a Dropped block is an output, at its present version, of a record whose
//      operands have their recorded versions;
//   R2 records form no circle.
//
// Block::lineage and Block::kRecordedBit say that a block is part of a record:
// who writes such a block comes for the lock.
//
// Tests: recomputer_test.cpp, recomputer_scarcity_test.cpp.
//
// Thread safety: every method REQUIRES the pager's lock, but for run().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/runtime/result.h"
#include "memory/block.h"
#include "memory/pager_call.h"
#include "memory/recompute/fixed_array.h"

namespace chameleon::memory {

// An op call that can be run again, with all it needs but its operands.
// Destroyed under the pager's lock: it must not own what calls the pager.
class RecordedOp {
 public:
  RecordedOp() = default;
  RecordedOp(const RecordedOp&) = delete;
  RecordedOp& operator=(const RecordedOp&) = delete;
  virtual ~RecordedOp() = default;

  // Runs it as an op call of its own (OpRequest::rerun), on any thread, also on
  // two at a time. `operands` are in the order of the recorded call's. What it
  // creates is appended to `results`, in the order of the recorded call's, and
  // belongs to the caller, also where it fails.
  virtual runtime::Error run(std::span<Block* const> operands,
                             std::vector<Block*>& results) = 0;
  // The op writes this operand and its results do not depend on it (running
  // statistics): a re-run gets other memory in its place.
  virtual bool isSideEffect(std::size_t operand) const = 0;
};

struct Record {
  static constexpr std::uint32_t kOther = ~std::uint32_t{0};
  struct Source {
    Block* block = nullptr; // held; null: an output, or a side effect
    std::uint64_t version = 0;
    std::uint32_t output = kOther; // of this record; kOther: none
    std::size_t scratch_bytes = 0; // of a side effect, else 0
  };
  struct OpCall {
    std::unique_ptr<RecordedOp> op;
    profiler::Token token; // of the recorded call
    FixedArray<Source> operands;
  };
  // First the operands that the first call overwrites whole and unread, each
  // of `overwritten_bytes`. Then the results of that call, in their order.
  struct Output {
    Block* block = nullptr; // null: it died, or has another value by now
    std::uint64_t version = 0;
    std::size_t overwritten_bytes = 0; // of a result: 0
  };

  std::vector<OpCall> calls;
  FixedArray<Output> outputs;
  std::uint64_t seen = 0;  // by the walk of this number
  std::uint16_t users = 0; // threads that run it, or will
  bool is_void = false;    // gone, but for its users
  // The most that one of its calls had in HBM, in units of
  // ExtentMap::kAlignment.
  std::uint32_t needed_units = 0;
  Record* previous = nullptr;
  Record* next = nullptr;
};
static_assert(sizeof(Record) + sizeof(Record::OpCall) +
                  sizeof(Record::Output) <=
              128);

// What a block has to do with records. None of it: no lineage.
struct Lineage {
  Record* maker = nullptr;
  std::vector<Record*> readers; // each once
  std::uint32_t output = 0;     // of the maker
  bool held = false;            // its tensor is dead
};

class RecomputeRecords {
 public:
  // Records that one closure may have, so that a restore takes little time.
  static constexpr std::size_t kMaxClosure = 256;

  RecomputeRecords() = default;
  RecomputeRecords(const RecomputeRecords&) = delete;
  RecomputeRecords& operator=(const RecomputeRecords&) = delete;
  ~RecomputeRecords() { clear(); }

  // ---- records -------------------------------------------------------------
  // A call that is about to end: what it pins, and what it created. False: it
  // cannot be run again: it writes what it neither overwrites nor made itself,
  // or another call, which may write it, is at one of its operands.
  // `needed_bytes`: what it had in HBM. REQUIRES: < 2 TiB.
  bool add(std::span<const Operand> operands, std::span<Block* const> created,
           std::unique_ptr<RecordedOp> op, profiler::Token token,
           std::size_t needed_bytes);
  // All outputs have been made again, or it is of no use.
  void remove(Record& record);
  void clear() noexcept;

  // ---- the lives of blocks -------------------------------------------------
  // The tensor of a block with lineage died. True: it is held from now on.
  bool hold(Block& block);
  static bool isHeld(const Block& block) noexcept {
    return block.lineage != nullptr && block.lineage->held;
  }
  // A block dies. REQUIRES: no record reads it.
  void forget(Block& block);
  // A held block that no record reads any more, and that is to be destroyed;
  // null: none.
  Block* takeUnheld() noexcept;

  // ---- values --------------------------------------------------------------
  // A record that must run before the block's value may change; null: none.
  Record* dependent(const Block& block);
  // The held blocks whose bytes nothing needs: no record that reads one is
  // needed(), and no thread runs one. One may be listed more than once.
  void findHeldInVain(std::vector<Block*>& found);
  // The value is about to change, or its bytes go: what reads it is void.
  // REQUIRES: dependent() is null. `extends`: the op is recorded, so it may
  // become a step.
  void written(Block& block, bool extends);
  // Its bytes can be given up.
  bool droppable(const Block& block);
  // The record that makes a Dropped block.
  static Record& makerOf(const Block& block) noexcept;
  // What has to fit into HBM for it to run.
  static std::size_t neededBytes(const Record& record) noexcept;
  // True: it makes a Dropped block that somebody may ask for: one whose tensor
  // lives, or that a record reads which is needed or runs. A dead block that
  // was dropped is needed for nothing else.
  bool needed(const Record& record);
  // What must be made before the record can run; null: nothing.
  static Record* deeper(const Record& record) noexcept;

  // A thread runs the record, or will: it stays until that ends, with all
  // that it holds, and none of its operands is dropped.
  static void use(Record& record) noexcept { ++record.users; }
  void stopUsing(Record& record);

  std::size_t heldBytes() const noexcept { return held_bytes_; }
  std::size_t count() const noexcept { return count_; }
  // Aborts on a broken invariant; of one block.
  void check(const Block& block) const;

 private:
  static Lineage& lineageOf(Block& block);
  void prune(Block& block) noexcept; // its lineage, if it says nothing
  void detach(Record& record, std::uint32_t output);
  void unlink(Record& record);
  void free(Record& record) noexcept;
  void removeReaders(const Block& block);
  bool addMarked(std::span<const Operand> operands,
                 std::span<Block* const> created,
                 std::unique_ptr<RecordedOp> op, profiler::Token token,
                 std::size_t needed_bytes);
  bool extend(Record& record, std::uint32_t output,
              std::span<const Operand> operands,
              std::unique_ptr<RecordedOp>& op, profiler::Token token);
  FixedArray<Record::Source> sourcesOf(std::span<const Operand> operands,
                                       const RecordedOp& op,
                                       const Record* self) const;
  void holdAll(Record& record, const Record::OpCall& op_call);
  // False: more than kMaxClosure records, or `without` is one of them.
  bool closureFits(const Block& block, const Record* without);

  Record* records_ = nullptr;
  std::size_t count_ = 0;
  std::size_t held_bytes_ = 0;
  std::uint64_t walks_ = 0;
  std::vector<Record*> walk_; // scratch
  std::vector<Block*> unheld_;
};

} // namespace chameleon::memory
