#include "kernels/op_call.h"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "backend/torch/autocast.h"
#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/error.h"
#include "backend/torch/in_kernel_allocator.h"
#include "backend/torch/storage.h"
#include "backend/torch/stream.h"
#include "kernels/adoption.h"
#include "kernels/algorithm_choice.h"
#include "kernels/alias_tensors.h"
#include "kernels/call_arguments.h"
#include "kernels/layouts/sparse_parts.h"
#include "kernels/reruns/recorded_op.h"
#include "kernels/simulated/facts.h"
#include "kernels/simulated/kernel_memory.h"
#include "kernels/simulated/simulated_call.h"

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
  NativeCall(const OpTraits& traits, const c10::OperatorHandle& op,
             Stack& stack, memory::Call& call, bool* started = nullptr,
             bool rerun = false)
      : traits_(traits),
        op_(op),
        stack_(stack),
        call_(call),
        started_(started),
        rerun_(rerun),
        arguments_(traits, op, stack) {}

  void run() {
    arguments_.collect();
    backend::DeviceContext& device =
        backend::context(arguments_.index(), traits_.name);
    backend::finish_deferred_work_if_full(device);
    if (searches_algorithms(traits_)) [[unlikely]] {
      choice_.emplace(traits_, arguments_.given(), arguments_.index(),
                      device.pager->hbmBudget());
    }
    for (;;) {
      try {
        runOnce(device);
        break;
      } catch (const c10::OutOfMemoryError&) {
        if (!in_kernel_ || !traits_.mayRetry() || choice_.has_value() ||
            !call_.worthRetrying()) {
          throw;
        }
        // Other calls were in the way; the next begin() reserves more room.
        arguments_.restore();
      } catch (c10::AcceleratorError& error) {
        report_late_error(device, traits_.name, error);
        throw;
      }
    }
    sample_memory(device);
  }

 private:
  // ---- one attempt -------------------------------------------------------
  void runOnce(backend::DeviceContext& device) {
    in_kernel_ = false;
    Pinned pinned{*device.pager, call_};
    const auto operands = arguments_.aliasTensors().operands();
    const std::span<const memory::Operand> pins(operands.data(),
                                                operands.size());
    const runtime::Stream stream = backend::current_stream(arguments_.index());
    const memory::Algorithm algorithm =
        choice_ ? choice_->algorithm() : memory::Algorithm::kAny;
    if (rerun_) [[unlikely]] {
      backend::throw_if(device.pager->begin(
          call_, {traits_.kind, stream, pins, nullptr, /*rerun=*/true,
                  traits_.number, algorithm}));
    } else {
      pin(traits_, device, stream, call_, pins, arguments_.quickToken(),
          &CallArguments::tokenOf, &arguments_, algorithm,
          /*can_be_held_back=*/started_ != nullptr && !traits_.mayRetry());
    }
    pinned.held = true;
    std::unique_ptr<RecordedCall> record;
    if (call_.wantsRecord() && !arguments_.areSparse()) [[unlikely]] {
      record = RecordedCall::make(traits_, arguments_.given(), pins,
                                  arguments_.index());
    }
    // Unbinds on every way out, before the pins go.
    struct Unbind {
      AliasTensorSet& alias_tensors;
      ~Unbind() { alias_tensors.unbind(); }
    } unbind{arguments_.aliasTensors()};
    arguments_.aliasTensors().bind();
    arguments_.replace();
    {
      const BelowAutograd below;
      const backend::TargetAutocast autocast(below.excluded());
      const backend::InKernelScope scope(&pinned.pager, &pinned.call);
      in_kernel_ = true;
      if (started_ != nullptr) *started_ = true;
      if (backend::target().holds_data) [[likely]] {
        op_.redispatchBoxed(arguments_.kernelKey(), &stack_);
        if (!choice_ || !choice_->chosen(call_, scope.hasFailed())) {
          scope.throwIfFailed();
        }
        in_kernel_ = false;
        syncWrites(pinned);
        adoptResults(pinned);
        if (backend::target().models_time) [[unlikely]] {
          simulated::charge(view(), *device.runtime,
                            backend::current_stream(arguments_.index()));
        }
      } else {
        runSimulated(pinned, *device.runtime);
      }
    }
    if (record != nullptr) [[unlikely]] {
      std::vector<at::Tensor> results;
      const std::size_t first = stack_.size() - traits_.results.size();
      for (std::size_t i = 0; i < traits_.results.size(); ++i) {
        const c10::IValue& value = stack_[first + i];
        if (traits_.results[i].written_argument < 0 && value.isTensor()) {
          if (is_sparse(*value.unsafeToTensorImpl())) return;
          results.push_back(value.toTensor());
        }
      }
      finish_record(std::move(record), arguments_.saved(), results, pins,
                    pinned.pager, call_);
    }
  }

  // The same on a device without data: what the kernel would have allocated
  // and the time it would have taken are added.
  void runSimulated(Pinned& pinned, runtime::DeviceRuntime& device) {
    {
      const simulated::FactsOfCall facts(arguments_.aliasTensors());
      simulated::run_kernel(traits_, op_, stack_);
    }
    simulated::KernelMemory memory(pinned.pager, pinned.call);
    syncWrites(pinned);
    adoptResults(pinned);
    if (!memory.finish()) {
      simulated::use_workspace(view(), pinned.pager, pinned.call);
    }
    simulated::charge(view(), device,
                      backend::current_stream(arguments_.index()));
    simulated::note_call(view());
    if (choice_) (void)choice_->chosen(call_, /*failed=*/false);
    in_kernel_ = false;
  }

  // After the call.
  simulated::CallView view() const {
    const std::size_t count = traits_.results.size();
    return {
        traits_, op_.schema(), arguments_.saved(),
        c10::ArrayRef<c10::IValue>(stack_).slice(stack_.size() - count, count)};
  }

  // ---- results -------------------------------------------------------------
  // What the kernel did to the storages and shapes of written operands.
  void syncWrites(Pinned& pinned) {
    if (!traits_.writes) return;
    const Adoption adoption{pinned.pager, pinned.call, arguments_.index()};
    for (AliasTensorSet::Entry& entry : arguments_.aliasTensors().entries()) {
      if (!entry.writes) continue;
      adoption.storage(
          *entry.outer, *entry.alias,
          entry.block == nullptr ? nullptr : entry.block->device_address);
    }
    call_.overwritten();
    for (const CallArguments::Written& written : arguments_.written()) {
      const AliasTensorSet::Entry& entry =
          arguments_.aliasTensors().entries()[written.entry];
      if (entry.overwrites && entry.block != nullptr &&
          written.outer->sizes() != written.alias_tensor->sizes()) {
        keep_rest(call_, *entry.block, *written.alias_tensor);
      }
      // mutant: out-shape
      Adoption::shape(*written.outer, *written.alias_tensor);
      if (counts_versions_) written.outer->bump_version();
    }
    for (const CallArguments::SparseOperand& operand :
         arguments_.sparseOperands()) {
      if (operand.writes) putBack(pinned, operand);
    }
  }

  // Kernels give a sparse tensor other parts instead of writing its own.
  void putBack(Pinned& pinned, const CallArguments::SparseOperand& operand) {
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
    const std::size_t first = stack_.size() - traits_.results.size();
    for (std::size_t i = 0; i < traits_.results.size(); ++i) {
      const ResultTraits& result = traits_.results[i];
      c10::IValue& value = stack_[first + i];
      if (result.written_argument >= 0) {
        value = arguments_
                    .saved()[static_cast<std::size_t>(result.written_argument)];
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
    if (!is_native_result(tensor, traits_)) return tensor;
    if (is_sparse(*tensor.unsafeGetTensorImpl())) [[unlikely]] {
      return adoptSparse(pinned, tensor);
    }
    const c10::Device device(kChameleon, arguments_.index());
    c10::StorageImpl& storage =
        *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    // Not fresh: the kernel returned (a view of) one of its operands.
    if (const AliasTensorSet::Entry* entry =
            arguments_.aliasTensors().find(storage)) {
      return at::Tensor(make_outer(
          *tensor.unsafeGetTensorImpl(),
          c10::Storage(
              c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(entry->outer)),
          device));
    }
    if (arguments_.namesOtherDevice()) return leaveArena(pinned, tensor);
    if ((tensor.use_count() > 1 || tensor.storage().use_count() > 1) &&
        !traits_.name.starts_with("aten::")) {
      tensor = tensor.clone(); // another library's kernel may keep what it has
    }
    return Adoption{pinned.pager, pinned.call, arguments_.index()}.tensor(
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

  const OpTraits& traits_;
  const c10::OperatorHandle& op_;
  Stack& stack_;
  memory::Call& call_;
  bool* const started_; // may be null
  const bool rerun_;
  bool in_kernel_ = false;
  // Unless a caller above has counted, which keeps the kernel from it.
  const bool counts_versions_ =
      traits_.counts_versions && !c10::impl::tls_is_dispatch_key_excluded(
                                     c10::DispatchKey::ADInplaceOrView);
  std::optional<AlgorithmChoice> choice_;
  CallArguments arguments_;
};

} // namespace

void add_memory_sample(backend::DeviceContext& device) {
  const auto levels = device.pager->levels();
  device.history->add({device.runtime->now_ns(), levels.logical_bytes,
                       levels.resident_bytes, levels.host_bytes});
}

void report_late_error(backend::DeviceContext& device, std::string_view op,
                       c10::AcceleratorError& error) {
  error.add_context("reported while chameleon ran " + std::string(op));
  runtime::DeviceRuntime& runtime = *device.runtime;
  if (const auto event = runtime.record(runtime::kDefaultComputeStream);
      event.ok()) {
    runtime.destroy(event.value());
  }
}

void call_native(const OpTraits& traits, const c10::OperatorHandle& op,
                 Stack* stack, bool* started) {
  memory::Call call;
  NativeCall(traits, op, *stack, call, started).run();
}

void retry_native(const OpTraits& traits, const c10::OperatorHandle& op,
                  Stack& stack, memory::Call& call) {
  NativeCall(traits, op, stack, call).run();
}

void rerun_native(const OpTraits& traits, const c10::OperatorHandle& op,
                  Stack* stack) {
  memory::Call call;
  NativeCall(traits, op, *stack, call, nullptr, /*rerun=*/true).run();
}

} // namespace chameleon::kernels
