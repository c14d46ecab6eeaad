// A named range of the calling thread's time, for NVIDIA's tools.
//
// Nsight Systems and others that speak NVTX show ranges of the domain
// "chameleon" beside the streams' copies and kernels. Where no tool has
// attached itself to the process, or CUDA's headers were missing when this was
// built, a range costs a test of one pointer; still, not for the way of an op
// whose operands are all there.
//
// Tests: test_nvtx.py.
//
// Thread safety: any number at a time, on all threads; each ends on the thread
// that began it, in reverse order.
#pragma once

namespace chameleon::runtime {

class NvtxRange {
 public:
  explicit NvtxRange(const char* name) noexcept; // a literal
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

} // namespace chameleon::runtime
