#include "kernels/lists/list_run.h"

#include <algorithm>

#include <ATen/core/List.h>
#include <c10/util/Exception.h>

#include "backend/torch/device_allocator.h"
#include "backend/torch/storage.h"
#include "backend/torch/stream.h"
#include "kernels/alias_tensors.h"
#include "kernels/lists/list_ops.h"
#include "kernels/op_call.h"

namespace chameleon::kernels {

using torch::jit::Stack;

namespace {

// Before its parameter is used, a chunk is executed that is smaller by this
// factor: it comes in beside what the model is at, not instead of it.
constexpr std::size_t kPartsOfChunk = 8;

c10::Stream stream_of_thread(c10::DeviceIndex index) {
  return c10::Stream(
      c10::Stream::UNSAFE, c10::Device(backend::kChameleon, index),
      static_cast<c10::StreamId>(backend::current_stream(index).id));
}

class OnStream {
 public:
  explicit OnStream(const c10::Stream& stream)
      : previous_(backend::exchange_stream(stream)) {}
  ~OnStream() { backend::exchange_stream(previous_); }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  c10::Stream previous_;
};

const c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

bool look_the_same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() &&
         a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

// A tensor of the run's own, on the same storage.
at::Tensor alias_of(const at::Tensor& outer) {
  return at::Tensor(make_outer(*outer.unsafeGetTensorImpl(), outer.storage(),
                               outer.device()));
}

c10::Storage storage_with(c10::DataPtr data, std::size_t bytes) {
  return {c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(data),
      backend::device_allocator(), /*resizable=*/true)};
}

// Of a promise: nothing yet.
void set_deferred(const at::Tensor& operand, bool deferred) {
  if (memory::Block* const block = backend::block_of(storage_of(operand))) {
    if (!deferred) block->pager->deferredOpDone(*block);
    block->has_deferred_op.store(deferred, std::memory_order_release);
  }
}

void release_promise(void* context) noexcept {
  auto* block = static_cast<memory::Block*>(context);
  block->pager->release(block);
}

// Like `like`: what a kernel would make. `block` stands for its bytes, so that
// they are counted and have an address, but is not to be used: its deleter is
// not that of a chameleon storage.
at::Tensor promise_of(const at::Tensor& like, memory::Block* block) {
  c10::Storage storage =
      storage_with(c10::DataPtr(block->logical_address, block, &release_promise,
                                like.device()),
                   like.nbytes());
  at::Tensor promised = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      like.dtype());
  promised.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(),
                                                        like.strides());
  return promised;
}

} // namespace

ListRun::ListRun(backend::DeviceContext& device, std::size_t length)
    : device_(device),
      stream_(stream_of_thread(device.index)),
      length_(length),
      index_bytes_(length),
      done_(length),
      left_(length) {}

void ListRun::end() {
  for (Operand& operand : operands_) release(operand);
}

bool ListRun::isOnStreamOfThread() const noexcept {
  return stream_ == stream_of_thread(device_.index);
}

// ---- recording -------------------------------------------------------------

// kNoSlot: not with what the run does to that storage already.
ListRun::Slot ListRun::operandFor(const at::Tensor& outer,
                                  std::uint32_t index) {
  const c10::StorageImpl& storage = storage_of(outer);
  const auto [place, is_new] =
      slots_.try_emplace(&storage, static_cast<Slot>(operands_.size()));
  if (!is_new) {
    const Operand& known = operands_[place->second];
    const bool fits =
        known.index == index && look_the_same(known.tensor, outer);
    return fits ? place->second : kNoSlot;
  }
  if (backend::block_of(storage) == nullptr) {
    slots_.erase(place);
    return kNoSlot; // not the device's
  }
  operands_.push_back({alias_of(outer), index, 0});
  if (index != kEveryIndex) {
    index_bytes_[index] += memory::ExtentMap::round(storage.nbytes());
  }
  return place->second;
}

// False: one does not go with the run.
bool ListRun::findOperands(Op& op, at::ArrayRef<c10::IValue> arguments) {
  op.slots.resize(op.traits->arguments.size());
  for (std::size_t a = 0; a < op.slots.size(); ++a) {
    const ArgumentTraits& argument = op.traits->arguments[a];
    const c10::IValue& value = arguments[argument.index];
    std::vector<Slot>& slots = op.slots[a];
    if (argument.kind == ArgumentKind::kTensorList) {
      slots.reserve(length_);
      for (const c10::IValue& element : value.toListRef()) {
        slots.push_back(operandFor(element.toTensor(),
                                   static_cast<std::uint32_t>(slots.size())));
        if (slots.back() == kNoSlot) return false;
      }
    } else if (argument.kind == ArgumentKind::kTensor && value.isTensor()) {
      slots.push_back(operandFor(value.toTensor(), kEveryIndex));
      if (slots.back() == kNoSlot) return false;
    }
  }
  return true;
}

// The op is the next one, and the last so far that uses its operands.
void ListRun::use(const Op& op) {
  for (const std::vector<Slot>& slots : op.slots) {
    for (const Slot slot : slots) {
      Operand& operand = operands_[slot];
      // mutant: last-reader
      operand.last_op = static_cast<std::uint32_t>(ops_.size());
      // mutant: deferred-flag
      set_deferred(operand.tensor, true);
    }
  }
}

void ListRun::forgetOperandsFrom(std::size_t count) noexcept {
  for (; operands_.size() > count; operands_.pop_back()) {
    const Operand& operand = operands_.back();
    const c10::StorageImpl& storage = storage_of(operand.tensor);
    if (operand.index != kEveryIndex) {
      index_bytes_[operand.index] -= memory::ExtentMap::round(storage.nbytes());
    }
    slots_.erase(&storage);
  }
}

bool ListRun::add(const OpTraits& traits, const c10::OperatorHandle& op,
                  Stack& stack) {
  const std::size_t base = stack.size() - traits.argument_count;
  Op recorded{&traits, op, at::ThreadLocalState(), ThreadSettings::now(), {},
              {},      {}};
  const std::size_t operands = operands_.size();
  const bool is_functional = !traits.results.empty();
  std::vector<at::Tensor> made;
  if (!findOperands(recorded, at::ArrayRef<c10::IValue>(stack).slice(base)) ||
      (is_functional && !promise(recorded, made))) {
    forgetOperandsFrom(operands);
    return false;
  }

  // From here on it is certain.
  use(recorded);
  if (traits.counts_versions && !c10::impl::tls_is_dispatch_key_excluded(
                                    c10::DispatchKey::ADInplaceOrView)) {
    for (const ArgumentTraits& argument : traits.arguments) {
      if (!argument.writes) continue;
      for (const c10::IValue& element :
           stack[base + argument.index].toListRef()) {
        element.unsafeToTensorImpl()->bump_version();
      }
    }
  }
  recorded.arguments.assign(stack.begin() + static_cast<std::ptrdiff_t>(base),
                            stack.end());
  for (const ArgumentTraits& argument : traits.arguments) {
    if (argument.kind != ArgumentKind::kOtherList) {
      recorded.arguments[argument.index] = c10::IValue();
    }
  }
  stack.resize(base);
  if (is_functional) {
    recorded.results = own(made);
    stack.emplace_back(c10::List<at::Tensor>(made));
  }
  ops_.push_back(std::move(recorded));
  return true;
}

// Results, each like its element of the op's first list. False: no logical
// room.
bool ListRun::promise(const Op& op, std::vector<at::Tensor>& made) {
  made.reserve(length_);
  const auto is_tensor_list = [](const ArgumentTraits& argument) {
    return argument.kind == ArgumentKind::kTensorList;
  };
  const auto& arguments = op.traits->arguments;
  const auto first = std::ranges::find_if(arguments, is_tensor_list);
  for (const Slot slot :
       op.slots[static_cast<std::size_t>(first - arguments.begin())]) {
    const at::Tensor& tensor = operands_[slot].tensor;
    auto block = device_.pager->createBlock(tensor.nbytes());
    if (!block.ok()) return false;
    made.push_back(promise_of(tensor, *block));
  }
  return true;
}

// Operands for what was promised, from now on.
std::vector<ListRun::Slot> ListRun::own(
    const std::vector<at::Tensor>& promised) {
  std::vector<Slot> slots;
  slots.reserve(length_);
  const auto op = static_cast<std::uint32_t>(ops_.size());
  for (std::uint32_t i = 0; i < length_; ++i) {
    slots.push_back(static_cast<Slot>(operands_.size()));
    slots_.emplace(&storage_of(promised[i]), slots.back());
    operands_.push_back({alias_of(promised[i]), i, op});
    index_bytes_[i] += memory::ExtentMap::round(promised[i].nbytes());
  }
  return slots;
}

// ---- executing -------------------------------------------------------------

bool ListRun::uses(const c10::StorageImpl& storage) const {
  return slots_.contains(&storage);
}

void ListRun::takeBytes(c10::StorageImpl& storage) {
  const auto known = slots_.extract(&storage);
  at::Tensor& tensor = operands_[known.mapped()].tensor;
  const c10::Device device = storage.device();
  c10::Storage own = storage_with(
      storage.set_data_ptr(c10::DataPtr(nullptr, device)), storage.nbytes());
  storage.set_nbytes(0);
  slots_.emplace(own.unsafeGetStorageImpl(), known.mapped());
  tensor = at::Tensor(
      make_outer(*tensor.unsafeGetTensorImpl(), std::move(own), device));
}

std::size_t ListRun::chunkEnd(std::size_t first, std::size_t most_bytes) const {
  std::size_t bytes = 0;
  std::size_t end = first;
  for (; end < length_ && !done_[end]; ++end) {
    bytes += index_bytes_[end];
    if (bytes > most_bytes && end > first) break;
  }
  return end;
}

void ListRun::execute() {
  for (std::size_t i = 0; i < length_; ++i) {
    while (!done_[i]) executeChunk(i, chunk_bytes_of(device_));
  }
}

void ListRun::executeOn(const c10::StorageImpl& storage) {
  const std::size_t index = operands_[slots_.at(&storage)].index;
  if (index == kEveryIndex) return execute();
  const std::size_t most_bytes = chunk_bytes_of(device_) / kPartsOfChunk;
  while (!done_[index]) executeChunk(index, most_bytes);
}

// From index `first` on; but a chunk that was begun comes first.
void ListRun::executeChunk(std::size_t first, std::size_t most_bytes) {
  const OnStream on_stream(stream_);
  if (first_ == end_) {
    first_ = at_ = first;
    end_ = chunkEnd(first, most_bytes);
  }
  for (; next_op_ < ops_.size(); ++next_op_) {
    while (at_ < end_) runPiece(ops_[next_op_]);
    at_ = first_;
  }
  next_op_ = 0;
  left_ -= end_ - first_;
  for (; first_ < end_; ++first_) done_[first_] = true;
}

// All of the chunk at once; where that finds no room, fewer indices.
void ListRun::runPiece(const Op& op) {
  const std::size_t count = std::min(most_, end_ - at_);
  try {
    run(op, {at_, at_ + count});
    at_ += count;
  } catch (const c10::OutOfMemoryError&) {
    if (broken_ || count == 1) throw;
    most_ = count / 2;
  }
}

void ListRun::run(const Op& op, Range range) {
  Stack stack;
  pushArguments(op, range, stack);
  makeWay(op, range);
  bool started = false;
  try {
    const at::ThreadLocalStateGuard as_called(op.caller);
    const WithThreadSettings with(op.settings);
    call_native(*op.traits, op.handle, &stack, &started);
  } catch (const c10::OutOfMemoryError&) {
    broken_ = started && !op.traits->mayRetry();
    throw;
  } catch (...) {
    broken_ = started;
    throw;
  }
  if (!op.results.empty()) fulfil(op, range, stack.back());
  stack.clear();
  for (const std::vector<Slot>& slots : op.slots) releaseOperands(slots, range);
  releaseOperands(op.results, range);
}

void ListRun::pushArguments(const Op& op, Range range, Stack& stack) const {
  stack.assign(op.arguments.begin(), op.arguments.end());
  for (std::size_t a = 0; a < op.traits->arguments.size(); ++a) {
    const ArgumentTraits& argument = op.traits->arguments[a];
    c10::IValue& value = stack[argument.index];
    const std::vector<Slot>& slots = op.slots[a];
    if (argument.kind == ArgumentKind::kTensor) {
      if (!slots.empty()) value = operands_[slots.front()].tensor;
    } else if (argument.kind == ArgumentKind::kTensorList) {
      c10::List<at::Tensor> part;
      part.reserve(range.end - range.first);
      for (std::size_t i = range.first; i < range.end && !slots.empty(); ++i) {
        part.push_back(operands_[slots[i]].tensor);
      }
      value = std::move(part);
    } else {
      value = slice_of(value, range.first, range.end);
    }
  }
}

// From here on the bytes of the results are counted as what the kernel makes.
// What stays is an address without a block, which no op accepts.
void ListRun::makeWay(const Op& op, Range range) {
  if (op.results.empty()) return;
  for (std::size_t i = range.first; i < range.end; ++i) {
    c10::StorageImpl& storage =
        *operands_[op.results[i]].tensor.storage().unsafeGetStorageImpl();
    void* const address = storage.data_ptr().get();
    storage.set_data_ptr_noswap(c10::DataPtr(address, storage.device()));
  }
}

// The promised storages get what the kernel made.
void ListRun::fulfil(const Op& op, Range range, const c10::IValue& made) {
  const std::vector<at::Tensor> tensors = made.toTensorVector();
  for (std::size_t i = range.first; i < range.end; ++i) {
    const at::Tensor& promised = operands_[op.results[i]].tensor;
    const at::Tensor& tensor = tensors[i - range.first];
    c10::StorageImpl& to = *promised.storage().unsafeGetStorageImpl();
    c10::StorageImpl& from = *tensor.storage().unsafeGetStorageImpl();
    TORCH_INTERNAL_ASSERT(
        look_the_same(promised, tensor) && to.nbytes() == from.nbytes(),
        op.traits->name, ": its result is not what it was said to be");
    to.set_data_ptr_noswap(
        from.set_data_ptr(c10::DataPtr(nullptr, from.device())));
    set_deferred(promised, true);
  }
}

void ListRun::releaseOperands(const std::vector<Slot>& slots, Range range) {
  if (slots.size() != length_) return; // one for all
  for (std::size_t i = range.first; i < range.end; ++i) {
    Operand& operand = operands_[slots[i]];
    if (operand.index == i && operand.last_op == next_op_) release(operand);
  }
}

void ListRun::release(Operand& operand) {
  if (!operand.tensor.defined()) return; // an op may have it twice
  set_deferred(operand.tensor, false);
  const c10::StorageImpl& storage = storage_of(operand.tensor);
  slots_.erase(&storage);
  if (storage.pyobj_slot()->load_pyobj() != nullptr) {
    watched_.push_back(operand.tensor);
  }
  operand.tensor.reset();
}

} // namespace chameleon::kernels
