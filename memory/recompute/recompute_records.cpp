#include "memory/recompute/recompute_records.h"

#include <algorithm>
#include <utility>

#include "backend/runtime/check.h"

namespace chameleon::memory {

namespace {

constexpr std::size_t kMaxWalk = 4096; // records looked at for a circle

std::uint64_t version_of(const Block& block) noexcept {
  return block.version.load(std::memory_order_acquire);
}

void raise_needed(Record& record, std::size_t bytes) noexcept {
  const auto units = static_cast<std::uint32_t>(ExtentMap::round(bytes) /
                                                ExtentMap::kAlignment);
  record.needed_units = std::max(record.needed_units, units);
}

} // namespace

// ---- lineage --------------------------------------------------------------

Lineage& RecomputeRecords::lineageOf(Block& block) {
  if (block.lineage == nullptr) {
    block.lineage = new Lineage;
    block.word.fetch_or(Block::kRecordedBit, std::memory_order_acq_rel);
  }
  return *block.lineage;
}

void RecomputeRecords::prune(Block& block) noexcept {
  if (block.lineage == nullptr) return;
  const Lineage& lineage = *block.lineage;
  if (lineage.maker != nullptr || !lineage.readers.empty() || lineage.held) {
    return;
  }
  delete std::exchange(block.lineage, nullptr);
  block.word.fetch_and(~Block::kRecordedBit, std::memory_order_acq_rel);
}

bool RecomputeRecords::hold(Block& block) {
  if (block.lineage == nullptr || block.lineage->readers.empty()) return false;
  CHAMELEON_CHECK(!block.lineage->held, "a block died twice");
  block.lineage->held = true;
  held_bytes_ += block.bytes;
  return true;
}

void RecomputeRecords::forget(Block& block) {
  if (block.lineage == nullptr) return;
  Lineage& lineage = *block.lineage;
  CHAMELEON_CHECK(lineage.readers.empty(), "a block dies that a record holds");
  if (lineage.held) held_bytes_ -= block.bytes;
  lineage.held = false;
  if (lineage.maker != nullptr) {
    detach(*lineage.maker, lineage.output);
  } else {
    prune(block);
  }
}

Block* RecomputeRecords::takeUnheld() noexcept {
  if (unheld_.empty()) return nullptr;
  Block* const block = unheld_.back();
  unheld_.pop_back();
  return block;
}

// ---- records --------------------------------------------------------------

FixedArray<Record::Source> RecomputeRecords::sourcesOf(
    std::span<const Operand> operands, const RecordedOp& op,
    const Record* self) const {
  FixedArray<Record::Source> sources(operands.size());
  for (std::size_t i = 0; i < operands.size(); ++i) {
    Block& block = *operands[i].block;
    Record::Source source{&block, version_of(block), Record::kOther, 0};
    if (writes(operands[i].access) && op.isSideEffect(i)) {
      source = {nullptr, 0, Record::kOther, block.bytes};
    } else if (self != nullptr && block.lineage != nullptr &&
               block.lineage->maker == self) {
      source = {nullptr, 0, block.lineage->output, 0};
    }
    sources[i] = source;
  }
  return sources;
}

void RecomputeRecords::holdAll(Record& record, const Record::OpCall& op_call) {
  for (const Record::Source& source : op_call.operands) {
    if (source.block == nullptr) continue;
    std::vector<Record*>& readers = lineageOf(*source.block).readers;
    // Each once; mostly the newest, if at all.
    if (std::find(readers.rbegin(), readers.rend(), &record) ==
        readers.rend()) {
      readers.push_back(&record);
    }
  }
}

std::size_t RecomputeRecords::neededBytes(const Record& record) noexcept {
  return std::size_t{record.needed_units} * ExtentMap::kAlignment;
}

bool RecomputeRecords::add(std::span<const Operand> operands,
                           std::span<Block* const> created,
                           std::unique_ptr<RecordedOp> op,
                           profiler::Token token, std::size_t needed_bytes) {
  bool busy = false;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (writes(operands[i].access) && op->isSideEffect(i)) continue;
    // Marked first: who pins it later to write it comes for the lock.
    lineageOf(*operands[i].block);
    busy = busy || operands[i].block->pins() > 1;
  }
  const bool added =
      !busy && addMarked(operands, created, std::move(op), token, needed_bytes);
  for (const Operand& operand : operands) prune(*operand.block);
  return added;
}

bool RecomputeRecords::addMarked(std::span<const Operand> operands,
                                 std::span<Block* const> created,
                                 std::unique_ptr<RecordedOp> op,
                                 profiler::Token token,
                                 std::size_t needed_bytes) {
  Block* changed = nullptr; // read and written
  std::vector<std::size_t> overwritten;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!writes(operands[i].access) || op->isSideEffect(i)) continue;
    if (operands[i].access == Access::kOverwrite) {
      overwritten.push_back(i);
    } else if (changed != nullptr) {
      return false;
    } else {
      changed = operands[i].block;
    }
  }
  if (changed != nullptr) {
    if (!created.empty() || !overwritten.empty()) return false;
    const Lineage* const lineage = changed->lineage;
    if (lineage == nullptr || lineage->maker == nullptr) return false;
    Record& maker = *lineage->maker;
    const std::uint32_t output = lineage->output;
    if (maker.outputs[output].version == version_of(*changed) &&
        maker.users == 0 && extend(maker, output, operands, op, token)) {
      raise_needed(maker, needed_bytes);
      return true;
    }
    detach(maker, output);
    return false;
  }
  if (created.empty() && overwritten.empty()) return false;

  auto* const record = new Record;
  raise_needed(*record, needed_bytes);
  record->next = records_;
  if (records_ != nullptr) records_->previous = record;
  records_ = record;
  ++count_;
  record->outputs =
      FixedArray<Record::Output>(overwritten.size() + created.size());
  Record::OpCall op_call{std::move(op), token, {}};
  op_call.operands = sourcesOf(operands, *op_call.op, nullptr);
  std::uint32_t outputs = 0;
  const auto addOutput = [&](Block& block, std::uint64_t version,
                             std::size_t overwritten_bytes) {
    Lineage& lineage = lineageOf(block);
    if (lineage.maker != nullptr) {
      detach(*lineage.maker, lineage.output);
    }
    Lineage& mine = lineageOf(block); // it may have been pruned
    mine.maker = record;
    mine.output = outputs;
    record->outputs[outputs] = {&block, version, overwritten_bytes};
    return outputs++;
  };
  for (const std::size_t i : overwritten) {
    Block& block = *operands[i].block;
    op_call.operands[i] = {
        nullptr, 0, addOutput(block, version_of(block) + 1, block.bytes), 0};
  }
  for (Block* const block : created) {
    addOutput(*block, version_of(*block), 0);
  }
  holdAll(*record, op_call);
  record->calls.push_back(std::move(op_call));
  return true;
}

// An in-place op becomes one of its calls. False: the output would need itself.
bool RecomputeRecords::extend(Record& record, std::uint32_t output,
                              std::span<const Operand> operands,
                              std::unique_ptr<RecordedOp>& op,
                              profiler::Token token) {
  for (const Operand& operand : operands) {
    const Lineage* const lineage = operand.block->lineage;
    // Another output, which has another value by now.
    if (lineage != nullptr && lineage->maker == &record &&
        record.outputs[lineage->output].version != version_of(*operand.block)) {
      detach(record, lineage->output);
    }
  }
  Record::OpCall op_call{std::move(op), token, {}};
  op_call.operands = sourcesOf(operands, *op_call.op, &record);
  // Of one output alone nothing that reads it is left (written()).
  const bool may_circle = std::any_of(
      record.outputs.begin(), record.outputs.end(),
      [&](const Record::Output& other) {
        return &other != &record.outputs[output] && other.block != nullptr &&
               !other.block->lineage->readers.empty();
      });
  for (const Record::Source& source : op_call.operands) {
    if (may_circle && source.block != nullptr &&
        !closureFits(*source.block, &record)) {
      return false;
    }
  }
  ++record.outputs[output].version; // as the op's end leaves it
  holdAll(record, op_call);
  record.calls.push_back(std::move(op_call));
  return true;
}

// The output is none any more.
void RecomputeRecords::detach(Record& record, std::uint32_t output) {
  Block& block = *std::exchange(record.outputs[output].block, nullptr);
  block.lineage->maker = nullptr;
  prune(block);
  const bool any = std::any_of(
      record.outputs.begin(), record.outputs.end(),
      [](const Record::Output& each) { return each.block != nullptr; });
  if (!any) remove(record);
}

void RecomputeRecords::remove(Record& record) {
  if (record.is_void) return;
  record.is_void = true;
  for (Record::Output& output : record.outputs) {
    Block* const block = std::exchange(output.block, nullptr);
    if (block == nullptr) continue;
    block->lineage->maker = nullptr;
    prune(*block);
  }
  if (record.users == 0) free(record);
}

void RecomputeRecords::stopUsing(Record& record) {
  if (--record.users == 0 && record.is_void) free(record);
}

void RecomputeRecords::free(Record& record) noexcept {
  for (const Record::OpCall& op_call : record.calls) {
    for (const Record::Source& source : op_call.operands) {
      Block* const block = source.block;
      if (block == nullptr || block->lineage == nullptr) continue;
      Lineage& lineage = *block->lineage;
      const auto at =
          std::find(lineage.readers.begin(), lineage.readers.end(), &record);
      if (at == lineage.readers.end()) continue;
      *at = lineage.readers.back();
      lineage.readers.pop_back();
      if (lineage.readers.empty() && lineage.held) unheld_.push_back(block);
      prune(*block);
    }
  }
  unlink(record);
  delete &record;
}

void RecomputeRecords::unlink(Record& record) {
  (record.previous != nullptr ? record.previous->next : records_) = record.next;
  if (record.next != nullptr) record.next->previous = record.previous;
  --count_;
}

void RecomputeRecords::clear() noexcept {
  while (records_ != nullptr) {
    records_->users = 0;
    if (records_->is_void) {
      free(*records_);
    } else {
      remove(*records_);
    }
  }
}

// ---- values ---------------------------------------------------------------

Record* RecomputeRecords::dependent(const Block& block) {
  if (block.lineage == nullptr) return nullptr;
  for (Record* const reader : block.lineage->readers) {
    if (needed(*reader)) return reader;
  }
  return nullptr;
}

void RecomputeRecords::findHeldInVain(std::vector<Block*>& found) {
  // Marks the records that are needed: first those of live Dropped blocks and
  // those that run, then those that make what these read.
  const std::uint64_t walk = ++walks_;
  walk_.clear();
  const auto mark = [&](Record& record) {
    if (std::exchange(record.seen, walk) != walk) walk_.push_back(&record);
  };
  for (Record* record = records_; record != nullptr; record = record->next) {
    const bool asked_for = std::any_of(
        record->outputs.begin(), record->outputs.end(),
        [](const Record::Output& output) {
          return output.block != nullptr && !isHeld(*output.block) &&
                 output.block->state() == BlockState::kDropped;
        });
    if (asked_for || record->users > 0) mark(*record);
  }
  while (!walk_.empty()) {
    const Record& record = *walk_.back();
    walk_.pop_back();
    for (const Record::OpCall& op_call : record.calls) {
      for (const Record::Source& source : op_call.operands) {
        if (source.block != nullptr &&
            source.block->state() == BlockState::kDropped) {
          mark(makerOf(*source.block));
        }
      }
    }
  }
  for (Record* record = records_; record != nullptr; record = record->next) {
    if (record->seen == walk) continue;
    for (const Record::OpCall& op_call : record->calls) {
      for (const Record::Source& source : op_call.operands) {
        Block* const block = source.block;
        if (block == nullptr || !isHeld(*block)) continue;
        const std::vector<Record*>& readers = block->lineage->readers;
        const bool in_vain = readers.front() == record &&
                             std::none_of(readers.begin(), readers.end(),
                                          [&](const Record* each) {
                                            return each->seen == walk;
                                          });
        if (in_vain) found.push_back(block);
      }
    }
  }
}

void RecomputeRecords::written(Block& block, bool extends) {
  if (block.lineage == nullptr) return;
  // mutant: outlived-readers
  removeReaders(block);
  // Removing may have taken the last that was to be said of the block.
  if (extends || block.lineage == nullptr) return;
  if (block.lineage->maker != nullptr) {
    detach(*block.lineage->maker, block.lineage->output);
  }
}

// With those that read what the readers had made and nothing has the bytes of:
// such blocks are dead, and go.
void RecomputeRecords::removeReaders(const Block& block) {
  const std::uint64_t walk = ++walks_;
  std::vector<Record*> readers;
  walk_.clear();
  const auto add = [&](const Block& read) {
    for (Record* const reader : read.lineage->readers) {
      if (std::exchange(reader->seen, walk) != walk) walk_.push_back(reader);
    }
  };
  add(block);
  while (!walk_.empty()) {
    Record* const reader = walk_.back();
    walk_.pop_back();
    readers.push_back(reader);
    for (const Record::Output& output : reader->outputs) {
      if (output.block == nullptr ||
          output.block->state() != BlockState::kDropped) {
        continue;
      }
      CHAMELEON_CHECK(isHeld(*output.block),
                      "R1: a dropped block loses its record");
      add(*output.block);
    }
  }
  for (Record* const reader : readers) remove(*reader);
}

bool RecomputeRecords::droppable(const Block& block) {
  const Lineage* const lineage = block.lineage;
  if (lineage == nullptr || lineage->maker == nullptr) return false;
  const Record& maker = *lineage->maker;
  // mutant: dropped-version
  if (maker.outputs[lineage->output].version != version_of(block)) {
    return false;
  }
  // Somebody is about to read it.
  for (const Record* const reader : lineage->readers) {
    if (reader->users > 0) return false;
  }
  for (const Record::OpCall& op_call : maker.calls) {
    for (const Record::Source& source : op_call.operands) {
      // It changes now, or may: the call that begins was asked already.
      if (source.block != nullptr &&
          (version_of(*source.block) != source.version ||
           source.block->host_writing || source.block->claims > 0)) {
        return false;
      }
    }
  }
  return closureFits(block, nullptr);
}

Record& RecomputeRecords::makerOf(const Block& block) noexcept {
  CHAMELEON_CHECK(block.lineage != nullptr && block.lineage->maker != nullptr,
                  "R1: a dropped block without a record");
  return *block.lineage->maker;
}

bool RecomputeRecords::needed(const Record& record) {
  const std::uint64_t walk = ++walks_;
  walk_.clear();
  const Record* next = &record;
  for (;;) {
    for (const Record::Output& output : next->outputs) {
      const Block* const block = output.block;
      if (block == nullptr || block->state() != BlockState::kDropped) continue;
      if (!isHeld(*block)) return true;
      for (Record* const reader : block->lineage->readers) {
        if (reader->users > 0) return true;
        if (std::exchange(reader->seen, walk) != walk) walk_.push_back(reader);
      }
    }
    if (walk_.empty()) return false;
    next = walk_.back();
    walk_.pop_back();
  }
}

Record* RecomputeRecords::deeper(const Record& record) noexcept {
  for (const Record::OpCall& op_call : record.calls) {
    for (const Record::Source& source : op_call.operands) {
      if (source.block != nullptr &&
          source.block->state() == BlockState::kDropped) {
        return &makerOf(*source.block);
      }
    }
  }
  return nullptr;
}

// With `without` all records that the block ever may need, else those that it
// would need now.
bool RecomputeRecords::closureFits(const Block& block, const Record* without) {
  const std::uint64_t walk = ++walks_;
  const std::size_t most = without != nullptr ? kMaxWalk : kMaxClosure;
  std::size_t seen = 0;
  walk_.clear();
  const auto visit = [&](const Block& each) {
    if (each.lineage == nullptr || each.lineage->maker == nullptr) return true;
    Record& maker = *each.lineage->maker;
    if (&maker == without) return false;
    if (maker.seen == walk) return true;
    maker.seen = walk;
    walk_.push_back(&maker);
    return ++seen <= most;
  };
  if (!visit(block)) return false;
  while (!walk_.empty()) {
    const Record& record = *walk_.back();
    walk_.pop_back();
    for (const Record::OpCall& op_call : record.calls) {
      for (const Record::Source& source : op_call.operands) {
        if (source.block == nullptr) continue;
        if (without == nullptr &&
            source.block->state() != BlockState::kDropped) {
          continue;
        }
        if (!visit(*source.block)) return false;
      }
    }
  }
  return true;
}

// ---- invariants -----------------------------------------------------------

void RecomputeRecords::check(const Block& block) const {
  const bool marked = (block.word.load() & Block::kRecordedBit) != 0;
  CHAMELEON_CHECK(marked == (block.lineage != nullptr),
                  "a block is marked as recorded and is not, or is and is not");
  const bool dropped = block.state() == BlockState::kDropped;
  if (block.lineage == nullptr) {
    CHAMELEON_CHECK(!dropped, "R1: a dropped block without a record");
    return;
  }
  const Lineage& lineage = *block.lineage;
  CHAMELEON_CHECK(lineage.maker != nullptr || !lineage.readers.empty(),
                  "a block is part of no record and says that it is");
  CHAMELEON_CHECK(!lineage.held || !lineage.readers.empty(),
                  "a dead block is held by no record");
  for (const Record* const reader : lineage.readers) {
    const bool reads = std::any_of(
        reader->calls.begin(), reader->calls.end(), [&](const auto& op_call) {
          return std::any_of(
              op_call.operands.begin(), op_call.operands.end(),
              [&](const Record::Source& s) { return s.block == &block; });
        });
    CHAMELEON_CHECK(reads, "a record holds a block that it does not read");
  }
  if (lineage.maker == nullptr) {
    CHAMELEON_CHECK(!dropped, "R1: a dropped block without a record");
    return;
  }
  const Record::Output& output = lineage.maker->outputs[lineage.output];
  CHAMELEON_CHECK(!lineage.maker->is_void && output.block == &block,
                  "a block and its record disagree");
  if (!dropped) return;
  CHAMELEON_CHECK(output.version == version_of(block) && block.pins() == 0,
                  "R1: a dropped block of another value than recorded");
  for (const Record::OpCall& op_call : lineage.maker->calls) {
    for (const Record::Source& source : op_call.operands) {
      CHAMELEON_CHECK(source.block == nullptr ||
                          version_of(*source.block) == source.version,
                      "R1: an operand of a dropped block has another value");
    }
  }
}

} // namespace chameleon::memory
