// The other ranks where there is one process and no data: a c10d backend for
// the native tensors of a simulated device. It sends nothing; each collective
// costs its modelled time on the current stream (exchange_costs.h), as NCCL's
// would, and what is received has no values. ProcessGroup drives it as NCCL
// (Completion::kOnStream).
//
// Other ranks do the same at the same time, so no collective waits for one that
// comes late. A receive that no send goes with would: it is refused.
//
// Tests: test_simulated_network.py.
//
// Thread safety: as ProcessGroup: one thread at a time.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "backend/runtime/device_runtime.h"

namespace chameleon::distributed {

class SimulatedNetwork final : public c10d::Backend {
 public:
  // `machines`: of each rank of the group, the machine on which it is.
  SimulatedNetwork(int rank, std::vector<int> machines);
  ~SimulatedNetwork() override;

  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;

  Work broadcast(Tensors& tensors,
                 const c10d::BroadcastOptions& options) override;
  Work allreduce(Tensors& tensors,
                 const c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(
      Tensors& tensors,
      const c10d::AllreduceCoalescedOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work allgather(TensorLists& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& options) override;
  Work allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& options) override;
  Work allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& options) override;
  Work gather(TensorLists& outputs, Tensors& inputs,
              const c10d::GatherOptions& options) override;
  Work scatter(Tensors& outputs, TensorLists& inputs,
               const c10d::ScatterOptions& options) override;
  Work reduce_scatter(Tensors& outputs, TensorLists& inputs,
                      const c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override;
  Work reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::ReduceScatterOptions& options) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input,
                     std::vector<std::int64_t>& output_splits,
                     std::vector<std::int64_t>& input_splits,
                     const c10d::AllToAllOptions& options) override;
  Work alltoall(Tensors& outputs, Tensors& inputs,
                const c10d::AllToAllOptions& options) override;
  Work send(Tensors& tensors, int to, int tag) override;
  Work recv(Tensors& tensors, int from, int tag) override;
  Work barrier(const c10d::BarrierOptions& options) override;

  // Several at once are one launch: those of a kind add up, and what is sent
  // and received goes both ways at once.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  Work endCoalescing() override;

  const std::string getBackendName() const override; // NOLINT: c10d's type
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

 private:
  Work run(c10d::OpType type, runtime::ExchangePattern pattern, double bytes);
  Work message(c10d::OpType type, double bytes, int peer);
  Work submit(c10d::OpType type,
              const std::vector<runtime::Exchange>& exchanges);

  const std::vector<int> machines_; // by rank
  int count_ = 1;                   // of them, different ones
  std::uint64_t sequence_ = 0;
  bool coalescing_ = false;
  struct Coalesced {
    c10d::OpType type;
    runtime::Exchange exchange;
  };
  std::vector<Coalesced> coalesced_;
};

} // namespace chameleon::distributed
