// What is known about an op before it is called: where its tensors are, which
// it writes, what its results alias. Made once, when the op is registered, so
// that a call walks no schema.
//
// Thread safety: any thread; never changes after construction, except `memory`,
// which learns and is made of atomics.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "memory/pager_call.h"

namespace chameleon::kernels {

enum class ArgumentKind : std::uint8_t {
  kTensor,       // Tensor or Tensor?
  kTensorList,   // Tensor[]
  kOptionalList, // Tensor?[]
  kOtherList,    // Scalar[], float[] ...: sliced along with tensor lists
  kGenerator,
  kDevice,
  kStream,
};

// Which CPU tensors an argument accepts beside chameleon ones (device_rules).
enum class CpuRule : std::uint8_t {
  kScalar, // 0-dim only, as CUDA's element-wise kernels do
  kAny,    // indices, lengths: any shape
  kNever,  // not even 0-dim: what the op writes, and where CUDA compares all
};

struct ArgumentTraits {
  std::uint16_t index; // position among the op's arguments
  ArgumentKind kind;
  bool writes;
  std::int16_t written_with; // only where that argument is given; -1: always
  bool overwrites;           // every element, unread (overwriting_ops.h)
  bool side_effect; // written, but no result depends on it (rerun_rules.h)
  CpuRule cpu;
};

enum class ResultKind : std::uint8_t { kTensor, kTensorList, kOther };

struct ResultTraits {
  ResultKind kind;
  std::int16_t written_argument; // index of the argument it is, or -1
};

struct OpTraits {
  explicit OpTraits(const c10::OperatorHandle& op); // op_traits_from_schema.cpp

  c10::OperatorHandle handle;
  std::string name;            // "aten::add.Tensor", for messages
  std::uint32_t number;        // the profiler's, see profiler::op_names()
  profiler::QuickHasher quick; // of its calls' tokens, which begin with it
  std::uint16_t argument_count;
  std::vector<ArgumentTraits> arguments; // only those of interest, in order
  std::vector<ResultTraits> results;
  bool writes = false;     // any argument
  bool random = false;     // consumes random numbers
  bool is_list_op = false; // element-wise over lists: may run in chunks
  // Its kernel consists of in-place ops, which count a version of what they
  // write: here of alias tensors, which nobody sees.
  bool counts_versions = false;
  bool may_rerun = false;   // rerun_rules.h
  bool searches_algorithms; // algorithm_choice.h
  mutable memory::OpMemory memory;
  memory::OpKind kind; // the op, to the pager

  // A failed call may be run again from the start.
  bool mayRetry() const { return !writes && !random; }
};

} // namespace chameleon::kernels
