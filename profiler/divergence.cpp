#include "profiler/divergence.h"

namespace chameleon::profiler {

std::string_view to_string(DivergenceKind kind) noexcept {
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

std::string_view to_string(Matching matching) noexcept {
  switch (matching) {
    case Matching::kUnknown:
      return "unknown";
    case Matching::kFollowing:
      return "following";
    case Matching::kRejoined:
      return "rejoined";
  }
  return "";
}

} // namespace chameleon::profiler
