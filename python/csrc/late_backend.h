// A c10d backend of one rank for tests on an emulated GPU: it works on a stream
// of its own, behind the caller's, as NCCL does. Kernels there run late, so a
// wait that is missing above is seen by the emulated driver.
//
// Thread safety: one thread at a time.
#pragma once

#include <optional>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace chameleon::python {

class LateBackend final : public c10d::Backend {
 public:
  LateBackend() : Backend(0, 1) {}

  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  const std::string getBackendName() const override { // NOLINT: c10d's type
    return "late";
  }
  Work allreduce(Tensors& tensors,
                 const c10d::AllreduceOptions& options) override; // doubles
  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& options) override;
  Work send(Tensors& tensors, int to, int tag) override;   // remembers them
  Work recv(Tensors& tensors, int from, int tag) override; // what was sent
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override {}
  Work endCoalescing() override { return last_; }

 private:
  template <typename Kernel>
  Work launch(const at::Tensor& on, Kernel&& kernel);

  std::optional<c10::Stream> own_; // from the first call on
  Tensors sent_;
  Work last_;
};

} // namespace chameleon::python
