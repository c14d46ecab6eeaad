// What an op call says of itself when it asks to begin.
//
// Thread safety: plain values; they belong to the thread of the call.
#pragma once

#include <cstdint>
#include <span>

#include "backend/runtime/device_runtime.h"
#include "memory/pager_call.h"
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

// Some libraries choose how a kernel computes by the memory that they get, and
// keep to that choice. What happens to be in HBM must not decide it.
enum class Algorithm : std::uint8_t {
  kAny,    // the kernel makes no such choice
  kChosen, // an earlier call chose, and this one needs as much memory as that
           // one did: no allocation may fail
  kToBeChosen, // this call chooses, with all of HBM for itself (Call::hadAll())
};

// An op call, as it asks to begin.
struct OpRequest {
  const OpKind& kind;
  runtime::Stream stream;
  std::span<const Operand> operands;
  // Not null: the profiler sees the op, and what the policy wants done before
  // it is done. Each block must then occur once in `operands`. Null: neither.
  const OpIdentity* identity = nullptr;
  // RecordedOp::run() makes the call. The profiler does not see it, and no
  // counter counts what it creates; the caller hands that to the pager. A
  // timeline shows the call as `rerun_name`.
  bool rerun = false;
  std::uint32_t rerun_name = profiler::kNoOpName;
  Algorithm algorithm = Algorithm::kAny;
  // The caller can wait for better times: where pins that nobody waits for
  // leave its kernel less room than it needs, it does not begin. An op that may
  // not be held back begins all the same, for its need may be less than that.
  bool can_be_held_back = false;
};

} // namespace chameleon::memory
