#include "kernels/lists/list_ops.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "kernels/call_arguments.h"
#include "kernels/op_call.h"

namespace chameleon::kernels {
namespace {

using torch::jit::Stack;

// Of the budget, for what a kernel takes that never ran: little.
constexpr std::size_t kUnseenShare = 32;

bool is_foreach(const OpTraits& traits) {
  return std::string_view(traits.name).starts_with("aten::_foreach_");
}

bool is_list(const ArgumentTraits& argument) {
  return argument.kind == ArgumentKind::kTensorList ||
         argument.kind == ArgumentKind::kOtherList;
}

std::size_t bytes_of(const c10::IValue& value) {
  return is_device_tensor(value) ? value.toTensor().nbytes() : 0;
}

// One call's lists, all of the same length (empty ones aside).
class Lists {
 public:
  Lists(const OpTraits& traits, const c10::OperatorHandle& op,
        const Stack& stack)
      : traits_(traits), base_(stack.size() - traits.argument_count) {
    const auto scalars = op.schema().argumentIndexWithName("scalars");
    if (scalars) scalars_ = static_cast<std::size_t>(*scalars);
    arguments_.assign(stack.begin() + static_cast<std::ptrdiff_t>(base_),
                      stack.end());
  }

  // False: lengths differ, or an in-place element would have to change shape;
  // then nothing may have run before native raises.
  bool consistent() {
    for (const ArgumentTraits& argument : traits_.arguments) {
      if (!is_list(argument) || !arguments_[argument.index].isList()) continue;
      const std::size_t count = elements(argument).size();
      if (count == 0) continue;
      if (length_ == 0) length_ = count;
      if (count != length_) return false;
    }
    return length_ > 1 && scalarsMatch() && shapesMatch();
  }

  // First element after the chunk that begins at `first`.
  std::size_t endOfChunk(std::size_t first, std::size_t chunk_bytes) const {
    std::size_t bytes = 0;
    std::size_t end = first;
    for (; end < length_; ++end) {
      for (const ArgumentTraits& argument : traits_.arguments) {
        if (argument.kind != ArgumentKind::kTensorList) continue;
        if (elements(argument).empty()) continue;
        bytes += bytes_of(elements(argument)[end]);
      }
      if (bytes > chunk_bytes && end > first) break;
    }
    return end;
  }

  void pushChunk(Stack& stack, std::size_t first, std::size_t end) const {
    const std::size_t base = stack.size();
    stack.insert(stack.end(), arguments_.begin(), arguments_.end());
    for (const ArgumentTraits& argument : traits_.arguments) {
      if (!is_list(argument) || !arguments_[argument.index].isList()) continue;
      if (elements(argument).empty()) continue;
      stack[base + argument.index] =
          slice_of(arguments_[argument.index], first, end);
    }
    if (const at::Tensor* const scalars = tensorOfScalars()) {
      stack[base + *scalars_] = scalars->slice(0, static_cast<int64_t>(first),
                                               static_cast<int64_t>(end));
    }
  }

  std::size_t length() const { return length_; }
  const c10::IValue& argument(std::size_t index) const {
    return arguments_[index];
  }

 private:
  c10::ArrayRef<c10::IValue> elements(const ArgumentTraits& argument) const {
    return arguments_[argument.index].toListRef();
  }

  // A tensor with one scalar for each element of the lists.
  const at::Tensor* tensorOfScalars() const {
    if (!scalars_ || !arguments_[*scalars_].isTensor()) return nullptr;
    return &arguments_[*scalars_].toTensor();
  }

  bool scalarsMatch() const {
    const at::Tensor* const scalars = tensorOfScalars();
    return scalars == nullptr ||
           (scalars->dim() == 1 &&
            scalars->size(0) == static_cast<int64_t>(length_));
  }

  bool shapesMatch() const {
    const ArgumentTraits* written = nullptr;
    for (const ArgumentTraits& argument : traits_.arguments) {
      if (argument.kind == ArgumentKind::kTensorList && argument.writes) {
        written = &argument;
        break;
      }
    }
    if (written == nullptr) return true; // a failure changes nothing
    for (const ArgumentTraits& argument : traits_.arguments) {
      if (argument.kind != ArgumentKind::kTensorList) continue;
      if (elements(argument).empty()) continue;
      for (std::size_t i = 0; i < length_; ++i) {
        const at::Tensor& to = elements(*written)[i].toTensor();
        const at::Tensor& from = elements(argument)[i].toTensor();
        if (to.defined() && from.defined() &&
            !at::is_expandable_to(from.sizes(), to.sizes())) {
          return false;
        }
      }
    }
    return true;
  }

  const OpTraits& traits_;
  const std::size_t base_;
  std::vector<c10::IValue> arguments_;
  std::size_t length_ = 0;
  std::optional<std::size_t> scalars_;
};

std::size_t operand_bytes(const OpTraits& traits, const Stack& stack) {
  std::size_t bytes = 0;
  each_listed(traits, stack, [&](const c10::IValue& element) {
    bytes += bytes_of(element);
    return true;
  });
  return bytes;
}

// All that is live fits into HBM, and so does what the op's kernel takes.
bool fits_whole(const memory::Pager& pager, const OpTraits& traits,
                const Stack& stack, std::size_t operand_bytes) {
  const std::size_t results = result_bytes(traits, stack);
  const memory::OpMemory& memory = traits.memory;
  const std::size_t inside =
      memory.known.load(std::memory_order_acquire)
          ? memory.peak_bytes.load(std::memory_order_relaxed)
          : results + pager.hbmBudget() / kUnseenShare;
  return !is_short(pager, results) &&
         operand_bytes + inside <= pager.hbmBudget();
}

// Once a chunk has run, an error would leave the op half done.
void finish_deferred_work_on_all(const OpTraits& traits, const Stack& stack) {
  each_listed(traits, stack, [](const c10::IValue& element) {
    const c10::TensorImpl& tensor = *element.unsafeToTensorImpl();
    if (tensor.has_storage()) {
      backend::finish_deferred_work_on(
          *tensor.unsafe_storage().unsafeGetStorageImpl());
    }
    return true;
  });
}

// Where all elements are; nothing: not all on one of our devices.
std::optional<c10::DeviceIndex> device_of(const OpTraits& traits,
                                          const Stack& stack) {
  c10::DeviceIndex index = -1;
  const bool is_one =
      each_listed(traits, stack, [&](const c10::IValue& element) {
        if (!is_device_tensor(element)) return false;
        const auto other = element.unsafeToTensorImpl()->device().index();
        if (index != -1 && index != other) return false;
        index = other;
        return true;
      });
  if (!is_one) return std::nullopt;
  return backend::resolve_index(index);
}

// Runs the lists in pieces [first, next(first)) and joins the results.
template <typename Next, typename Call>
void run_pieces(const OpTraits& traits, const Lists& lists, Stack& stack,
                Next next, Call call) {
  stack.resize(stack.size() - traits.argument_count);
  std::vector<c10::List<at::Tensor>> results(traits.results.size());
  // mutant: list-end
  for (std::size_t first = 0; first < lists.length();) {
    const std::size_t end = next(first);
    lists.pushChunk(stack, first, end);
    call();
    for (std::size_t r = traits.results.size(); r-- > 0;) {
      c10::IValue part = torch::jit::pop(stack);
      if (traits.results[r].written_argument >= 0) continue;
      for (at::Tensor tensor : part.toTensorVector()) {
        results[r].push_back(std::move(tensor));
      }
    }
    first = end;
  }
  for (std::size_t r = 0; r < traits.results.size(); ++r) {
    const int written = traits.results[r].written_argument;
    stack.push_back(written >= 0
                        ? lists.argument(static_cast<std::size_t>(written))
                        : c10::IValue(results[r]));
  }
}

// As CUDA's slow route does: one element at a time, each where its tensors
// are. A copy may go between devices, anything else has to obey the rules.
bool run_mixed(const OpTraits& traits, const c10::OperatorHandle& op,
               Stack& stack) {
  // Autograd has seen the op as a whole.
  const at::AutoDispatchBelowADInplaceOrView below;
  if (traits.name == "aten::_foreach_copy_") {
    const std::size_t base = stack.size() - traits.argument_count;
    const std::vector<at::Tensor> to = stack[base].toTensorVector();
    const std::vector<at::Tensor> from = stack[base + 1].toTensorVector();
    if (to.size() != from.size()) return false;
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i].copy_(from[i], stack[base + 2].toBool());
    }
    stack.resize(base);
    return true;
  }
  Lists lists(traits, op, stack);
  if (!lists.consistent()) return false;
  run_pieces(
      traits, lists, stack, [](std::size_t first) { return first + 1; },
      [&] { op.callBoxed(stack); });
  return true;
}

} // namespace

std::size_t chunk_bytes_of(const backend::DeviceContext& device) {
  return device.pager->hbmBudget() / kChunksPerBudget;
}

c10::IValue slice_of(const c10::IValue& list, std::size_t first,
                     std::size_t end) {
  const c10::ArrayRef<c10::IValue> elements = list.toListRef();
  c10::impl::GenericList part(list.toList().elementType());
  part.reserve(end - first);
  for (std::size_t i = first; i < end; ++i) part.push_back(elements[i]);
  return part;
}

std::size_t result_bytes(const OpTraits& traits, const Stack& stack) {
  const auto is_fresh = [](const ResultTraits& result) {
    return result.kind == ResultKind::kTensorList &&
           result.written_argument < 0;
  };
  if (std::ranges::none_of(traits.results, is_fresh)) return 0;
  const std::size_t base = stack.size() - traits.argument_count;
  std::size_t bytes = 0;
  for (const ArgumentTraits& argument : traits.arguments) {
    const c10::IValue& value = stack[base + argument.index];
    if (argument.kind != ArgumentKind::kTensorList || !value.isList()) continue;
    for (const c10::IValue& element : value.toListRef()) {
      bytes += memory::ExtentMap::round(bytes_of(element));
    }
    break;
  }
  return bytes;
}

bool run_in_chunks(const OpTraits& traits, const c10::OperatorHandle& op,
                   Stack& stack) {
  const std::optional<c10::DeviceIndex> index = device_of(traits, stack);
  if (!index) [[unlikely]] {
    return is_foreach(traits) && run_mixed(traits, op, stack);
  }
  const backend::DeviceContext& device = backend::context(*index, traits.name);
  const std::size_t chunk_bytes = chunk_bytes_of(device);
  const std::size_t bytes = operand_bytes(traits, stack);
  if (bytes <= chunk_bytes || fits_whole(*device.pager, traits, stack, bytes)) {
    return false;
  }
  Lists lists(traits, op, stack);
  if (!lists.consistent()) return false;
  finish_deferred_work_on_all(traits, stack);
  run_pieces(
      traits, lists, stack,
      [&](std::size_t first) { return lists.endOfChunk(first, chunk_bytes); },
      [&] { call_native(traits, op, &stack); });
  return true;
}

} // namespace chameleon::kernels
