#include "kernels/op_call.h"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "backend/torch/autocast.h"
#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/error.h"
#include "backend/torch/generator.h"
#include "backend/torch/in_kernel_allocator.h"
#include "backend/torch/storage.h"
#include "backend/torch/stream.h"
#include "kernels/adoption.h"
#include "kernels/algorithm_choice.h"
#include "kernels/alias_tensors.h"
#include "kernels/device_rules.h"
#include "kernels/nested.h"
#include "kernels/op_token.h"
#include "kernels/recorded_op.h"
#include "kernels/simulated/kernel_memory.h"
#include "kernels/simulated/simulated_call.h"
#include "kernels/sparse_parts.h"

namespace chameleon::kernels {
namespace {

using backend::kChameleon;
using torch::jit::Stack;

// Pins held from begin() to the end of scope. The call itself lives on over
// several attempts: it remembers that one failed.
struct Pinned {
  memory::Pager& pager;
  memory::Call& call;
  bool held = false;

  ~Pinned() {
    if (held) pager.end(call);
  }
};

class NativeCall {
 public:
  NativeCall(const OpPlan& plan, const c10::OperatorHandle& op, Stack& stack,
             bool* started, bool rerun = false)
      : plan_(plan),
        op_(op),
        stack_(stack),
        started_(started),
        rerun_(rerun),
        base_(stack.size() - plan.argument_count) {}

  void run() {
    collect();
    backend::DeviceContext& device = backend::context(index_, plan_.name);
    if (searches_plans(plan_)) [[unlikely]] {
      choice_.emplace(plan_, c10::ArrayRef<c10::IValue>(stack_).slice(base_),
                      index_, device.pager->hbmBudget());
    }
    for (;;) {
      try {
        runOnce(device);
        break;
      } catch (const c10::OutOfMemoryError&) {
        if (!in_kernel_ || !plan_.mayRetry() || choice_.has_value() ||
            !call_.worthRetrying()) {
          throw;
        }
        // Other calls were in the way; the next begin() reserves more room.
        restoreArguments();
      } catch (c10::AcceleratorError& error) {
        came_to_light(device, plan_.name, error);
        throw;
      }
    }
    sample_memory(device);
  }

 private:
  // ---- before pinning --------------------------------------------------
  void collect() {
    c10::DeviceIndex named = -1;
    for (const ArgumentPlan& argument : plan_.arguments) {
      const c10::IValue& value = stack_[base_ + argument.index];
      switch (argument.kind) {
        case ArgumentKind::kTensor:
          if (value.isTensor()) collectTensor(value, argument);
          break;
        case ArgumentKind::kTensorList:
        case ArgumentKind::kOptionalList:
          if (value.isNone()) break;
          for (const c10::IValue& element : value.toListRef()) {
            if (element.isTensor()) collectTensor(element, argument);
          }
          break;
        case ArgumentKind::kGenerator:
          has_generator_ = value.isGenerator() &&
                           value.toGenerator().device().type() == kChameleon;
          break;
        case ArgumentKind::kDevice:
          if (value.isDevice()) {
            const c10::Device device = value.toDevice();
            if (device.type() == kChameleon)
              named = device.index();
            else
              result_elsewhere_ = true;
          }
          break;
        default:
          break;
      }
    }
    if (index_ == -1) index_ = backend::resolve_index(named);
    for (const CrossDeviceOperand& cross_device : cross_device_operands_)
      checkCrossDevice(cross_device);
  }

  void collectTensor(const c10::IValue& value, const ArgumentPlan& argument) {
    c10::TensorImpl& tensor = *value.unsafeToTensorImpl();
    if (backend::is_chameleon(tensor)) [[likely]] {
      if (is_sparse(tensor)) [[unlikely]] {
        return collectSparse(tensor, argument);
      }
      TORCH_CHECK_NOT_IMPLEMENTED(
          tensor.has_storage(), plan_.name,
          ": chameleon works on dense (strided) tensors; this one has layout ",
          tensor.layout());
      checkIndex(tensor.device().index());
      const bool nested = is_nested(tensor);
      nested_ = nested_ || nested;
      slots_.push_back(static_cast<std::uint32_t>(alias_tensors_.add(
          tensor, argument.writes, argument.overwrites && !nested)));
      if (argument.kind == ArgumentKind::kTensor) add_to_token(quick_, tensor);
    } else if (&tensor != c10::UndefinedTensorImpl::singleton()) {
      cross_device_operands_.push_back({&tensor, &argument});
    }
  }

  void checkIndex(c10::DeviceIndex index) {
    if (index_ != -1 && index_ != index) {
      refuse_mixed_devices(index_, c10::Device(backend::kChameleon, index),
                           plan_.name, {});
    }
    index_ = index;
  }

  // Its parts are the operands.
  void collectSparse(const c10::TensorImpl& tensor,
                     const ArgumentPlan& argument) {
    checkIndex(tensor.device().index());
    sparse_ = true;
    compressed_ = compressed_ || is_compressed(tensor);
    for (const at::Tensor& part : parts_of(tensor)) {
      const c10::TensorImpl& impl = *part.unsafeGetTensorImpl();
      slots_.push_back(static_cast<std::uint32_t>(
          alias_tensors_.add(impl, argument.writes)));
      if (argument.kind == ArgumentKind::kTensor) add_to_token(quick_, impl);
    }
  }

  // An operand on another device: legal where CUDA allows it.
  struct CrossDeviceOperand {
    const c10::TensorImpl* tensor;
    const ArgumentPlan* argument;
  };
  void checkCrossDevice(const CrossDeviceOperand& cross_device) const {
    const c10::TensorImpl& tensor = *cross_device.tensor;
    // Only the generator is ours, so the op meant another device.
    TORCH_CHECK(!has_generator_ || !slots_.empty(), "Expected a '",
                tensor.device().type(),
                "' device type for generator but found 'chameleon'");
    const ArgumentPlan& argument = *cross_device.argument;
    if (stays_on_cpu(tensor, argument.cpu)) return;
    refuse_mixed_devices(index_, tensor.device(), plan_.name,
                         op_.schema().arguments()[argument.index].name());
  }

  // While the arguments are the caller's.
  static profiler::Token tokenOf(const void* call) {
    const auto& self = *static_cast<const NativeCall*>(call);
    profiler::TokenHasher token(self.plan_.number);
    const auto add = [&token](const c10::IValue& value) {
      if (!isOurs(value)) return;
      const c10::TensorImpl& tensor = *value.unsafeToTensorImpl();
      if (!is_sparse(tensor)) return add_to_token(token, tensor);
      for (const at::Tensor& part : parts_of(tensor)) {
        add_to_token(token, *part.unsafeGetTensorImpl());
      }
    };
    for (const ArgumentPlan& argument : self.plan_.arguments) {
      const c10::IValue& value = self.stack_[self.base_ + argument.index];
      if (value.isList()) {
        for (const c10::IValue& element : value.toListRef()) add(element);
      } else {
        add(value);
      }
    }
    // Which results are wanted (output_mask): the others are not computed.
    for (std::size_t i = 0; i < self.plan_.argument_count; ++i) {
      const c10::IValue& value = self.stack_[self.base_ + i];
      if (!value.isBoolList()) continue;
      for (const bool wanted : value.toBoolList()) token.add(wanted ? 1U : 0U);
    }
    return profiler::whole_token(token.token(), self.quick_.token());
  }

  // ---- one attempt -------------------------------------------------------
  void runOnce(backend::DeviceContext& device) {
    in_kernel_ = false;
    Pinned pinned{*device.pager, call_};
    const auto operands = alias_tensors_.operands();
    const std::span<const memory::Operand> pins(operands.data(),
                                                operands.size());
    const runtime::Stream stream = backend::current_stream(index_);
    const memory::Algorithm algorithm =
        choice_ ? choice_->algorithm() : memory::Algorithm::kAny;
    if (rerun_) [[unlikely]] {
      backend::throw_if(device.pager->begin(
          call_, {plan_.kind, stream, pins, nullptr, /*rerun=*/true,
                  plan_.number, algorithm}));
    } else {
      pin(plan_, device, stream, call_, pins, quick_.token(), &tokenOf, this,
          algorithm);
    }
    pinned.held = true;
    std::unique_ptr<RecordedCall> record;
    if (call_.recording() && !sparse_) [[unlikely]] {
      record = RecordedCall::make(
          plan_, c10::ArrayRef<c10::IValue>(stack_).slice(base_), pins, index_);
    }
    // Unbinds on every way out, before the pins go.
    struct Unbind {
      AliasTensorSet& alias_tensors;
      ~Unbind() { alias_tensors.unbind(); }
    } unbind{alias_tensors_};
    alias_tensors_.bind();
    replaceArguments();
    {
      const BelowAutograd below;
      const backend::TargetAutocast autocast(below.excluded());
      const backend::InKernelScope scope(&pinned.pager, &pinned.call);
      in_kernel_ = true;
      if (started_ != nullptr) *started_ = true;
      if (backend::target().holds_data) [[likely]] {
        op_.redispatchBoxed(kernelKey(), &stack_);
        if (!choice_ || !choice_->chosen(call_, scope.hasFailed())) {
          scope.throwIfFailed();
        }
        in_kernel_ = false;
        syncWrites(pinned);
        adoptResults(pinned);
        if (backend::target().models_time) [[unlikely]] {
          simulated::charge(view(), *device.runtime,
                            backend::current_stream(index_));
        }
      } else {
        runSimulated(pinned, *device.runtime);
      }
    }
    if (record != nullptr) [[unlikely]] {
      std::vector<at::Tensor> results;
      const std::size_t first = stack_.size() - plan_.results.size();
      for (std::size_t i = 0; i < plan_.results.size(); ++i) {
        const c10::IValue& value = stack_[first + i];
        if (plan_.results[i].written_argument < 0 && value.isTensor()) {
          if (is_sparse(*value.unsafeToTensorImpl())) return;
          results.push_back(value.toTensor());
        }
      }
      finish_record(std::move(record), saved_, results, pins, pinned.pager,
                    call_);
    }
  }

  c10::DispatchKeySet kernelKey() const {
    if (nested_) return nested_dispatch_key();
    if (!sparse_) return backend::target().dispatch_key;
    return sparse_dispatch_key(compressed_);
  }

  // The same on a device without data: what the kernel would have allocated
  // and the time it would have taken are added.
  void runSimulated(Pinned& pinned, runtime::DeviceRuntime& device) {
    simulated::run_kernel(plan_, op_, stack_);
    simulated::KernelMemory memory(pinned.pager, pinned.call);
    syncWrites(pinned);
    adoptResults(pinned);
    if (!memory.finish()) {
      simulated::use_workspace(view(), pinned.pager, pinned.call);
    }
    simulated::charge(view(), device, backend::current_stream(index_));
    if (choice_) (void)choice_->chosen(call_, /*failed=*/false);
    in_kernel_ = false;
  }

  // After the call.
  simulated::CallView view() const {
    const std::size_t count = plan_.results.size();
    return {
        plan_, op_.schema(), saved_,
        c10::ArrayRef<c10::IValue>(stack_).slice(stack_.size() - count, count)};
  }

  // ---- arguments -----------------------------------------------------------
  // Moves the caller's arguments into saved_ and leaves alias tensors on the
  // stack.
  void replaceArguments() {
    saved_.clear();
    saved_.reserve(plan_.argument_count);
    std::size_t slot = 0;
    auto next = plan_.arguments.begin();
    for (std::size_t i = 0; i < plan_.argument_count; ++i) {
      c10::IValue& value = stack_[base_ + i];
      if (next == plan_.arguments.end() || next->index != i) {
        saved_.push_back(value);
        continue;
      }
      const ArgumentPlan& argument = *next++;
      if (argument.kind == ArgumentKind::kTensor) {
        saved_.push_back(std::move(value));
        const c10::IValue& outer = saved_.back();
        if (isOurs(outer)) [[likely]] {
          value = aliasTensorOf(outer, argument, slot);
        } else {
          value = outer;
        }
      } else {
        saved_.push_back(value);
        replaceOther(value, argument, slot);
      }
    }
  }

  void replaceOther(c10::IValue& value, const ArgumentPlan& argument,
                    std::size_t& slot) {
    switch (argument.kind) {
      case ArgumentKind::kTensorList:
        if (!value.isNone()) replaceList<at::Tensor>(value, argument, slot);
        break;
      case ArgumentKind::kOptionalList:
        if (!value.isNone()) {
          replaceList<std::optional<at::Tensor>>(value, argument, slot);
        }
        break;
      case ArgumentKind::kGenerator:
        if (value.isGenerator()) {
          value = backend::inner_generator(value.toGenerator());
        }
        break;
      case ArgumentKind::kDevice:
        if (value.isNone() ? slots_.empty()
                           : value.toDevice().type() == kChameleon) {
          value = backend::target_device(index_);
        }
        break;
      case ArgumentKind::kTensor:
      case ArgumentKind::kStream:
      case ArgumentKind::kOtherList:
        break;
    }
  }

  static bool isOurs(const c10::IValue& value) {
    return value.isTensor() &&
           backend::is_chameleon(*value.unsafeToTensorImpl());
  }

  at::Tensor aliasTensorOf(const c10::IValue& value,
                           const ArgumentPlan& argument, std::size_t& slot) {
    c10::TensorImpl* outer = value.unsafeToTensorImpl();
    at::Tensor alias_tensor =
        is_sparse(*outer) ? sparseAliasTensor(*outer, argument.writes, slot)
                          : denseAliasTensor(*outer, argument.writes, slot);
    // sparse_mm_reduce keeps more where a derivative will be asked for.
    if (sparse_ && outer->requires_grad()) [[unlikely]] {
      alias_tensor.unsafeGetTensorImpl()->set_requires_grad(true);
    }
    return alias_tensor;
  }

  at::Tensor denseAliasTensor(c10::TensorImpl& outer, bool writes,
                              std::size_t& slot) {
    const std::uint32_t entry = slots_[slot++];
    auto alias_tensor = alias_tensors_.alias_tensor(outer, entry);
    if (writes) written_.push_back({&outer, alias_tensor.get(), entry});
    return at::Tensor(std::move(alias_tensor));
  }

  at::Tensor sparseAliasTensor(c10::TensorImpl& outer, bool writes,
                               std::size_t& slot) {
    SparseParts parts;
    for (const at::Tensor& part : parts_of(outer)) {
      parts.push_back(
          denseAliasTensor(*part.unsafeGetTensorImpl(), writes, slot));
    }
    for (SparseOperand& known : sparse_operands_) {
      if (known.outer != &outer) continue;
      known.writes = known.writes || writes;
      return known.alias_tensor;
    }
    sparse_operands_.push_back({&outer, make_sparse(outer, parts), writes, {}});
    for (const at::Tensor& part : parts) {
      sparse_operands_.back().given.push_back(part.unsafeGetTensorImpl());
    }
    return sparse_operands_.back().alias_tensor;
  }

  template <typename Element>
  void replaceList(c10::IValue& value, const ArgumentPlan& argument,
                   std::size_t& slot) {
    const c10::ArrayRef<c10::IValue> elements = value.toListRef();
    c10::List<Element> alias_tensors;
    alias_tensors.reserve(elements.size());
    for (const c10::IValue& element : elements) {
      if (isOurs(element)) {
        alias_tensors.push_back(aliasTensorOf(element, argument, slot));
      } else if (element.isTensor()) {
        alias_tensors.push_back(element.toTensor());
      } else {
        alias_tensors.push_back(Element());
      }
    }
    value = std::move(alias_tensors);
  }

  void restoreArguments() {
    stack_.resize(base_);
    for (c10::IValue& value : saved_) stack_.push_back(std::move(value));
    saved_.clear();
    written_.clear();
    sparse_operands_.clear();
  }

  // ---- results -------------------------------------------------------------
  // What the kernel did to the storages and shapes of written operands.
  void syncWrites(Pinned& pinned) {
    if (!plan_.writes) return;
    const Adoption adoption{pinned.pager, pinned.call, index_};
    for (AliasTensorSet::Entry& entry : alias_tensors_.entries()) {
      if (!entry.writes) continue;
      adoption.storage(
          *entry.outer, *entry.alias,
          entry.block == nullptr ? nullptr : entry.block->device_address);
    }
    call_.overwritten();
    for (const Written& written : written_) {
      const AliasTensorSet::Entry& entry =
          alias_tensors_.entries()[written.entry];
      if (entry.overwrites && entry.block != nullptr &&
          written.outer->sizes() != written.alias_tensor->sizes()) {
        keep_rest(call_, *entry.block, *written.alias_tensor);
      }
      // mutant: out-shape
      Adoption::shape(*written.outer, *written.alias_tensor);
      if (counts_versions_) written.outer->bump_version();
    }
    for (const SparseOperand& operand : sparse_operands_) {
      if (operand.writes) putBack(pinned, operand);
    }
  }

  struct SparseOperand {
    c10::TensorImpl* outer;
    at::Tensor alias_tensor;
    bool writes;
    c10::SmallVector<c10::TensorImpl*, 3>
        given; // the parts of the alias tensor
  };

  // Kernels give a sparse tensor other parts instead of writing its own.
  void putBack(Pinned& pinned, const SparseOperand& operand) {
    c10::TensorImpl& alias_tensor = *operand.alias_tensor.unsafeGetTensorImpl();
    SparseParts parts = parts_of(*operand.outer);
    SparseParts now = take_parts(alias_tensor);
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (now[i].unsafeGetTensorImpl() == operand.given[i]) continue;
      parts[i] = adoptTensor(pinned, std::move(now[i]));
    }
    show_sparse(alias_tensor, *operand.outer, parts);
  }

  void adoptResults(Pinned& pinned) {
    const std::size_t first = stack_.size() - plan_.results.size();
    for (std::size_t i = 0; i < plan_.results.size(); ++i) {
      const ResultPlan& result = plan_.results[i];
      c10::IValue& value = stack_[first + i];
      if (result.written_argument >= 0) {
        value = saved_[static_cast<std::size_t>(result.written_argument)];
      } else if (result.kind == ResultKind::kTensor && value.isTensor()) {
        value = adoptTensor(pinned, std::move(value).toTensor());
      } else if (result.kind == ResultKind::kTensorList) {
        std::vector<at::Tensor> natives = value.toTensorVector();
        value = c10::IValue(); // so that each tensor is held once
        c10::List<at::Tensor> outers;
        outers.reserve(natives.size());
        for (at::Tensor& tensor : natives) {
          outers.push_back(adoptTensor(pinned, std::move(tensor)));
        }
        value = std::move(outers);
      }
    }
  }

  at::Tensor adoptTensor(Pinned& pinned, at::Tensor tensor) {
    if (!is_native_result(tensor, plan_)) return tensor;
    if (is_sparse(*tensor.unsafeGetTensorImpl())) [[unlikely]] {
      return adoptSparse(pinned, tensor);
    }
    const c10::Device device(kChameleon, index_);
    c10::StorageImpl& storage =
        *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    // Not fresh: the kernel returned (a view of) one of its operands.
    if (const AliasTensorSet::Entry* entry = alias_tensors_.find(storage)) {
      return at::Tensor(make_outer(
          *tensor.unsafeGetTensorImpl(),
          c10::Storage(
              c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(entry->outer)),
          device));
    }
    if (result_elsewhere_) return leaveArena(pinned, tensor);
    if ((tensor.use_count() > 1 || tensor.storage().use_count() > 1) &&
        !plan_.name.starts_with("aten::")) {
      tensor = tensor.clone(); // another library's kernel may keep what it has
    }
    return Adoption{pinned.pager, pinned.call, index_}.tensor(
        std::move(tensor));
  }

  at::Tensor adoptSparse(Pinned& pinned, const at::Tensor& tensor) {
    c10::TensorImpl& native = *tensor.unsafeGetTensorImpl();
    SparseParts parts =
        tensor.use_count() == 1 ? take_parts(native) : parts_of(native);
    for (at::Tensor& part : parts) {
      part = adoptTensor(pinned, std::move(part));
    }
    return make_sparse(native, parts);
  }

  // A result that is a true CPU tensor must not keep arena memory.
  static at::Tensor leaveArena(Pinned& pinned, const at::Tensor& tensor) {
    // mutant: arena-result
    if (!pinned.pager.contains(tensor.storage().data())) return tensor;
    const backend::InKernelScope suspended(nullptr, nullptr);
    return tensor.clone();
  }

  struct Written {
    c10::TensorImpl* outer;
    c10::TensorImpl* alias_tensor;
    std::uint32_t entry;
  };

  const OpPlan& plan_;
  const c10::OperatorHandle& op_;
  Stack& stack_;
  bool* const started_; // may be null
  const bool rerun_;
  const std::size_t base_;
  c10::DeviceIndex index_ = -1;
  bool result_elsewhere_ = false; // a Device argument names another device
  profiler::QuickHasher quick_{plan_.quick};
  bool nested_ = false;        // one of the tensors
  bool sparse_ = false;        // one of the tensors
  bool compressed_ = false;    // one of these
  bool has_generator_ = false; // one of ours among the arguments
  bool in_kernel_ = false;
  // Unless a caller above has counted, which keeps the kernel from it.
  const bool counts_versions_ =
      plan_.counts_versions && !c10::impl::tls_is_dispatch_key_excluded(
                                   c10::DispatchKey::ADInplaceOrView);
  std::optional<AlgorithmChoice> choice_;
  memory::Call call_;
  AliasTensorSet alias_tensors_;
  c10::SmallVector<std::uint32_t, 8> slots_; // operand -> entry, in order
  c10::SmallVector<CrossDeviceOperand, 2> cross_device_operands_;
  c10::SmallVector<Written, 4> written_;
  std::vector<SparseOperand> sparse_operands_;
  c10::SmallVector<c10::IValue, 8> saved_; // the caller's arguments
};

} // namespace

void add_memory_sample(backend::DeviceContext& device) {
  const auto levels = device.pager->levels();
  device.history->add({device.runtime->now_ns(), levels.logical_bytes,
                       levels.resident_bytes, levels.host_bytes});
}

void came_to_light(backend::DeviceContext& device, std::string_view op,
                   c10::AcceleratorError& error) {
  error.add_context("reported while chameleon ran " + std::string(op));
  runtime::DeviceRuntime& runtime = *device.runtime;
  if (const auto event = runtime.record(runtime::kDefaultComputeStream);
      event.ok()) {
    runtime.destroy(event.value());
  }
}

void call_native(const OpPlan& plan, const c10::OperatorHandle& op,
                 Stack* stack, bool* started) {
  backend::finish_deferred_work();
  NativeCall(plan, op, *stack, started).run();
}

void rerun_native(const OpPlan& plan, const c10::OperatorHandle& op,
                  Stack* stack) {
  NativeCall(plan, op, *stack, nullptr, /*rerun=*/true).run();
}

} // namespace chameleon::kernels
