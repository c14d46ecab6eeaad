// cuDNN searches for a way to compute a convolution when a thread first meets
// it: the first in its order whose workspace it is given. PyTorch's front end
// keeps that algorithm, and where a workspace is refused, at any call, it takes
// and keeps the next one, which has other bits. So what a convolution computes
// would depend on what lies around in HBM. Hence its first call has HBM for
// itself, later ones find what the first one had, and none is retried.
//
// "First" is by what the front end's cache goes by, and by thread as there: op,
// operands' sizes, strides, dtypes and alignments, all other arguments, and the
// settings that an algorithm has to obey. In a smaller budget than the one that
// it was found in it may not fit any more: the next call is a first one.
//
// Tests: test_library_searches.py.
//
// Thread safety: what was chosen is kept per thread, as in PyTorch's front end.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include "kernels/op_traits.h"
#include "memory/op_request.h"
#include "memory/pager_call.h"

namespace chameleon::kernels {

// An op that runs convolutions.
bool searches_algorithms(std::string_view base_name);
// It does so on the target. REQUIRES: the device was used.
bool searches_algorithms(const OpTraits& traits) noexcept;

// One call of such an op, on its own thread.
class AlgorithmChoice {
 public:
  // `arguments` are the caller's.
  AlgorithmChoice(const OpTraits& traits, c10::ArrayRef<c10::IValue> arguments,
                  c10::DeviceIndex index, std::size_t budget_bytes);

  memory::Algorithm algorithm() const noexcept {
    return first_ ? memory::Algorithm::kToBeChosen : memory::Algorithm::kChosen;
  }
  // The kernel returned, with an algorithm that is kept. `failed`: an
  // allocation did on the way. True: it is the one that a device of this size
  // has.
  bool chosen(const memory::Call& call, bool failed);

 private:
  const std::uint64_t key_;
  const std::size_t budget_bytes_;
  bool first_;
};

} // namespace chameleon::kernels
