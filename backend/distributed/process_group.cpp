#include "backend/distributed/process_group.h"

#include <utility>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include "backend/torch/device.h"
#include "backend/torch/stream.h"

namespace chameleon::distributed {
namespace {

using backend::kChameleon;
using c10d::OpType;
using memory::Access;
using Ends = CollectiveWork::Ends;
using Tensors = ProcessGroup::Tensors;
using Work = ProcessGroup::Work;

Tensors flattened(const at::Tensor& tensor) { return {tensor}; }
Tensors flattened(const Tensors& tensors) { return tensors; }
Tensors flattened(const TensorLists& lists) {
  Tensors flat;
  for (const Tensors& tensors : lists) {
    flat.insert(flat.end(), tensors.begin(), tensors.end());
  }
  return flat;
}

bool are_of_one_shape(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.sizes() != tensors.front().sizes()) return false;
  }
  return true;
}

c10::Device device_of(const Operands& operands) {
  for (const auto& use : operands.uses()) {
    if (use.tensor->device().type() == kChameleon) return use.tensor->device();
  }
  return {kChameleon, backend::current_device()};
}

c10::Stream current_stream(c10::DeviceIndex index) {
  return c10::impl::getDeviceGuardImpl(kChameleon)
      ->getStream(c10::Device(kChameleon, index));
}

// gloo's works of other ops do the last part of it in wait().
bool has_future(OpType type) {
  switch (type) {
    case OpType::SEND:
    case OpType::RECV:
    case OpType::RECVANYSOURCE:
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
    case OpType::COALESCED:
      return false;
    default:
      return true;
  }
}

Tensors written(const Operands& operands, Natives natives) {
  Tensors tensors;
  for (const auto& use : operands.uses()) {
    at::Tensor native = natives.next();
    if (memory::writes(use.access)) tensors.push_back(std::move(native));
  }
  return tensors;
}

void divide(const Tensors& tensors, int by) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) {
      tensor.div_(by, "trunc");
    } else {
      tensor.div_(by);
    }
  }
}

} // namespace

ProcessGroup::ProcessGroup(c10::intrusive_ptr<c10d::Backend> inner,
                           Completion completion)
    : Backend(inner->getRank(), inner->getSize()),
      inner_(std::move(inner)),
      completion_(completion) {}

// ---- how a collective runs ------------------------------------------------

template <typename Outputs, typename Inputs, typename StartNative>
Work ProcessGroup::exchange(const CollectiveKind& kind, const Outputs& outputs,
                            const Inputs& inputs, const StartNative& start,
                            bool averages) {
  Operands operands;
  operands.add(outputs, Access::kOverwrite).add(inputs, Access::kRead);
  return run({kind, operands, flattened(outputs), averages},
             [&](Natives natives) {
               auto native_outputs = natives.like(outputs);
               auto native_inputs = natives.like(inputs);
               return start(native_outputs, native_inputs);
             });
}

template <typename StartNative>
Work ProcessGroup::use(const CollectiveKind& kind, const Tensors& tensors,
                       Access access, const StartNative& start, bool averages) {
  Operands operands;
  operands.add(tensors, access);
  return run({kind, operands, tensors, averages},
             [&](Natives natives) { return start(natives.all()); });
}

Work ProcessGroup::run(const Request& request, Start start) {
  if (coalescing_) {
    coalesce(request, start);
    return nullptr;
  }
  return completion_ == Completion::kOnStream ? runOnStream(request, start)
                                              : runOnHost(request, start);
}

Work ProcessGroup::runOnHost(const Request& request, Start start) {
  const c10::Device device = device_of(request.operands);
  backend::context(device.index(), request.kind.kind.name); // fixes the target
  std::optional<c10::StreamGuard> on_stream;
  if (backend::target().type == c10::DeviceType::CUDA) {
    on_stream.emplace(followCaller(device.index()));
  }
  auto collective = std::make_shared<Collective>(device, request.results);
  const Natives natives = collective->pin(request.kind, request.operands);
  Work inner = start(natives);
  Tensors averaged;
  if (request.averages) averaged = written(request.operands, natives);
  if (on_stream || !averaged.empty()) {
    collective->then([inner, averaged = std::move(averaged),
                      stream = on_stream ? stream_ : std::nullopt,
                      size = getSize()] {
      const c10::OptionalStreamGuard behind(stream);
      if (stream) inner->synchronize(); // gloo's copies to the device
      divide(averaged, size);
    });
  }
  Ends ends = Ends::kInWait;
  if (has_future(request.kind.type)) {
    ends = Ends::kByItself;
    Collective::endWith(*inner, collective);
  }
  return c10::make_intrusive<CollectiveWork>(getRank(), request.kind.type,
                                             std::move(inner),
                                             std::move(collective), ends);
}

Work ProcessGroup::runOnStream(const Request& request, Start start) {
  dropDone();
  const c10::Device device = device_of(request.operands);
  auto collective = std::make_shared<Collective>(device, request.results);
  const c10::StreamGuard on_stream(followCaller(device.index()));
  Work inner = start(collective->pin(request.kind, request.operands));
  return finishOnStream(request.kind.type, c10d::isP2POp(request.kind.type),
                        std::move(inner), std::move(collective));
}

void ProcessGroup::coalesce(const Request& request, Start start) {
  const c10::Device device = device_of(request.operands);
  if (coalesced_ == nullptr) {
    coalesced_ = std::make_shared<Collective>(device, at::TensorList());
  }
  coalesced_point_to_point_ =
      coalesced_point_to_point_ || c10d::isP2POp(request.kind.type);
  const c10::StreamGuard on_stream(followCaller(device.index()));
  start(coalesced_->pin(request.kind, request.operands));
  coalesced_->addResults(request.results);
}

// On the group's stream. A collective is done for us once that waits for it. A
// peer may take its time to send: were the operands evicted meanwhile, all
// copies behind theirs would wait for it.
Work ProcessGroup::finishOnStream(OpType type, bool point_to_point, Work inner,
                                  std::shared_ptr<Collective> collective) {
  if (point_to_point) {
    collective->then([inner, stream = *stream_] {
      const c10::StreamGuard on_stream(stream);
      inner->synchronize();
    });
    outstanding_.push_back({inner, collective});
  } else {
    // mutant: operands-leave-early
    inner->synchronize();
    collective->finish();
  }
  return c10::make_intrusive<CollectiveWork>(
      getRank(), type, std::move(inner), std::move(collective),
      point_to_point ? Ends::kOnStream : Ends::kByItself);
}

c10::Stream ProcessGroup::followCaller(c10::DeviceIndex index) {
  if (!stream_ || stream_->device_index() != index) {
    stream_ = backend::new_stream(index, /*priority=*/-1);
  }
  c10::Event event(kChameleon);
  event.record(current_stream(index));
  // mutant: collective-after-caller
  event.block(*stream_);
  return *stream_;
}

// Sends and receives that are done by now.
void ProcessGroup::dropDone() {
  for (auto at = outstanding_.begin(); at != outstanding_.end();) {
    const bool done = at->collective->isFinished() || at->inner->isCompleted();
    if (done) at->collective->finish(at->inner->exception());
    at = done ? outstanding_.erase(at) : std::next(at);
  }
}

template <typename Reduction>
std::optional<Reduction> ProcessGroup::sumInstead(
    const Reduction& options) const {
  if (completion_ == Completion::kOnStream ||
      options.reduceOp.op_ != c10d::ReduceOp::AVG) {
    return std::nullopt;
  }
  Reduction sum = options;
  sum.reduceOp = c10d::ReduceOp::SUM;
  return sum;
}

// To NCCL a tensor is so many elements, whatever its shape. gloo compares.
at::Tensor ProcessGroup::inARow(const at::Tensor& native) const {
  if (completion_ == Completion::kOnStream || !native.is_contiguous()) {
    return native;
  }
  return native.view({-1});
}

// ---- collectives ----------------------------------------------------------

Work ProcessGroup::broadcast(Tensors& tensors,
                             const c10d::BroadcastOptions& options) {
  static const CollectiveKind kind(OpType::BROADCAST, "c10d::broadcast_");
  const bool sends = options.rootRank == getRank();
  return use(
      kind, tensors, sends ? Access::kRead : Access::kOverwrite,
      [&](Tensors& native) { return inner_->broadcast(native, options); });
}

Work ProcessGroup::allreduce(Tensors& tensors,
                             const c10d::AllreduceOptions& options) {
  static const CollectiveKind kind(OpType::ALLREDUCE, "c10d::allreduce_");
  if (!tensors.empty() && tensors.front().layout() != at::kStrided) {
    return allreduce_sparse(tensors, options);
  }
  const auto sum = sumInstead(options);
  return use(
      kind, tensors, Access::kWrite,
      [&](Tensors& native) {
        return inner_->allreduce(native, sum ? *sum : options);
      },
      sum.has_value());
}

// The sum has other indices, and memory of its own, which gloo makes: the
// tensors go by way of the host.
Work ProcessGroup::allreduce_sparse(Tensors& tensors,
                                    const c10d::AllreduceOptions& options) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      completion_ == Completion::kOnHost,
      "chameleon: ", inner_->getBackendName(),
      " reduces dense tensors; make the gradients dense, or name the backend "
      "\"gloo\" in init_process_group()");
  Tensors native;
  for (const at::Tensor& tensor : tensors) native.push_back(tensor.cpu());
  Work inner = inner_->allreduce(native, options);
  inner->wait();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].copy_(native[i]);
  }
  auto collective =
      std::make_shared<Collective>(tensors.front().device(), tensors);
  collective->finish();
  return c10::make_intrusive<CollectiveWork>(
      getRank(), OpType::ALLREDUCE, std::move(inner), std::move(collective),
      Ends::kByItself);
}

Work ProcessGroup::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  static const CollectiveKind kind(OpType::ALLREDUCE_COALESCED,
                                   "c10d::allreduce_coalesced_");
  const auto sum = sumInstead(options);
  return use(
      kind, tensors, Access::kWrite,
      [&](Tensors& native) {
        return inner_->allreduce_coalesced(native, sum ? *sum : options);
      },
      sum.has_value());
}

Work ProcessGroup::reduce(Tensors& tensors,
                          const c10d::ReduceOptions& options) {
  static const CollectiveKind kind(OpType::REDUCE, "c10d::reduce_");
  const auto sum = sumInstead(options);
  return use(
      kind, tensors, Access::kWrite,
      [&](Tensors& native) {
        return inner_->reduce(native, sum ? *sum : options);
      },
      sum.has_value());
}

Work ProcessGroup::allgather(TensorLists& outputs, Tensors& inputs,
                             const c10d::AllgatherOptions& options) {
  static const CollectiveKind kind(OpType::ALLGATHER, "c10d::allgather_");
  if (completion_ == Completion::kOnStream && !coalescing_ &&
      inputs.size() == 1 && outputs.size() == 1 &&
      are_of_one_shape(outputs.front())) {
    // NCCL would allocate the same; here it is of the budget.
    const at::Tensor& input = inputs.front();
    std::vector<std::int64_t> sizes = input.sizes().vec();
    sizes.insert(sizes.begin(), getSize());
    at::Tensor all = at::empty(sizes, input.options());
    at::Tensor own = input.contiguous();
    const Work work = _allgather_base(all, own, options);
    work->synchronize();
    for (std::size_t i = 0; i < outputs.front().size(); ++i) {
      outputs.front()[i].copy_(all[static_cast<std::int64_t>(i)]);
    }
    return work;
  }
  return exchange(kind, outputs, inputs, [&](auto& outs, auto& ins) {
    return inner_->allgather(outs, ins, options);
  });
}

Work ProcessGroup::_allgather_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::AllgatherOptions& options) {
  static const CollectiveKind kind(OpType::_ALLGATHER_BASE,
                                   "c10d::_allgather_base_");
  return exchange(kind, output, input, [&](auto& outs, auto& ins) {
    at::Tensor to = inARow(outs);
    at::Tensor from = inARow(ins);
    return inner_->_allgather_base(to, from, options);
  });
}

Work ProcessGroup::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) {
  static const CollectiveKind kind(OpType::ALLGATHER_COALESCED,
                                   "c10d::allgather_coalesced_");
  return exchange(kind, outputs, inputs, [&](auto& outs, auto& ins) {
    return inner_->allgather_coalesced(outs, ins, options);
  });
}

Work ProcessGroup::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  static const CollectiveKind kind(OpType::COALESCED,
                                   "c10d::allgather_into_tensor_coalesced_");
  return exchange(kind, outputs, inputs, [&](auto& outs, auto& ins) {
    return inner_->allgather_into_tensor_coalesced(outs, ins, options);
  });
}

Work ProcessGroup::gather(TensorLists& outputs, Tensors& inputs,
                          const c10d::GatherOptions& options) {
  static const CollectiveKind kind(OpType::GATHER, "c10d::gather_");
  return exchange(kind, outputs, inputs, [&](auto& outs, auto& ins) {
    return inner_->gather(outs, ins, options);
  });
}

Work ProcessGroup::scatter(Tensors& outputs, TensorLists& inputs,
                           const c10d::ScatterOptions& options) {
  static const CollectiveKind kind(OpType::SCATTER, "c10d::scatter_");
  return exchange(kind, outputs, inputs, [&](auto& outs, auto& ins) {
    return inner_->scatter(outs, ins, options);
  });
}

Work ProcessGroup::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                  const c10d::ReduceScatterOptions& options) {
  static const CollectiveKind kind(OpType::REDUCE_SCATTER,
                                   "c10d::reduce_scatter_");
  if (completion_ == Completion::kOnStream && outputs.size() == 1 &&
      inputs.size() == 1 && are_of_one_shape(inputs.front())) {
    at::Tensor all = at::stack(inputs.front()); // as in allgather()
    return _reduce_scatter_base(outputs.front(), all, options);
  }
  const auto sum = sumInstead(options);
  return exchange(
      kind, outputs, inputs,
      [&](auto& outs, auto& ins) {
        return inner_->reduce_scatter(outs, ins, sum ? *sum : options);
      },
      sum.has_value());
}

Work ProcessGroup::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input,
    const c10d::ReduceScatterOptions& options) {
  static const CollectiveKind kind(OpType::_REDUCE_SCATTER_BASE,
                                   "c10d::_reduce_scatter_base_");
  const auto sum = sumInstead(options);
  return exchange(
      kind, output, input,
      [&](auto& outs, auto& ins) {
        at::Tensor to = inARow(outs);
        at::Tensor from = inARow(ins);
        return inner_->_reduce_scatter_base(to, from, sum ? *sum : options);
      },
      sum.has_value());
}

Work ProcessGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs,
    const c10d::ReduceScatterOptions& options) {
  static const CollectiveKind kind(OpType::COALESCED,
                                   "c10d::reduce_scatter_tensor_coalesced_");
  const auto sum = sumInstead(options);
  return exchange(
      kind, outputs, inputs,
      [&](auto& outs, auto& ins) {
        return inner_->reduce_scatter_tensor_coalesced(outs, ins,
                                                       sum ? *sum : options);
      },
      sum.has_value());
}

Work ProcessGroup::alltoall_base(at::Tensor& output, at::Tensor& input,
                                 std::vector<std::int64_t>& output_splits,
                                 std::vector<std::int64_t>& input_splits,
                                 const c10d::AllToAllOptions& options) {
  static const CollectiveKind kind(OpType::ALLTOALL_BASE,
                                   "c10d::alltoall_base_");
  return exchange(kind, output, input, [&](auto& outs, auto& ins) {
    return inner_->alltoall_base(outs, ins, output_splits, input_splits,
                                 options);
  });
}

Work ProcessGroup::alltoall(Tensors& outputs, Tensors& inputs,
                            const c10d::AllToAllOptions& options) {
  static const CollectiveKind kind(OpType::ALLTOALL, "c10d::alltoall_");
  if (completion_ == Completion::kOnHost) { // gloo has it for one tensor
    std::vector<std::int64_t> output_splits;
    std::vector<std::int64_t> input_splits;
    std::int64_t received = 0;
    Tensors flat;
    for (const at::Tensor& input : inputs) {
      input_splits.push_back(input.numel());
      flat.push_back(input.reshape({-1}));
    }
    for (const at::Tensor& output : outputs) {
      output_splits.push_back(output.numel());
      received += output.numel();
    }
    at::Tensor sent = at::cat(flat);
    at::Tensor all = at::empty({received}, outputs.front().options());
    std::vector<std::int64_t> given = output_splits; // gloo takes them
    const Work work = alltoall_base(all, sent, given, input_splits, options);
    work->wait();
    const Tensors parts = all.split_with_sizes(output_splits);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      outputs[i].copy_(parts[i].view_as(outputs[i]));
    }
    return work;
  }
  return exchange(kind, outputs, inputs, [&](auto& outs, auto& ins) {
    return inner_->alltoall(outs, ins, options);
  });
}

Work ProcessGroup::send(Tensors& tensors, int to, int tag) {
  static const CollectiveKind kind(OpType::SEND, "c10d::send");
  return use(kind, tensors, Access::kRead,
             [&](Tensors& native) { return inner_->send(native, to, tag); });
}

Work ProcessGroup::recv(Tensors& tensors, int from, int tag) {
  static const CollectiveKind kind(OpType::RECV, "c10d::recv_");
  return use(kind, tensors, Access::kOverwrite,
             [&](Tensors& native) { return inner_->recv(native, from, tag); });
}

Work ProcessGroup::recvAnysource(Tensors& tensors, int tag) {
  static const CollectiveKind kind(OpType::RECVANYSOURCE,
                                   "c10d::recv_any_source_");
  return use(kind, tensors, Access::kOverwrite, [&](Tensors& native) {
    return inner_->recvAnysource(native, tag);
  });
}

// It has no operands, and the caller's stream is the one that it is behind.
Work ProcessGroup::barrier(const c10d::BarrierOptions& options) {
  c10d::BarrierOptions asked = options;
  if (asked.device && asked.device->type() == kChameleon) {
    const c10::DeviceIndex index =
        backend::resolve_index(asked.device->index());
    backend::context(index, "c10d::barrier"); // fixes the target
    asked.device = backend::target_device(index);
  }
  return inner_->barrier(asked);
}

void ProcessGroup::monitoredBarrier(const c10d::BarrierOptions& options,
                                    bool wait_all_ranks) {
  inner_->monitoredBarrier(options, wait_all_ranks);
}

// ---- several at once ------------------------------------------------------

bool ProcessGroup::supportsCoalescing() const {
  return inner_->supportsCoalescing();
}

void ProcessGroup::startCoalescing() {
  dropDone();
  inner_->startCoalescing();
  coalescing_ = true;
}

Work ProcessGroup::endCoalescing() {
  coalescing_ = false;
  const bool point_to_point = std::exchange(coalesced_point_to_point_, false);
  const std::shared_ptr<Collective> collective =
      std::exchange(coalesced_, nullptr);
  if (collective == nullptr) return inner_->endCoalescing();
  const c10::StreamGuard on_stream(*stream_);
  Work inner = inner_->endCoalescing();
  if (inner == nullptr) return inner;
  return finishOnStream(OpType::COALESCED, point_to_point, std::move(inner),
                        collective);
}

// ---- the rest is the inner backend's --------------------------------------

const std::string ProcessGroup::getBackendName() const { return kBackendName; }

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroup::getBackendOptions() {
  return inner_->getBackendOptions();
}

void ProcessGroup::setTimeout(std::chrono::milliseconds timeout) {
  inner_->setTimeout(timeout);
}

void ProcessGroup::setSequenceNumberForGroup() {
  inner_->setSequenceNumberForGroup();
}

std::uint64_t ProcessGroup::getSequenceNumberForGroup() {
  return inner_->getSequenceNumberForGroup();
}

void ProcessGroup::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  inner_->registerOnCompletionHook(std::move(hook));
}

void ProcessGroup::waitForPendingWorks() { inner_->waitForPendingWorks(); }

void ProcessGroup::enableCollectivesTiming() {
  inner_->enableCollectivesTiming();
}

bool ProcessGroup::supportsTimeEstimation() const {
  return inner_->supportsTimeEstimation();
}

c10::intrusive_ptr<c10d::Backend> ProcessGroup::split(
    const c10::intrusive_ptr<c10d::Store>& /*store*/,
    const std::vector<int>& /*ranks*/,
    const c10::intrusive_ptr<Options>& /*options*/) {
  return nullptr;
}

c10d::ErrorType ProcessGroup::getError() { return inner_->getError(); }

} // namespace chameleon::distributed
