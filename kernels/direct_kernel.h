// Direct kernels: the unboxed kernel of an op, put together from its C++
// signature. What becomes of an argument is said once per type (Passing), what
// becomes of results once per type (Results); a signature needs no code.
//
// Thread safety: any thread; each call is its thread's.
#pragma once

#include <array>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "kernels/direct_call.h"
#include "kernels/op_traits.h"

namespace chameleon::kernels {

// ---- arguments: what is collected, and what the native kernel gets instead --

template <typename Argument>
struct Passing { // no tensor: as it is
  static DirectSlot::Number collect(auto&, const Argument&,
                                    const ArgumentTraits*) {
    return DirectSlot::kNone;
  }
  static Argument forward(const auto&, DirectSlot::Number, Argument argument) {
    return std::forward<Argument>(argument);
  }
};

template <>
struct Passing<const at::Tensor&> {
  static DirectSlot::Number collect(auto& call, const at::Tensor& outer,
                                    const ArgumentTraits* argument) {
    return call.add(outer, *argument);
  }
  static const at::Tensor& forward(const auto& call, DirectSlot::Number slot,
                                   const at::Tensor& outer) {
    return call.native(slot, outer);
  }
};

template <>
struct Passing<at::Tensor&> : Passing<const at::Tensor&> {
  static at::Tensor& forward(const auto& call, DirectSlot::Number slot,
                             at::Tensor&) {
    return call.alias_tensor(slot);
  }
};

template <>
struct Passing<const std::optional<at::Tensor>&> {
  static DirectSlot::Number collect(auto& call,
                                    const std::optional<at::Tensor>& outer,
                                    const ArgumentTraits* argument) {
    return outer && outer->defined() ? call.add(*outer, *argument)
                                     : DirectSlot::kNone;
  }
  static std::optional<at::Tensor> forward(
      const auto& call, DirectSlot::Number slot,
      const std::optional<at::Tensor>& outer) {
    if (slot == DirectSlot::kNone) return outer;
    return call.native(slot, *outer);
  }
};

template <>
struct Passing<at::TensorList> {
  static DirectSlot::Number collect(auto& call, at::TensorList outers,
                                    const ArgumentTraits* argument) {
    return call.addAll(outers, *argument);
  }
  static at::TensorList forward(const auto& call, DirectSlot::Number slot,
                                at::TensorList outers) {
    return slot == DirectSlot::kNone ? outers
                                     : call.alias_tensors(slot, outers.size());
  }
};

template <>
struct Passing<const at::ITensorListRef&> {
  static DirectSlot::Number collect(auto& call,
                                    const at::ITensorListRef& outers,
                                    const ArgumentTraits* argument) {
    return call.addAll(outers, *argument);
  }
  static at::ITensorListRef forward(const auto& call, DirectSlot::Number slot,
                                    const at::ITensorListRef& outers) {
    return slot == DirectSlot::kNone ? outers
                                     : call.alias_tensors(slot, outers.size());
  }
};

// ---- results: how they become the caller's --------------------------------

template <typename Return>
struct Results;

template <>
struct Results<at::Tensor> {
  using Kept = at::Tensor;
  template <typename... Arguments>
  static Kept finish(auto& call, at::Tensor native, Arguments&...) {
    call.finish(native);
    return native;
  }
  static at::Tensor give(Kept& kept) { return std::move(kept); }
  static std::vector<at::Tensor> fresh(const Kept& kept) { return {kept}; }
};

template <typename... Tensors>
struct Results<std::tuple<Tensors...>> {
  static_assert((std::is_same_v<Tensors, at::Tensor> && ...));
  using Kept = std::tuple<Tensors...>;
  template <typename... Arguments>
  static Kept finish(auto& call, Kept native, Arguments&...) {
    std::apply([&](Tensors&... each) { (call.finish(each), ...); }, native);
    return native;
  }
  static Kept give(Kept& kept) { return std::move(kept); }
  static std::vector<at::Tensor> fresh(const Kept& kept) {
    return std::apply(
        [](const Tensors&... each) { return std::vector<at::Tensor>{each...}; },
        kept);
  }
};

template <>
struct Results<std::vector<at::Tensor>> {
  using Kept = std::vector<at::Tensor>;
  template <typename... Arguments>
  static Kept finish(auto& call, Kept native, Arguments&...) {
    for (at::Tensor& each : native) call.finish(each);
    return native;
  }
  static Kept give(Kept& kept) { return std::move(kept); }
  static std::vector<at::Tensor> fresh(const Kept& kept) { return kept; }
};

// An in-place op returns what it was given first.
template <>
struct Results<at::Tensor&> {
  using Kept = at::Tensor*;
  template <typename... Arguments>
  static Kept finish(auto&, at::Tensor&, at::Tensor& self, Arguments&...) {
    return &self;
  }
  static at::Tensor& give(Kept kept) { return *kept; }
  static std::vector<at::Tensor> fresh(Kept) { return {}; }
};

template <>
struct Results<void> {
  using Kept = std::monostate;
  static void give(Kept) {}
  static std::vector<at::Tensor> fresh(Kept) { return {}; }
};

// ---- the kernel -------------------------------------------------------------

template <typename Signature>
class DirectKernel;

// Boxed callers reach it through the dispatcher's own unboxing.
template <typename Return, typename... Arguments>
class DirectKernel<Return(Arguments...)> {
  static_assert(sizeof...(Arguments) <= DirectCall<0>::kMaxArguments);

 public:
  // `general` runs any call; `traits` must outlive the kernel.
  DirectKernel(const c10::OperatorHandle& op, const OpTraits* traits,
               c10::BoxedKernel general)
      : op_(op),
        typed_(op.typed<Return(Arguments...)>()),
        traits_(traits),
        general_(std::move(general)) {
    for (const ArgumentTraits& argument : traits->arguments) {
      arguments_[argument.index] = &argument;
    }
  }

  Return operator()(Arguments... arguments) const {
    auto kept = direct(std::index_sequence_for<Arguments...>(), arguments...);
    if (kept) [[likely]]
      return Results<Return>::give(*kept);
    return c10::impl::BoxedKernelWrapper<Return(Arguments...)>::call(
        general_, op_, c10::DispatchKeySet(),
        std::forward<Arguments>(arguments)...);
  }

 private:
  using Kept = Results<Return>::Kept;
  // Where it writes nothing, so that it returns new tensors.
  static constexpr bool kMayRetry = std::is_same_v<Return, Kept>;
  static constexpr bool kHasLists =
      ((std::is_same_v<Arguments, at::TensorList> ||
        std::is_same_v<Arguments, const at::ITensorListRef&>) ||
       ...);
  using Call = DirectCall<kHasLists ? kMaxListedTensors : 0>;
  using Slots = std::array<DirectSlot::Number, sizeof...(Arguments)>;

  // Empty: not for the short way, or a list op that ran out of memory.
  template <std::size_t... I>
  [[gnu::always_inline]] std::optional<Kept> direct(
      std::index_sequence<I...> indices, Arguments&... arguments) const {
    Call call(*traits_);
    Slots slots;
    const bool collected =
        (((slots[I] = Passing<Arguments>::collect(
               call, arguments, arguments_[I])) != DirectSlot::kRefused) &&
         ...);
    if (!collected || !call.begin()) return std::nullopt;
    try {
      if (call.isRecorded()) [[unlikely]] {
        return runRecorded(call, slots, indices, arguments...);
      }
      const typename Call::Scope scope(call);
      return run(call, scope, slots, indices, arguments...);
    } catch (const c10::OutOfMemoryError&) {
      if constexpr (kMayRetry) {
        if (traits_->is_list_op) return std::nullopt; // in chunks, perhaps
        if (call.mayRetry()) return retry(call, arguments...);
      }
      throw;
    } catch (c10::AcceleratorError& error) {
      call.reportLateError(error);
      throw;
    }
  }

  // Out of memory inside the kernel: the general way goes on with the call.
  [[gnu::noinline, gnu::cold]] Kept retry(Call& call,
                                          Arguments&... arguments) const
    requires kMayRetry
  {
    torch::jit::Stack stack = c10::impl::boxArgs<Arguments...>(arguments...);
    call.retry(op_, stack);
    return c10::impl::PopResult<Return>::call(stack);
  }

  template <std::size_t... I>
  Kept run(Call& call, const Call::Scope& scope, const Slots& slots,
           std::index_sequence<I...>, Arguments&... arguments) const {
    const auto native = [&]() -> Return {
      return typed_.redispatch(
          backend::target().dispatch_key,
          Passing<Arguments>::forward(call, slots[I], arguments)...);
    };
    if constexpr (std::is_void_v<Return>) {
      native();
      scope.throwIfFailed();
      call.finishWrites();
      return {};
    } else {
      Return result = native();
      scope.throwIfFailed();
      call.finishWrites();
      return Results<Return>::finish(call, static_cast<Return&&>(result),
                                     arguments...);
    }
  }

  template <std::size_t... I>
  [[gnu::noinline, gnu::cold]] Kept runRecorded(
      Call& call, const Slots& slots, std::index_sequence<I...> indices,
      Arguments&... arguments) const {
    const torch::jit::Stack boxed =
        c10::impl::boxArgs<Arguments...>(arguments...);
    std::unique_ptr<RecordedCall> record = call.startRecord(boxed);
    std::optional<Kept> kept;
    {
      const typename Call::Scope scope(call);
      kept.emplace(run(call, scope, slots, indices, arguments...));
    }
    call.finishRecord(std::move(record), boxed, Results<Return>::fresh(*kept));
    return std::move(*kept);
  }

  c10::OperatorHandle op_;
  c10::TypedOperatorHandle<Return(Arguments...)> typed_;
  const OpTraits* traits_;
  c10::BoxedKernel general_;
  std::array<const ArgumentTraits*, sizeof...(Arguments)> arguments_{};
};

} // namespace chameleon::kernels
