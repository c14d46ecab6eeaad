#include "kernels/composites/cudnn_rnn.h"

#include <array>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include "backend/torch/device.h"
#include "backend/torch/native_cuda.h"
#include "kernels/alias_tensors.h"

namespace chameleon::kernels {
namespace {

using at::Tensor;

// The weights are no single piece of memory here, and cuDNN's kernel makes one
// of them at each call; the advice that comes with it names a method that
// works on CUDA tensors alone.
class NoAdvice final : public c10::WarningHandler {
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("single contiguous chunk") == std::string::npos) {
      c10::WarningHandler::process(warning);
    }
  }
};

bool is_cuda() { return backend::target().type == c10::DeviceType::CUDA; }

// The state of dropout between layers: one a device, made anew when the
// generator was seeded, as native keeps it. Each use of it changes it. Without
// data there is no seed either.
Tensor dropout_state(const Tensor& input, const CudnnRnnOptions& options) {
  if (!options.train || options.dropout == 0) return {};
  static auto* const mutex = new std::mutex;
  // By device, guarded by mutex.
  static auto* const states = new std::array<Tensor, backend::kMaxDevices>;
  const std::lock_guard lock(*mutex);
  const c10::DeviceIndex device = input.device().index();
  Tensor& kept = (*states)[static_cast<std::size_t>(device)];
  const bool seeded = is_cuda() && backend::native_cuda()->was_seeded(device);
  if (!kept.defined() || seeded) {
    const at::NoGradGuard no_grad;
    const Tensor drawn =
        at::empty({}, input.options().dtype(at::kLong)).random_();
    const int64_t seed = is_cuda() ? drawn.item<int64_t>() : 0;
    kept = at::_cudnn_init_dropout_state(options.dropout, options.train, seed,
                                         input.options().dtype(at::kByte));
  }
  return kept;
}

} // namespace

bool takes_cudnn_rnn(const Tensor& input) {
  if (backend::target().type == c10::DeviceType::CPU ||
      !at::cudnn_is_acceptable(make_cuda_metadata_tensor(input))) {
    return false;
  }
  switch (input.scalar_type()) {
    case at::kDouble:
    case at::kFloat:
    case at::kHalf:
      return true;
    case at::kBFloat16:
      // Asks a GPU; every one that is simulated does.
      return !is_cuda() ||
             at::detail::getCUDAHooks().supportsBFloat16RNNWithCuDNN();
    default:
      return false;
  }
}

std::tuple<Tensor, Tensor, Tensor> cudnn_rnn(const Tensor& input,
                                             const Tensor& hx, const Tensor& cx,
                                             at::TensorList params,
                                             at::IntArrayRef sizes,
                                             const CudnnRnnOptions& options) {
  const bool projects = cx.defined() && cx.size(2) != hx.size(2);
  const int64_t hidden_size = projects ? cx.size(2) : hx.size(2);
  const int64_t projection_size = projects ? hx.size(2) : 0;
  const int64_t stride = (options.biases ? 4 : 2) + (projects ? 1 : 0);
  NoAdvice handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  auto [output, last_h, last_c, reserve, buffer] = at::_cudnn_rnn(
      input, params, stride, /*weight_buf=*/{}, hx,
      cx.defined() ? std::optional<Tensor>(cx) : std::nullopt,
      static_cast<int64_t>(options.mode), hidden_size, projection_size,
      options.layers, options.batch_first, options.dropout, options.train,
      options.bidirectional, sizes, dropout_state(input, options));
  return {output, last_h, last_c};
}

} // namespace chameleon::kernels
