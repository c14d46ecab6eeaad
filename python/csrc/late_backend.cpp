#include "python/csrc/late_backend.h"

#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace chameleon::python {
namespace {

class LateWork final : public c10d::Work {
 public:
  explicit LateWork(const c10::Stream& stream)
      : device_(stream.device()), done_(stream.device_type()) {
    done_.record(stream);
  }
  bool isCompleted() override { return done_.query(); }
  bool isSuccess() const override { return true; }
  void synchronize() override {
    done_.block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    synchronize();
    return true;
  }

 private:
  const c10::Device device_;
  c10::Event done_;
};

} // namespace

template <typename Kernel>
LateBackend::Work LateBackend::launch(const at::Tensor& on, Kernel&& kernel) {
  const c10::impl::VirtualGuardImpl impl(on.device().type());
  if (!own_) own_ = impl.getStreamFromGlobalPool(on.device(), false);
  c10::Event ready(on.device().type());
  ready.record(impl.getStream(on.device()));
  ready.block(*own_);
  {
    const c10::StreamGuard on_own(*own_);
    const at::NoGradGuard no_grad;
    std::forward<Kernel>(kernel)();
  }
  last_ = c10::make_intrusive<LateWork>(*own_);
  return last_;
}

LateBackend::Work LateBackend::allreduce(
    Tensors& tensors, const c10d::AllreduceOptions& /*options*/) {
  return launch(tensors.front(), [&] {
    for (at::Tensor& tensor : tensors) tensor.mul_(2);
  });
}

LateBackend::Work LateBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input,
    const c10d::AllgatherOptions& /*options*/) {
  return launch(output, [&] { output.copy_(input.view_as(output)); });
}

LateBackend::Work LateBackend::send(Tensors& tensors, int /*to*/, int /*tag*/) {
  return launch(tensors.front(), [&] {
    for (const at::Tensor& tensor : tensors) sent_.push_back(tensor.cpu());
  });
}

LateBackend::Work LateBackend::recv(Tensors& tensors, int /*from*/,
                                    int /*tag*/) {
  return launch(tensors.front(), [&] {
    for (at::Tensor& tensor : tensors) {
      tensor.copy_(sent_.front());
      sent_.erase(sent_.begin());
    }
  });
}

} // namespace chameleon::python
