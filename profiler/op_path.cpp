#include "profiler/op_path.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/runtime/check.h"

namespace chameleon::profiler {
namespace {

constexpr std::size_t kFirstBuckets = 64;

template <typename T>
std::size_t capacity_bytes(const std::vector<T>& list) {
  return list.capacity() * sizeof(T);
}

} // namespace

void OpPath::clear(PathId id) {
  id_ = id;
  ops_.clear();
  workspaces_.clear();
  operands_.clear();
  values_.clear();
  std::fill(heads_.begin(), heads_.end(), kNone);
  use_list_.clear();
  carried_.clear();
  linked_.clear();
  by_identity_.clear();
  is_timed_ = false;
  structure_ = 0;
  walks_ = 0;
  rounds_.clear();
}

void OpPath::rehash(std::size_t buckets) {
  heads_.assign(buckets, kNone);
  for (std::uint32_t i = 0; i < size(); ++i) {
    std::uint32_t& head = heads_[ops_[i].token & (buckets - 1)];
    ops_[i].previous_like = head;
    head = i;
  }
}

void OpPath::addOp(std::uint32_t op, Token token) {
  CHAMELEON_DCHECK(ops_.size() < kMaxOps, "a path is bounded");
  const auto operand = static_cast<std::uint32_t>(operands_.size());
  ops_.push_back({token, operand, operand, operand, op});
  if (!workspaces_.empty()) workspaces_.push_back(0);
  if (ops_.size() > heads_.size()) [[unlikely]] {
    rehash(std::max(kFirstBuckets, 2 * heads_.size()));
    return;
  }
  std::uint32_t& head = heads_[token & (heads_.size() - 1)];
  ops_.back().previous_like = head;
  head = size() - 1;
}

void OpPath::addUse(std::uint32_t value, std::uint32_t flags) {
  operands_.emplace_back(value, flags);
  PathOp& op = ops_.back();
  op.result_begin = op.operand_end =
      static_cast<std::uint32_t>(operands_.size());
}

void OpPath::addResult(std::uint32_t value) {
  operands_.emplace_back(value, Operand::kCreates | Operand::kWrites);
  ops_.back().operand_end = static_cast<std::uint32_t>(operands_.size());
}

std::uint32_t OpPath::addValue(const PathValue& value) {
  values_.push_back(value);
  return static_cast<std::uint32_t>(values_.size() - 1);
}

void OpPath::setWorkspace(std::uint32_t position,
                          std::uint64_t bytes) noexcept {
  if (workspaces_.empty()) {
    if (bytes == 0) return;
    workspaces_.resize(ops_.size());
  }
  const std::uint64_t units = (bytes + kWorkspaceUnit - 1) / kWorkspaceUnit;
  workspaces_[position] =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(units, kNone));
}

OpPath OpPath::part(std::uint32_t begin, std::uint32_t end, PathId id,
                    std::vector<std::uint32_t>* numbers) const {
  std::vector<std::uint32_t> own;
  std::vector<std::uint32_t>& number = numbers != nullptr ? *numbers : own;
  number.assign(values_.size(), kNone);
  OpPath made(id);
  const auto valueOf = [&](std::uint32_t old) {
    if (number[old] != kNone) return number[old];
    PathValue value = values_[old];
    if (value.carried() || value.birth_op < begin) {
      if (!value.carried()) {
        value.birth_op = kNone;
        value.source_path = id_;
        value.source_value = old;
      }
    } else {
      value.birth_op -= begin;
    }
    if (value.free_op != kNone) {
      value.free_op = value.free_op < begin ? kNone : value.free_op - begin;
    }
    number[old] = made.addValue(value);
    return number[old];
  };
  for (std::uint32_t i = begin; i < end; ++i) {
    made.addOp(ops_[i].op, ops_[i].token);
    made.setWorkspace(i - begin, workspace_bytes(i));
    for (const Operand use : uses(i)) {
      made.addUse(valueOf(use.value()), use.flags());
    }
    for (const Operand result : results(i)) {
      made.addResult(valueOf(result.value()));
    }
  }
  return made;
}

void OpPath::finish() {
  for (PathValue& value : values_) value.use_end = 0;
  for (const Operand operand : operands_) ++values_[operand.value()].use_end;
  std::uint32_t uses = 0;
  for (PathValue& value : values_) {
    uses += std::exchange(value.use_end, uses);
  }
  // use_end is where a value's uses begin, and moves to where they end.
  use_list_.assign(operands_.size(), PathUse(0, 0));
  TokenHasher hasher(size());
  for (std::uint32_t i = 0; i < size(); ++i) {
    hasher.add(ops_[i].token);
    for (const Operand operand : operands(i)) {
      const std::uint32_t v = operand.value();
      use_list_[values_[v].use_end++] = PathUse(i, operand.flags());
      hasher.add(std::uint64_t{v} << 4 | operand.flags());
    }
  }
  carried_.clear();
  by_identity_.clear();
  std::vector<std::uint64_t> born(size() / kBornEvery + 2);
  for (std::uint32_t v = 0; v < values_.size(); ++v) {
    const PathValue& value = values_[v];
    if (value.isExternalInput()) ops_[value.birth_op].expects_new = 1;
    hasher.add(value.bytes);
    if (value.carried()) {
      carried_.push_back(v);
    } else {
      born[value.birth_op / kBornEvery + 1] += value.bytes;
    }
    if (value.carried() || value.isExternalInput()) {
      by_identity_.emplace_back(value.identity, v);
    }
  }
  std::partial_sum(born.begin(), born.end(), born.begin());
  born_ = std::move(born);
  std::sort(by_identity_.begin(), by_identity_.end());
  structure_ = hasher.token();
  if (heads_.size() > std::max(kFirstBuckets, ops_.size())) {
    rehash(heads_.size() / 2);
    heads_.shrink_to_fit();
  }
  ops_.shrink_to_fit();
  workspaces_.shrink_to_fit();
  operands_.shrink_to_fit();
  values_.shrink_to_fit();
  use_list_.shrink_to_fit();
  carried_.shrink_to_fit();
  by_identity_.shrink_to_fit();
}

std::uint64_t OpPath::bornBytes(std::uint32_t position) const noexcept {
  std::uint64_t bytes = born_[position / kBornEvery];
  for (std::uint32_t i = position - position % kBornEvery; i < position; ++i) {
    for (const Operand operand : operands(i)) {
      const PathValue& value = values_[operand.value()];
      if (value.birth_op == i) bytes += value.bytes;
    }
  }
  return bytes;
}

void OpPath::setDurations(std::span<const std::int64_t> duration_ns) noexcept {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
  is_timed_ = true;
  std::int64_t time_ns = 0;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    time_ns += duration_ns[i];
    ops_[i].elapsed =
        static_cast<std::uint32_t>(std::min(time_ns / kElapsedUnit_ns, kMost));
  }
}

void OpPath::link(std::uint32_t value, PathId source_path,
                  std::uint32_t source_value) {
  PathValue& carried = values_[value];
  carried.source_path = source_path;
  carried.source_value = source_value;
  if (std::find(linked_.begin(), linked_.end(), value) == linked_.end()) {
    linked_.push_back(value);
  }
  if (source_path == id_) values_[source_value].successor = value;
}

std::uint32_t OpPath::valueBoundTo(std::uint64_t identity) const noexcept {
  const auto found = std::lower_bound(by_identity_.begin(), by_identity_.end(),
                                      Identity(identity, 0));
  if (found == by_identity_.end() || found->first != identity) return kNone;
  return values_[found->second].identity == identity ? found->second : kNone;
}

void OpPath::bindLike(const OpPath& other) noexcept {
  for (std::size_t v = 0; v < values_.size(); ++v) {
    const PathValue& now = other.values_[v];
    values_[v].identity = now.identity;
    values_[v].slot = now.slot;
    if (now.free_op != kNone) values_[v].free_op = now.free_op;
  }
}

std::size_t OpPath::memoryBytes() const noexcept {
  return sizeof(OpPath) + capacity_bytes(ops_) + capacity_bytes(workspaces_) +
         capacity_bytes(operands_) + capacity_bytes(values_) +
         capacity_bytes(heads_) + capacity_bytes(use_list_) +
         capacity_bytes(born_) + capacity_bytes(carried_) +
         capacity_bytes(linked_) + capacity_bytes(rounds_) +
         capacity_bytes(by_identity_);
}

} // namespace chameleon::profiler
