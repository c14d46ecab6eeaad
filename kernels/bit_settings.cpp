#include "kernels/bit_settings.h"

#include <utility>

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>

#include "backend/torch/device.h"

namespace chameleon::kernels {
namespace {

using at::CuBLASReductionOption;
using at::Float32Backend;
using at::Float32Op;

constexpr std::pair<Float32Backend, Float32Op> kPrecisionOf[] = {
    {Float32Backend::CUDA, Float32Op::ALL},
    {Float32Backend::CUDA, Float32Op::CONV},
    {Float32Backend::CUDA, Float32Op::RNN},
    {Float32Backend::CUDA, Float32Op::MATMUL},
    {Float32Backend::MKLDNN, Float32Op::ALL},
    {Float32Backend::MKLDNN, Float32Op::CONV},
    {Float32Backend::MKLDNN, Float32Op::RNN},
    {Float32Backend::MKLDNN, Float32Op::MATMUL},
};

bool reduces(CuBLASReductionOption option) {
  return option == CuBLASReductionOption::AllowReducedPrecisionWithSplitK;
}

bool splits(CuBLASReductionOption option) {
  return option !=
         CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK;
}

} // namespace

BitSettings BitSettings::now() {
  const at::Context& context = at::globalContext();
  BitSettings now;
  OfProcess& process = now.process_;
  process.deterministic = context.deterministicAlgorithms();
  process.warn_only = context.deterministicAlgorithmsWarnOnly();
  process.fill = context.deterministicFillUninitializedMemory();
  process.cudnn = context.userEnabledCuDNN();
  process.cudnn_deterministic = context.deterministicCuDNN();
  process.cudnn_benchmark = context.benchmarkCuDNN();
  process.mkldnn = context.userEnabledMkldnn();
  process.mkldnn_deterministic = context.deterministicMkldnn();
  process.fp16_accumulation = context.allowFP16AccumulationCuBLAS();
  process.fp16_reduction = context.allowFP16ReductionCuBLAS();
  process.bf16_reduction = context.allowBF16ReductionCuBLAS();
  static_assert(std::size(kPrecisionOf) == kPrecisions);
  for (std::size_t i = 0; i < kPrecisions; ++i) {
    const auto [backend, op] = kPrecisionOf[i];
    process.precisions[i] = context.float32Precision(backend, op);
  }
  process.default_dtype = c10::get_default_dtype_as_scalartype();
  now.threads_ = at::get_num_threads();
  now.grad_ = c10::GradMode::is_enabled();
  now.autocast_ = at::autocast::is_autocast_enabled(backend::kChameleon);
  now.autocast_dtype_ = at::autocast::get_autocast_dtype(backend::kChameleon);
  return now;
}

void BitSettings::OfProcess::set() const {
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(deterministic, warn_only);
  context.setDeterministicFillUninitializedMemory(fill);
  context.setUserEnabledCuDNN(cudnn);
  context.setDeterministicCuDNN(cudnn_deterministic);
  context.setBenchmarkCuDNN(cudnn_benchmark);
  context.setUserEnabledMkldnn(mkldnn);
  context.setDeterministicMkldnn(mkldnn_deterministic);
  context.setAllowFP16AccumulationCuBLAS(fp16_accumulation);
  context.setAllowFP16ReductionCuBLAS(reduces(fp16_reduction),
                                      splits(fp16_reduction));
  context.setAllowBF16ReductionCuBLAS(reduces(bf16_reduction),
                                      splits(bf16_reduction));
  for (std::size_t i = 0; i < kPrecisions; ++i) {
    const auto [backend, op] = kPrecisionOf[i];
    // What is inherited stays so, as long as it is right.
    if (context.float32Precision(backend, op) != precisions[i]) {
      context.setFloat32Precision(backend, op, precisions[i]);
    }
  }
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(default_dtype));
}

void BitSettings::setOver(const BitSettings& others) const {
  if (!(process_ == others.process_)) process_.set();
  if (threads_ != others.threads_) at::set_num_threads(threads_);
  c10::GradMode::set_enabled(grad_);
  at::autocast::set_autocast_enabled(backend::kChameleon, autocast_);
  at::autocast::set_autocast_dtype(backend::kChameleon, autocast_dtype_);
}

} // namespace chameleon::kernels
