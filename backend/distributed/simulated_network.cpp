#include "backend/distributed/simulated_network.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "backend/torch/device.h"
#include "backend/torch/error.h"
#include "backend/torch/stream.h"

namespace chameleon::distributed {
namespace {

using backend::kChameleon;
using c10d::OpType;
using runtime::Exchange;
using runtime::ExchangePattern;
using Tensors = SimulatedNetwork::Tensors;
using TensorLists = SimulatedNetwork::TensorLists;
using Work = SimulatedNetwork::Work;

constexpr double kBarrierBytes = 4; // as NCCL's, an all-reduce of one number

double bytes_of(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel()) *
         static_cast<double>(tensor.itemsize());
}

double bytes_of(const Tensors& tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += bytes_of(tensor);
  return bytes;
}

double bytes_of(const TensorLists& lists) {
  double bytes = 0;
  for (const Tensors& tensors : lists) bytes += bytes_of(tensors);
  return bytes;
}

c10::Stream current_stream() {
  return c10::impl::getDeviceGuardImpl(kChameleon)
      ->getStream(c10::Device(kChameleon, backend::current_device()));
}

// Done where the stream is on which its time was spent.
class SimulatedWork final : public c10d::Work {
 public:
  SimulatedWork(int rank, OpType type) : Work(rank, type) {
    end_.record(current_stream());
  }

  bool isCompleted() override { return end_.query(); }
  bool isSuccess() const override { return true; }
  void synchronize() override { end_.block(current_stream()); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    synchronize();
    return true;
  }
  void blockCurrentStream() override { synchronize(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
    future->markCompleted();
    return future;
  }

 private:
  c10::Event end_{kChameleon};
};

bool is_receive(OpType type) { return type == OpType::RECV; }

void refuse_lone_receive() {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "a simulated rank receives from another one, and when that one sends is "
      "not modelled: plan knows what all ranks do together, and exchanges in "
      "which each sends and receives (batch_isend_irecv), but no pipelines");
}

} // namespace

SimulatedNetwork::SimulatedNetwork(int rank, std::vector<int> machines)
    : Backend(rank, static_cast<int>(machines.size())),
      machines_(std::move(machines)),
      count_(static_cast<int>(
          std::set<int>(machines_.begin(), machines_.end()).size())) {}

SimulatedNetwork::~SimulatedNetwork() = default;

// ---- how a collective runs ------------------------------------------------

Work SimulatedNetwork::run(OpType type, ExchangePattern pattern, double bytes) {
  ++sequence_;
  const Exchange exchange{pattern, bytes, size_, count_};
  if (coalescing_) {
    coalesced_.push_back({type, exchange});
    return nullptr;
  }
  return submit(type, {exchange});
}

Work SimulatedNetwork::message(OpType type, double bytes, int peer) {
  ++sequence_;
  const bool is_here = machines_[static_cast<std::size_t>(rank_)] ==
                       machines_.at(static_cast<std::size_t>(peer));
  const Exchange exchange{ExchangePattern::kSend, bytes, 2, is_here ? 1 : 2};
  if (coalescing_) {
    coalesced_.push_back({type, exchange});
    return nullptr;
  }
  if (is_receive(type)) refuse_lone_receive();
  return submit(type, {exchange});
}

Work SimulatedNetwork::submit(OpType type,
                              const std::vector<Exchange>& exchanges) {
  const c10::DeviceIndex index = backend::current_device();
  backend::DeviceContext& device = backend::context(index, "a collective");
  for (const Exchange& exchange : exchanges) {
    backend::throw_if(
        device.runtime->exchanged(backend::current_stream(index), exchange));
  }
  return c10::make_intrusive<SimulatedWork>(rank_, type);
}

void SimulatedNetwork::startCoalescing() { coalescing_ = true; }

Work SimulatedNetwork::endCoalescing() {
  coalescing_ = false;
  const std::vector<Coalesced> all = std::exchange(coalesced_, {});
  std::vector<Exchange> sums;
  // Of messages: here and elsewhere, sent and received.
  double messages[2][2] = {};
  bool sends = false;
  bool receives = false;
  for (const auto& [type, exchange] : all) {
    if (exchange.pattern == ExchangePattern::kSend) {
      messages[exchange.machines - 1][is_receive(type) ? 1 : 0] +=
          exchange.bytes;
      (is_receive(type) ? receives : sends) = true;
      continue;
    }
    const auto same = std::find_if(sums.begin(), sums.end(),
                                   [&kind = exchange](const Exchange& each) {
                                     return each.pattern == kind.pattern;
                                   });
    if (same == sums.end()) {
      sums.push_back(exchange);
    } else {
      same->bytes += exchange.bytes;
    }
  }
  if (receives && !sends) refuse_lone_receive();
  for (const int machines : {1, 2}) {
    const auto& bytes = messages[machines - 1];
    const double most = std::max(bytes[0], bytes[1]);
    if (most > 0) sums.push_back({ExchangePattern::kSend, most, 2, machines});
  }
  return submit(OpType::COALESCED, sums);
}

// ---- collectives ----------------------------------------------------------

Work SimulatedNetwork::broadcast(Tensors& tensors,
                                 const c10d::BroadcastOptions& /*options*/) {
  return run(OpType::BROADCAST, ExchangePattern::kBroadcast, bytes_of(tensors));
}

Work SimulatedNetwork::allreduce(Tensors& tensors,
                                 const c10d::AllreduceOptions& /*options*/) {
  return run(OpType::ALLREDUCE, ExchangePattern::kAllReduce, bytes_of(tensors));
}

Work SimulatedNetwork::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& /*options*/) {
  return run(OpType::ALLREDUCE_COALESCED, ExchangePattern::kAllReduce,
             bytes_of(tensors));
}

Work SimulatedNetwork::reduce(Tensors& tensors,
                              const c10d::ReduceOptions& /*options*/) {
  return run(OpType::REDUCE, ExchangePattern::kReduce, bytes_of(tensors));
}

Work SimulatedNetwork::allgather(TensorLists& outputs, Tensors& /*inputs*/,
                                 const c10d::AllgatherOptions& /*options*/) {
  return run(OpType::ALLGATHER, ExchangePattern::kAllGather, bytes_of(outputs));
}

Work SimulatedNetwork::_allgather_base(
    at::Tensor& output, at::Tensor& /*input*/,
    const c10d::AllgatherOptions& /*options*/) {
  return run(OpType::_ALLGATHER_BASE, ExchangePattern::kAllGather,
             bytes_of(output));
}

Work SimulatedNetwork::allgather_coalesced(
    TensorLists& outputs, Tensors& /*inputs*/,
    const c10d::AllgatherOptions& /*options*/) {
  return run(OpType::ALLGATHER_COALESCED, ExchangePattern::kAllGather,
             bytes_of(outputs));
}

Work SimulatedNetwork::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& /*inputs*/,
    const c10d::AllgatherOptions& /*options*/) {
  return run(OpType::COALESCED, ExchangePattern::kAllGather, bytes_of(outputs));
}

Work SimulatedNetwork::gather(TensorLists& /*outputs*/, Tensors& inputs,
                              const c10d::GatherOptions& /*options*/) {
  return run(OpType::GATHER, ExchangePattern::kGather,
             bytes_of(inputs) * size_);
}

Work SimulatedNetwork::scatter(Tensors& outputs, TensorLists& /*inputs*/,
                               const c10d::ScatterOptions& /*options*/) {
  return run(OpType::SCATTER, ExchangePattern::kScatter,
             bytes_of(outputs) * size_);
}

Work SimulatedNetwork::reduce_scatter(
    Tensors& /*outputs*/, TensorLists& inputs,
    const c10d::ReduceScatterOptions& /*options*/) {
  return run(OpType::REDUCE_SCATTER, ExchangePattern::kReduceScatter,
             bytes_of(inputs));
}

Work SimulatedNetwork::_reduce_scatter_base(
    at::Tensor& /*output*/, at::Tensor& input,
    const c10d::ReduceScatterOptions& /*options*/) {
  return run(OpType::_REDUCE_SCATTER_BASE, ExchangePattern::kReduceScatter,
             bytes_of(input));
}

Work SimulatedNetwork::reduce_scatter_tensor_coalesced(
    Tensors& /*outputs*/, Tensors& inputs,
    const c10d::ReduceScatterOptions& /*options*/) {
  return run(OpType::COALESCED, ExchangePattern::kReduceScatter,
             bytes_of(inputs));
}

Work SimulatedNetwork::alltoall_base(
    at::Tensor& output, at::Tensor& input,
    std::vector<std::int64_t>& /*output_splits*/,
    std::vector<std::int64_t>& /*input_splits*/,
    const c10d::AllToAllOptions& /*options*/) {
  return run(OpType::ALLTOALL_BASE, ExchangePattern::kAllToAll,
             std::max(bytes_of(input), bytes_of(output)));
}

Work SimulatedNetwork::alltoall(Tensors& outputs, Tensors& inputs,
                                const c10d::AllToAllOptions& /*options*/) {
  return run(OpType::ALLTOALL, ExchangePattern::kAllToAll,
             std::max(bytes_of(inputs), bytes_of(outputs)));
}

Work SimulatedNetwork::send(Tensors& tensors, int to, int /*tag*/) {
  return message(OpType::SEND, bytes_of(tensors), to);
}

Work SimulatedNetwork::recv(Tensors& tensors, int from, int /*tag*/) {
  return message(OpType::RECV, bytes_of(tensors), from);
}

Work SimulatedNetwork::barrier(const c10d::BarrierOptions& /*options*/) {
  return run(OpType::BARRIER, ExchangePattern::kAllReduce, kBarrierBytes);
}

// ---- the rest -------------------------------------------------------------

const std::string SimulatedNetwork::getBackendName() const {
  return "simulated";
}

c10::intrusive_ptr<c10d::Backend::Options>
SimulatedNetwork::getBackendOptions() {
  return c10::make_intrusive<Options>("simulated");
}

void SimulatedNetwork::setTimeout(std::chrono::milliseconds /*timeout*/) {}

} // namespace chameleon::distributed
