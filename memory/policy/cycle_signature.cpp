#include "memory/policy/cycle_signature.h"

#include <string_view>

#include "profiler/op_names.h"
#include "profiler/token.h"

namespace chameleon::memory {

namespace {

void add(profiler::TokenHasher& hasher, std::string_view text) {
  hasher.add(text.size());
  for (const char c : text) hasher.add(static_cast<unsigned char>(c));
}

} // namespace

std::uint64_t signature_of(const profiler::CycleMap& map) {
  const profiler::Cycle& cycle = map.cycle;
  profiler::TokenHasher hasher(cycle.ops());
  for (std::size_t op = 0; op < cycle.ops(); ++op) {
    add(hasher, profiler::op_names().name(map.op_names[op]));
    hasher.add(cycle.may_rerun.empty() ? 0 : cycle.may_rerun[op]);
    hasher.add(cycle.operandsOf(op).size());
    for (const profiler::Operand operand : cycle.operandsOf(op)) {
      hasher.add(operand.value());
      hasher.add(operand.flags());
    }
    hasher.add(cycle.freedAfter(op).size());
    for (const profiler::ValueIndex value : cycle.freedAfter(op))
      hasher.add(value);
  }
  for (const std::uint64_t bytes : cycle.value_bytes) hasher.add(bytes);
  return hasher.token();
}

} // namespace chameleon::memory
