#include "kernels/reruns/bit_settings.h"

#include <limits>
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

// PyTorch has no question for it.
bool flushes_denormals() {
  volatile float smallest = std::numeric_limits<float>::min();
  return smallest * 0.5F == 0.0F;
}

bool reduces(CuBLASReductionOption option) {
  return option == CuBLASReductionOption::AllowReducedPrecisionWithSplitK;
}

bool splits(CuBLASReductionOption option) {
  return option !=
         CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK;
}

} // namespace

ThreadSettings ThreadSettings::now() {
  ThreadSettings now;
  now.threads_ = at::get_num_threads();
  now.flushes_denormals_ = flushes_denormals();
  now.grad_ = c10::GradMode::is_enabled();
  now.autocast_ = at::autocast::is_autocast_enabled(backend::kChameleon);
  now.autocast_dtype_ = at::autocast::get_autocast_dtype(backend::kChameleon);
  return now;
}

void ThreadSettings::setOver(const ThreadSettings& others) const {
  if (*this == others) return;
  if (threads_ != others.threads_) at::set_num_threads(threads_);
  if (flushes_denormals_ != others.flushes_denormals_) {
    at::Context::setFlushDenormal(flushes_denormals_);
  }
  c10::GradMode::set_enabled(grad_);
  at::autocast::set_autocast_enabled(backend::kChameleon, autocast_);
  at::autocast::set_autocast_dtype(backend::kChameleon, autocast_dtype_);
}

BitSettings BitSettings::now() {
  at::Context& context = at::globalContext();
  BitSettings now;
  OfProcess& process = now.process_;
  process.deterministic = context.deterministicAlgorithms();
  process.warn_only = context.deterministicAlgorithmsWarnOnly();
  process.fill = context.deterministicFillUninitializedMemory();
  process.cudnn = context.userEnabledCuDNN();
  process.cudnn_deterministic = context.deterministicCuDNN();
  process.cudnn_benchmark = context.benchmarkCuDNN();
  process.cudnn_benchmark_limit = context.benchmarkLimitCuDNN();
  process.nnpack = context.userEnabledNNPACK();
  process.mkldnn = context.userEnabledMkldnn();
  process.mkldnn_deterministic = context.deterministicMkldnn();
  process.fp16_accumulation = context.allowFP16AccumulationCuBLAS();
  process.fp16_reduction = context.allowFP16ReductionCuBLAS();
  process.bf16_reduction = context.allowBF16ReductionCuBLAS();
  process.fp16_reduction_on_cpu = context.allowFP16ReductionCPU();
  process.linalg = context.linalgPreferredBackend();
  process.blas = context.blasPreferredBackend();
  process.sm_carveout = context._SMCarveout_EXPERIMENTAL();
  static_assert(std::size(kPrecisionOf) == kPrecisions);
  for (std::size_t i = 0; i < kPrecisions; ++i) {
    const auto [backend, op] = kPrecisionOf[i];
    process.precisions[i] = context.float32Precision(backend, op);
  }
  process.default_dtype = c10::get_default_dtype_as_scalartype();
  now.thread_ = ThreadSettings::now();
  return now;
}

void BitSettings::OfProcess::set() const {
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(deterministic, warn_only);
  context.setDeterministicFillUninitializedMemory(fill);
  context.setUserEnabledCuDNN(cudnn);
  context.setDeterministicCuDNN(cudnn_deterministic);
  context.setBenchmarkCuDNN(cudnn_benchmark);
  context.setBenchmarkLimitCuDNN(cudnn_benchmark_limit);
  context.setUserEnabledNNPACK(nnpack);
  context.setUserEnabledMkldnn(mkldnn);
  context.setDeterministicMkldnn(mkldnn_deterministic);
  context.setAllowFP16AccumulationCuBLAS(fp16_accumulation);
  context.setAllowFP16ReductionCuBLAS(reduces(fp16_reduction),
                                      splits(fp16_reduction));
  context.setAllowBF16ReductionCuBLAS(reduces(bf16_reduction),
                                      splits(bf16_reduction));
  // What is not the default is not there on every machine, or warns.
  if (context.allowFP16ReductionCPU() != fp16_reduction_on_cpu) {
    context.setAllowFP16ReductionCPU(fp16_reduction_on_cpu);
  }
  if (context.linalgPreferredBackend() != linalg) {
    context.setLinalgPreferredBackend(linalg);
  }
  if (context.blasPreferredBackend() != blas) {
    context.setBlasPreferredBackend(blas);
  }
  context._setSMCarveout_EXPERIMENTAL(sm_carveout);
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
  thread_.setOver(others.thread_);
}

std::shared_timed_mutex WithBitSettings::process;

WithBitSettings::WithBitSettings(const BitSettings& settings)
    : settings_(settings), shared_(process, kPatience) {
  if (shared_) before_ = BitSettings::now();
  if (shared_ && !settings.areOfProcess(before_)) {
    shared_.unlock();
    alone_ = std::unique_lock(process, kPatience);
    if (alone_) before_ = BitSettings::now();
  }
  TORCH_CHECK(shared_ || alone_, "it waited for ", kPatience.count(),
              " s: it needs settings of the process (precisions, deterministic "
              "algorithms ...) that an op of another thread, which runs again "
              "as well, needs otherwise");
  settings.setOver(before_);
}

} // namespace chameleon::kernels
