// What a collective's caller holds: the inner backend's work, whose end lets go
// of the operands.
//
// Tests: test_process_group.py, test_one_rank.py.
//
// Thread safety: as c10d::Work: any thread.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "backend/distributed/collective.h"

namespace chameleon::distributed {

class CollectiveWork final : public c10d::Work {
 public:
  // What finishes the collective.
  enum class Ends : std::uint8_t {
    kByItself, // the inner work's future, or it is finished
    kOnStream, // a stream that waits for it
    kInWait,   // wait() alone, or that the work is given up
  };
  CollectiveWork(int rank, c10d::OpType type,
                 c10::intrusive_ptr<c10d::Work> inner,
                 std::shared_ptr<Collective> collective, Ends ends);
  ~CollectiveWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void blockCurrentStream() override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override;

 private:
  c10::intrusive_ptr<c10d::Work> inner_;
  std::shared_ptr<Collective> collective_;
  const Ends ends_;
};

} // namespace chameleon::distributed
