// What an op call says of itself when it asks to begin.
#pragma once

#include <cstdint>
#include <span>

#include "backend/runtime/device_runtime.h"
#include "memory/pager_call.h"
#include "profiler/op_names.h"
#include "profiler/token.h"

namespace chameleon::memory {

// What the profiler knows an op by. The whole token is made where it is needed
// only: not for an op that was expected.
struct OpIdentity {
  std::uint32_t name; // profiler::OpNames
  profiler::QuickToken quick;
  profiler::Token (*token)(const void* call);
  const void* call; // what `token` is called with

  profiler::Token whole() const { return token(call); }
  // Of a token that is known; it must outlive the identity.
  static OpIdentity of(std::uint32_t name, const profiler::Token& token) {
    return {name, profiler::quick_half(token),
            [](const void* known) {
              return *static_cast<const profiler::Token*>(known);
            },
            &token};
  }
};

// How the kernel computes, where its library chooses by the memory that it gets
// and keeps to that choice: the choice may not be left to what lies around.
enum class Algorithm : std::uint8_t {
  kAny,        // nothing of that kind
  kChosen,     // what it needs it needs again: no allocation may fail
  kToBeChosen, // by this call, which has HBM for itself: Call::hadAll()
};

// An op call, as it asks to begin.
struct OpRequest {
  const OpKind& kind;
  runtime::Stream stream;
  std::span<const Operand> operands;
  // The op is shown to the profiler, and what the policy wants before it is
  // done; each block occurs once then. Null: neither.
  const OpIdentity* identity = nullptr;
  // By RecordedOp::run(): seen by nobody, what it creates counts nowhere and
  // has to be given to the pager. A timeline shows it under its name.
  bool rerun = false;
  std::uint32_t rerun_name = profiler::kNoOpName;
  Algorithm algorithm = Algorithm::kAny;
};

} // namespace chameleon::memory
