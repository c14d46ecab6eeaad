// Where the run left what was expected. Plain data, for users.
//
// Tests: divergence_log_test.cpp.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string_view>

#include "profiler/op_path.h"

namespace chameleon::profiler {

enum class DivergenceKind : std::uint8_t {
  kNever,    // none so far
  kOp,       // another op, or the same op on other shapes
  kOperand,  // the expected op, on another block
  kResult,   // the op made something else than before
  kEnd,      // the known sequence ended before the run did
  kNewRound, // step() came before the known sequence ended
};

struct Divergence {
  DivergenceKind kind = DivergenceKind::kNever;
  std::uint64_t step = 0;
  std::uint64_t op = 0;       // ops since the start of the process
  std::uint32_t position = 0; // in the path
  PathId path = 0;
  std::uint32_t expected_op = kNone; // names: OpNames; kNone: no op
  std::uint32_t seen_op = kNone;
  Token expected_token = 0;
  Token seen_token = 0;
};

inline std::string_view to_string(DivergenceKind kind) noexcept {
  switch (kind) {
    case DivergenceKind::kNever:
      return "none";
    case DivergenceKind::kOp:
      return "another op";
    case DivergenceKind::kOperand:
      return "another operand";
    case DivergenceKind::kResult:
      return "another result";
    case DivergenceKind::kEnd:
      return "past the end";
    case DivergenceKind::kNewRound:
      return "ended early";
  }
  return "";
}

} // namespace chameleon::profiler
