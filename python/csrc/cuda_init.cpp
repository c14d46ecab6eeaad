#include "python/csrc/cuda_init.h"

#include <torch/csrc/utils/device_lazy_init.h>

#include "backend/torch/native_cuda.h"

namespace chameleon::python {

void install_cuda_init() {
  backend::set_cuda_initialiser(
      [] { torch::utils::device_lazy_init(c10::DeviceType::CUDA); });
}

} // namespace chameleon::python
