// RecordedCall, running again.
//
// Tests: test_recompute.py, test_reruns.py.
#include <algorithm>
#include <mutex>
#include <utility>

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/device_allocator.h"
#include "backend/torch/generator.h"
#include "backend/torch/in_kernel_allocator.h"
#include "backend/torch/storage.h"
#include "kernels/alias_tensors.h"
#include "kernels/op_call.h"
#include "kernels/reruns/recorded_op.h"

namespace chameleon::kernels {

using backend::kChameleon;
using memory::Block;
using runtime::Error;
using runtime::ErrorCode;

namespace {

// Whoever asked for the op has had its warnings.
class NoWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

// The default generator as it was, for ops that take it and no other. Other
// threads that draw from it meanwhile do so as natively: in no order.
class GeneratorAsItWas {
 public:
  GeneratorAsItWas(at::Generator generator, const at::Tensor& state)
      : generator_(std::move(generator)) {
    const std::lock_guard lock(generator_.mutex());
    after_ = generator_.get_state();
    generator_.set_state(state);
  }
  ~GeneratorAsItWas() {
    const std::lock_guard lock(generator_.mutex());
    // mutant: generator-restored
    generator_.set_state(after_);
  }
  GeneratorAsItWas(const GeneratorAsItWas&) = delete;
  GeneratorAsItWas& operator=(const GeneratorAsItWas&) = delete;

 private:
  at::Generator generator_;
  at::Tensor after_;
};

} // namespace

// Storages on blocks that belong to somebody else.
class RecordedCall::Borrowed {
 public:
  Borrowed(std::span<Block* const> blocks, c10::DeviceIndex index) {
    for (Block* const block : blocks) {
      storages_.emplace_back(c10::Storage::use_byte_size_t(), 0,
                             backend::lend_block(block, index),
                             backend::device_allocator(), true);
    }
  }
  ~Borrowed() {
    for (c10::Storage& storage : storages_) giveBack(storage);
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  // As the recorded call had it.
  const c10::Storage& storage(std::size_t i, std::size_t bytes) const {
    storages_[i].unsafeGetStorageImpl()->set_nbytes(bytes);
    return storages_[i];
  }

  static Block* giveBack(const c10::Storage& storage) {
    return static_cast<Block*>(storage.unsafeGetStorageImpl()
                                   ->_mutable_data_ptr_no_checks()
                                   .release_context());
  }

 private:
  std::vector<c10::Storage> storages_;
};

Error RecordedCall::run(std::span<Block* const> operands,
                        std::vector<Block*>& results) {
  try {
    runOnce(operands, results);
    return {};
  } catch (const c10::OutOfMemoryError& error) {
    return {ErrorCode::kOutOfDeviceMemory, error.what_without_backtrace()};
  } catch (const c10::Error& error) {
    return {ErrorCode::kDevice, traits_.name + " did not run again: " +
                                    error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {ErrorCode::kDevice,
            traits_.name + " did not run again: " + error.what()};
  }
}

torch::jit::Stack RecordedCall::argumentsOn(const Borrowed& storages) const {
  const c10::DeviceIndex index = surroundings_->index;
  const c10::Device device(kChameleon, index);
  std::size_t next_shown = 0;
  const auto next = [&]() -> at::Tensor {
    const Shown& shown = shown_[next_shown++];
    if (!shown.shell.defined()) return {};
    const c10::TensorImpl& shell = *shown.shell.unsafeGetTensorImpl();
    if (!backend::is_chameleon(shell)) return shown.shell;
    return at::Tensor(make_outer(
        shell,
        shown.operand < 0
            ? shell.unsafe_storage()
            : storages.storage(static_cast<std::size_t>(shown.operand),
                               shown.storage_bytes),
        device));
  };
  torch::jit::Stack stack(arguments_.get(),
                          arguments_.get() + traits_.argument_count);
  for (const ArgumentTraits& argument : traits_.arguments) {
    c10::IValue& value = stack[argument.index];
    switch (argument.kind) {
      case ArgumentKind::kTensor: {
        at::Tensor tensor = next();
        if (tensor.defined()) value = std::move(tensor);
        break;
      }
      case ArgumentKind::kTensorList: {
        if (value.isNone()) break;
        c10::List<at::Tensor> list;
        for (std::int64_t n = value.toInt(); n > 0; --n) list.push_back(next());
        value = std::move(list);
        break;
      }
      case ArgumentKind::kOptionalList: {
        if (value.isNone()) break;
        c10::List<std::optional<at::Tensor>> list;
        for (std::int64_t n = value.toInt(); n > 0; --n) {
          at::Tensor tensor = next();
          list.push_back(tensor.defined() ? std::optional(std::move(tensor))
                                          : std::nullopt);
        }
        value = std::move(list);
        break;
      }
      case ArgumentKind::kGenerator:
        if (drawn_ == nullptr) break;
        if (drawn_->state.defined()) {
          value = backend::generator_in_state(
              drawn_->generator.defined() ? drawn_->generator
                                          : backend::default_generator(index),
              drawn_->state);
        } else if (drawn_->generator.defined()) {
          value = drawn_->generator;
        }
        break;
      default:
        break;
    }
  }
  return stack;
}

void RecordedCall::runOnce(std::span<Block* const> operands,
                           std::vector<Block*>& results) const {
  const at::DisableRecordFunctionGuard unseen;
  NoWarnings no_warnings;
  const c10::WarningUtils::WarningHandlerGuard unheard(&no_warnings);
  const WithBitSettings settings(surroundings_->settings);
  const backend::InKernelScope outside(nullptr, nullptr);
  // It reads what was there when it first ran. Whoever waits for it may be
  // inside a kernel, and must not wait for who executes deferred work.
  const backend::DeferredWorkStays stays;
  std::optional<GeneratorAsItWas> generator;

  const c10::DeviceIndex index = surroundings_->index;
  const Borrowed storages(operands, index);
  torch::jit::Stack stack = argumentsOn(storages);
  const bool takes_generator = std::any_of(
      traits_.arguments.begin(), traits_.arguments.end(),
      [](const auto& each) { return each.kind == ArgumentKind::kGenerator; });
  if (drawn_ != nullptr && drawn_->state.defined() && !takes_generator) {
    generator.emplace(
        backend::inner_generator(backend::default_generator(index)),
        drawn_->state);
  }

  rerun_native(traits_, traits_.handle, &stack);

  for (std::size_t i = 0; i < traits_.results.size(); ++i) {
    if (traits_.results[i].written_argument >= 0 || !stack[i].isTensor()) {
      continue;
    }
    const at::Tensor& tensor = stack[i].toTensor();
    if (add_created(tensor, operands, results))
      Borrowed::giveBack(tensor.storage());
  }
}

} // namespace chameleon::kernels
