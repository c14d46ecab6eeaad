// The c10d backend of device "chameleon": the group's own NCCL or gloo, on the
// native tensors of its operands. It sends nothing itself. Each collective is
// an op call: operands are brought to HBM and kept there (collective.h), the
// profiler sees it, and it is never run again.
//
// On CUDA a group has a stream of its own: it waits for the caller's, the inner
// collective runs behind it, and it waits for that. With NCCL
// (Completion::kOnStream) all of that is said at once, and the host waits for
// nothing: the caller's stream waits in Work::wait(), or where the next op uses
// an operand. With gloo (kOnHost) the end of the work says it, on gloo's
// thread.
//
// The order and number of collectives are the caller's: nothing here adds,
// drops or reorders one for what this process knows alone. What the inner
// backend lacks and NCCL has (averages, lists of all-to-all) is put together
// from what it has, alike on all ranks.
//
// Tests: test_process_group.py, test_training.py, test_one_rank.py.
//
// Thread safety: as the inner backend: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Stream.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "backend/distributed/collective.h"
#include "backend/distributed/collective_kind.h"
#include "backend/distributed/collective_work.h"
#include "backend/distributed/operands.h"

namespace chameleon::distributed {

inline constexpr const char* kBackendName = "chameleon";

// Where the inner backend's collectives are done.
enum class Completion : std::uint8_t { kOnStream, kOnHost };

class ProcessGroup final : public c10d::Backend {
 public:
  // `inner`: of the same group, which uses it for native tensors.
  ProcessGroup(c10::intrusive_ptr<c10d::Backend> inner, Completion completion);

  const c10::intrusive_ptr<c10d::Backend>& inner() const noexcept {
    return inner_;
  }

  // ---- collectives; see c10d::Backend ---------------------------------------
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  Work broadcast(Tensors& tensors,
                 const c10d::BroadcastOptions& options) override;
  Work allreduce(Tensors& tensors,
                 const c10d::AllreduceOptions& options) override;
  Work allreduce_sparse(Tensors& tensors,
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
  Work recvAnysource(Tensors& tensors, int tag) override;
  Work barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options,
                        bool wait_all_ranks) override;

  // ---- several at once -----------------------------------------------------
  bool supportsCoalescing() const override;
  void startCoalescing() override;
  Work endCoalescing() override;

  // ---- the rest is the inner backend's, which the group ends by itself -----
  const std::string getBackendName() const override; // NOLINT: c10d's type
  c10::intrusive_ptr<Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override;
  std::uint64_t getSequenceNumberForGroup() override;
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override;
  // None: torch splits the inner backend, which gets a new one of these.
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<Options>& options) override;
  bool supportsTimeEstimation() const override;
  c10d::ErrorType getError() override;

 private:
  using Start = c10::function_ref<Work(Natives natives)>;
  // One call of the inner backend.
  struct Request {
    const CollectiveKind& kind;
    const Operands& operands;
    at::TensorList results; // of its work
    bool averages = false;  // what it wrote is divided by the number of ranks
  };
  // Reads `inputs` and overwrites `outputs`, which are tensors, lists of them
  // or lists of lists; `start` gets the native ones.
  template <typename Outputs, typename Inputs, typename StartNative>
  Work exchange(const CollectiveKind& kind, const Outputs& outputs,
                const Inputs& inputs, const StartNative& start,
                bool averages = false);
  // The same with tensors that are used alike.
  template <typename StartNative>
  Work use(const CollectiveKind& kind, const Tensors& tensors,
           memory::Access access, const StartNative& start,
           bool averages = false);
  Work run(const Request& request, Start start);
  Work runOnHost(const Request& request, Start start);
  Work runOnStream(const Request& request, Start start);
  // The same where several go together: its work comes with endCoalescing().
  void coalesce(const Request& request, Start start);
  Work finishOnStream(c10d::OpType type, bool point_to_point, Work inner,
                      std::shared_ptr<Collective> collective);
  // The group's stream, which waits for the caller's current one.
  c10::Stream followCaller(c10::DeviceIndex index);
  // A sum in place of an average that the inner backend lacks; null: as asked.
  template <typename Reduction>
  std::optional<Reduction> sumInstead(const Reduction& options) const;
  at::Tensor inARow(const at::Tensor& native) const;
  void dropDone();

  const c10::intrusive_ptr<c10d::Backend> inner_;
  const Completion completion_;
  std::optional<c10::Stream> stream_; // on CUDA, from the first collective on
  // From startCoalescing() to endCoalescing(): what was coalesced so far.
  bool coalescing_ = false;
  bool coalesced_point_to_point_ = false;
  std::shared_ptr<Collective> coalesced_;
  // kOnStream: sends and receives whose caller may have dropped the work.
  struct Outstanding {
    Work inner;
    std::shared_ptr<Collective> collective;
  };
  std::list<Outstanding> outstanding_;
};

} // namespace chameleon::distributed
