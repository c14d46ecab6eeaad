// One collective under way, or several that a backend coalesced: the operands
// that it keeps resident, until it is done.
//
// Where the inner backend works on a stream (NCCL) it is done, for us, once a
// stream of ours waits for it: what uses the operands next waits for that
// stream. Where it works on the host (gloo), or needs a peer's consent (send,
// receive), the operands stay until the work says that it is done, since
// nothing else orders their eviction behind it.
//
// Tests: test_process_group.py, test_one_rank.py.
//
// Thread safety: finish() any thread, gloo's own among them; all else belongs
// to the thread that makes it, until it is shared.
#pragma once

#include <atomic>
#include <exception>
#include <forward_list>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "backend/distributed/collective_kind.h"
#include "backend/distributed/operands.h"
#include "kernels/native_view.h"
#include "memory/figures/exchange_meter.h"

namespace chameleon::distributed {

// With its counts it takes 1,032 bytes, the most that glibc's malloc gives
// without a search.
class Collective {
 public:
  // `results`: the tensors that its future holds.
  Collective(c10::Device device, at::TensorList results)
      : device_(device), results_(results.begin(), results.end()) {}
  ~Collective(); // finishes it as failed, if nobody did
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  // Pins the operands and gives their native tensors, which live until it is
  // finished. Throws OutOfMemoryError; nothing changed then.
  Natives pin(const CollectiveKind& kind, const Operands& operands);
  // The end of `work`, which its future says on any thread, finishes
  // `collective`. Ops that lack memory wait for that.
  static void endWith(c10d::Work& work,
                      const std::shared_ptr<Collective>& collective);
  void addResults(at::TensorList results) {
    results_.append(results.begin(), results.end());
  }

  // What follows the work before the operands go.
  void then(std::function<void()> step) { step_ = std::move(step); }

  // The work is done, or a stream waits for it, or it failed: lets go of the
  // operands. Once: a later call does nothing, and one at the same time waits
  // for the first. It runs callbacks of the future.
  void finish(const std::exception_ptr& failure = nullptr);
  bool isFinished() const noexcept { return finished_.load(); }
  // The current stream, or the host, waits for it while that lives.
  memory::ExchangeSpan beginWait() const;

  // Of the results. Made when it is asked for: few programs do.
  c10::intrusive_ptr<c10::ivalue::Future> future();
  std::vector<at::Tensor> results() const {
    return {results_.begin(), results_.end()};
  }

 private:
  template <typename Use>
  void forEachView(const Use& use) {
    if (view_) use(*view_);
    for (kernels::NativeView& view : more_views_) use(view);
  }
  void letGo(const std::exception_ptr& failure);
  void complete(c10::ivalue::Future& future) const;

  const c10::Device device_;
  c10::SmallVector<at::Tensor, 2> results_;
  std::optional<kernels::NativeView> view_;           // of the first pin()
  std::forward_list<kernels::NativeView> more_views_; // coalesced with it
  std::function<void()> step_;
  std::optional<memory::ExchangeSpan> runs_; // from pin() to finish()
  std::once_flag once_;
  std::atomic<bool> finished_{false};
  std::exception_ptr failure_; // what it finished with
  std::mutex mutex_;           // a leaf; never held while something is called
  // It guards these.
  bool is_ready_ = false; // finished, and the operands are let go of
  c10::intrusive_ptr<c10::ivalue::Future> future_; // null: not asked for
};

} // namespace chameleon::distributed
