#include "kernels/algorithm_choice.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "backend/torch/device.h"
#include "kernels/op_token.h"

namespace chameleon::kernels {
namespace {

constexpr std::array<std::string_view, 9> kConvolutions{
    "aten::_convolution",
    "aten::convolution",
    "aten::convolution_backward",
    "aten::convolution_backward_overrideable",
    "aten::convolution_overrideable",
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_add_relu",
    "aten::cudnn_convolution_relu",
    "aten::cudnn_convolution_transpose",
};

// As many the front end keeps, unless it is told otherwise. What it
// forgets is searched for again, with all of HBM.
constexpr std::size_t kMostAlgorithms = 10000;

// By key: the budget, in bytes, that the algorithm was found in.
using Found = std::unordered_map<std::uint64_t, std::size_t>;
Found& found_by_thread() {
  thread_local Found found;
  return found;
}

// Up to 32 bytes count.
std::uint64_t alignment(const c10::TensorImpl& tensor) {
  return static_cast<std::uint64_t>(tensor.storage_offset()) *
         tensor.dtype().itemsize() % 32;
}

void add_to_key(profiler::TokenHasher& key, const c10::IValue& value) {
  if (value.isTensor()) {
    const c10::TensorImpl& tensor = *value.unsafeToTensorImpl();
    if (!value.toTensor().defined()) return;
    add_to_token(key, tensor);
    key.add(alignment(tensor));
  } else if (value.isInt()) {
    key.add(static_cast<std::uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    key.add(value.toBool());
  } else if (value.isDouble()) {
    key.add(c10::bit_cast<std::uint64_t>(value.toDouble()));
  } else if (value.isIntList()) {
    for (const std::int64_t each : value.toDimVector()) {
      key.add(static_cast<std::uint64_t>(each));
    }
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) add_to_key(key, each);
  }
}

std::uint64_t key_of(const OpTraits& traits,
                     c10::ArrayRef<c10::IValue> arguments,
                     c10::DeviceIndex index) {
  profiler::TokenHasher key(traits.number);
  key.add(static_cast<std::uint64_t>(index));
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    key.add(i); // so that what is left out is seen
    add_to_key(key, arguments[i]);
  }
  const at::Context& settings = at::globalContext();
  key.add(settings.deterministicCuDNN());
  key.add(settings.deterministicAlgorithms());
  key.add(settings.userEnabledCuDNN());
  key.add(static_cast<std::uint64_t>(settings.float32Precision(
      at::Float32Backend::CUDA, at::Float32Op::CONV)));
  return key.token();
}

} // namespace

bool searches_algorithms(std::string_view base_name) {
  return std::find(kConvolutions.begin(), kConvolutions.end(), base_name) !=
         kConvolutions.end();
}

// A simulated GPU decides as a true one would.
bool searches_algorithms(const OpTraits& traits) noexcept {
  return traits.searches_algorithms &&
         backend::target().type != c10::DeviceType::CPU;
}

AlgorithmChoice::AlgorithmChoice(const OpTraits& traits,
                                 c10::ArrayRef<c10::IValue> arguments,
                                 c10::DeviceIndex index,
                                 std::size_t budget_bytes)
    : key_(key_of(traits, arguments, index)), budget_bytes_(budget_bytes) {
  const Found& found = found_by_thread();
  const auto at = found.find(key_);
  first_ = at == found.end() || budget_bytes < at->second;
}

bool AlgorithmChoice::chosen(const memory::Call& call, bool failed) {
  Found& found = found_by_thread();
  if (failed && !(first_ && call.hadAll())) {
    found.erase(key_); // another is kept, maybe: it is looked for anew
    return false;
  }
  if (failed) {
    TORCH_WARN_ONCE(
        "chameleon: hbm_budget has no room for the workspace that cuDNN wants "
        "first for a convolution. It takes another algorithm, as it would on a "
        "GPU of that size, so that results may differ in their last bits from "
        "those with a larger budget.");
  }
  if (first_) {
    if (found.size() >= kMostAlgorithms) found.clear();
    found[key_] = budget_bytes_;
  }
  return true;
}

} // namespace chameleon::kernels
