#include "profiler/divergence_log.h"

namespace chameleon::profiler {

void DivergenceLog::missed(std::uint32_t op, Token token, DivergenceKind kind) {
  ++misses_;
  if (core_.matcher.path() == nullptr) return; // nothing was expected
  const bool behind = kind == DivergenceKind::kOperand;
  Divergence& divergence =
      diverged(kind, core_.matcher.position() - (behind ? 1 : 0));
  divergence.op = core_.opCount() - 1;
  divergence.seen_op = op;
  divergence.seen_token = token;
  if (divergence.expected_op == kNone) {
    divergence.kind = DivergenceKind::kEnd;
  } else if (divergence.expected_token == token) {
    divergence.kind = DivergenceKind::kOperand;
  }
}

Divergence& DivergenceLog::diverged(DivergenceKind kind,
                                    std::uint32_t position) {
  ++divergences_;
  const OpPath& path = *core_.matcher.path();
  last_ = {};
  last_.kind = kind;
  last_.step = core_.stepCount();
  last_.op = core_.opCount();
  last_.path = path.id();
  last_.position = position;
  if (position < path.size()) {
    last_.expected_op = path.op(position).op;
    last_.expected_token = path.op(position).token;
  }
  return last_;
}

} // namespace chameleon::profiler
