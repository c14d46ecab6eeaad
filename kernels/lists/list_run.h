// A run of list ops over the same tensors: recorded one by one, executed chunk
// by chunk through all of them, in any order of chunks. An optimizer's step of
// a dozen ops then needs each chunk of its state in memory once, not a dozen
// times; and a chunk that is executed just before the model uses its parameter
// needs parameter, gradient and state in memory beside the next forward pass,
// not at the end of the step.
//
// That changes nothing but the order, because element i of every list depends
// on elements i of the others only, and because no storage belongs to two
// indices if any op of the run writes it (add() refuses such an op).
//
// A run holds the operands' storages, by tensors of its own: what users do
// with theirs meanwhile (`.data =`, deleting them) is theirs. Results exist as
// soon as they are recorded, and count as live: tensors whose storages are not
// the device's yet (backend::block_of() is null), so that nothing can use them
// before the op has run. Until the last op on an operand has run, its block has
// `has_deferred_op`; then, if nobody else holds the operand, it is freed.
// Unless Python has an object for its storage: it may call code then that uses
// others, so that one dies with the run.
//
// Thread safety: none; used under one lock (deferred_lists.cpp), but for the
// destructor, which REQUIRES that nothing was added, or end().
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Stream.h>

#include "backend/torch/device.h"
#include "kernels/op_traits.h"
#include "kernels/reruns/bit_settings.h"

namespace chameleon::kernels {

class ListRun {
 public:
  static constexpr std::size_t kMaxOps = 32;

  // On the calling thread's current stream. `length`: of all lists.
  ListRun(backend::DeviceContext& device, std::size_t length);
  ListRun(const ListRun&) = delete;
  ListRun& operator=(const ListRun&) = delete;

  // REQUIRES: is_deferrable(traits, *stack, device), lists of `length`; nothing
  // of the run was executed; no other run uses the operands. Takes
  // the arguments from the stack and leaves results there. False: the op does
  // not go with those before it, or there is no logical room for its results;
  // nothing was done.
  bool add(const OpTraits& traits, const c10::OperatorHandle& op,
           torch::jit::Stack& stack);

  // True: an op that was not executed yet has an operand or result there.
  bool uses(const c10::StorageImpl& storage) const;
  // All that is left. Goes on where it stopped. After an exception: see
  // isBroken().
  void execute();
  // The same for the indices of `storage` alone, and a few after them.
  // REQUIRES: uses(storage).
  void executeOn(const c10::StorageImpl& storage);
  // Leaves `storage` empty: what is left of the run goes on with its bytes in a
  // storage of the run's own. REQUIRES: uses(storage).
  void takeBytes(c10::StorageImpl& storage);
  bool isDone() const noexcept { return left_ == 0; }
  // An op failed inside its kernel, so that execute() cannot go on; what it
  // writes is undefined, and what comes after it did not take place.
  bool isBroken() const noexcept { return broken_; }

  // What was not executed does not take place.
  void end();

  const backend::DeviceContext& device() const noexcept { return device_; }
  bool isOnStreamOfThread() const noexcept;
  std::size_t length() const noexcept { return length_; }
  std::size_t opCount() const noexcept { return ops_.size(); }
  bool takesOps() const noexcept {
    return left_ == length_ && end_ == first_ && ops_.size() < kMaxOps;
  }

 private:
  using Slot = std::uint32_t; // in operands_
  static constexpr Slot kNoSlot = ~Slot{0};
  static constexpr std::uint32_t kEveryIndex = ~std::uint32_t{0};

  // One storage, as all ops of the run show it.
  struct Operand {
    at::Tensor tensor;
    std::uint32_t index; // of the lists' elements it belongs to
    std::uint32_t last_op;
  };
  struct Op {
    const OpTraits* traits;
    c10::OperatorHandle handle;
    at::ThreadLocalState caller;          // as it was called
    ThreadSettings settings;              // the same
    std::vector<c10::IValue> arguments;   // those without tensors
    std::vector<std::vector<Slot>> slots; // of traits->arguments, in order
    std::vector<Slot> results;
  };

  Slot operandFor(const at::Tensor& outer, std::uint32_t index);
  bool findOperands(Op& op, at::ArrayRef<c10::IValue> arguments);
  void use(const Op& op);
  void forgetOperandsFrom(std::size_t count) noexcept;
  bool promise(const Op& op, std::vector<at::Tensor>& made);
  std::vector<Slot> own(const std::vector<at::Tensor>& promised);
  struct Range {
    std::size_t first;
    std::size_t end;
  };
  std::size_t chunkEnd(std::size_t first, std::size_t most_bytes) const;
  void executeChunk(std::size_t first, std::size_t most_bytes);
  void runPiece(const Op& op);
  void run(const Op& op, Range range);
  void pushArguments(const Op& op, Range range, torch::jit::Stack& stack) const;
  void makeWay(const Op& op, Range range);
  void fulfil(const Op& op, Range range, const c10::IValue& made);
  void releaseOperands(const std::vector<Slot>& slots, Range range);
  void release(Operand& operand);

  backend::DeviceContext& device_;
  const c10::Stream stream_;
  const std::size_t length_;
  std::vector<Op> ops_;
  std::vector<Operand> operands_;
  std::vector<at::Tensor> watched_; // released operands that Python may watch
  std::unordered_map<const c10::StorageImpl*, Slot> slots_;
  std::vector<std::size_t> index_bytes_; // of all operands, rounded
  std::vector<bool> done_;               // of each index
  std::size_t left_;                     // how many are not
  // The chunk that was begun; empty: none was.
  std::size_t first_ = 0;
  std::size_t end_ = 0;
  std::uint32_t next_op_ = 0;
  std::size_t at_ = 0;                 // index where next_op_ goes on
  std::size_t most_ = ~std::size_t{0}; // indices at a time; memory is short
  bool broken_ = false;
};

} // namespace chameleon::kernels
