#include "kernels/simulated/facts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/ATen.h>

#include "backend/torch/storage.h"

namespace chameleon::kernels::simulated {
namespace {

struct Facts {
  std::mutex mutex;
  std::map<std::uint64_t, Fact> by_block; // in order of birth
};

Facts& facts() {
  static auto* const instance = new Facts; // leaked, as the options are
  return *instance;
}

std::optional<std::uint64_t> key_of(const c10::StorageImpl& storage) {
  const memory::Block* const block = backend::block_of(storage);
  if (block == nullptr) return std::nullopt;
  return block->identity.load(std::memory_order_relaxed);
}
std::optional<std::uint64_t> key_of(const c10::TensorImpl& outer) {
  if (!outer.has_storage()) return std::nullopt; // sparse
  return key_of(*outer.unsafe_storage().unsafeGetStorageImpl());
}

std::optional<Fact> find(std::optional<std::uint64_t> key) {
  if (!key) return std::nullopt;
  Facts& all = facts();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_block.find(*key);
  if (found == all.by_block.end()) return std::nullopt;
  return found->second;
}

thread_local const AliasTensorSet* alias_tensors_of_call = nullptr;

std::int64_t part(const Fact& fact, std::int64_t index) {
  return fact.total / fact.parts + (index < fact.total % fact.parts ? 1 : 0);
}
std::int64_t end(const Fact& fact, std::int64_t index) {
  const std::int64_t count = index + 1;
  return count * (fact.total / fact.parts) +
         std::min(count, fact.total % fact.parts);
}

} // namespace

double Fact::shareTrue(std::int64_t elements) const {
  switch (kind) {
    case Kind::kTrue:
      return share;
    case Kind::kChoice:
      return 1 - 1.0 / static_cast<double>(parts);
    case Kind::kParts:
      return std::min(1.0, static_cast<double>(total) /
                               static_cast<double>(std::max<std::int64_t>(
                                   1, std::min(parts, elements))));
    default:
      return 1;
  }
}

Fact share_of_true(double share) {
  return {.kind = Fact::Kind::kTrue, .share = std::clamp(share, 0.0, 1.0)};
}
Fact choice_of(std::int64_t parts) {
  return {.kind = Fact::Kind::kChoice,
          .parts = std::max<std::int64_t>(1, parts)};
}
Fact parts_of_sum(std::int64_t total, std::int64_t parts) {
  return {.kind = Fact::Kind::kParts,
          .parts = std::max<std::int64_t>(1, parts),
          .total = std::max<std::int64_t>(0, total)};
}

std::optional<Fact> fact_of(const c10::TensorImpl& outer) {
  return find(key_of(outer));
}

void learn(const c10::TensorImpl& outer, const Fact& fact) {
  const auto key = key_of(outer);
  if (!key) return;
  Facts& all = facts();
  const std::lock_guard lock(all.mutex);
  all.by_block.insert_or_assign(*key, fact);
  if (all.by_block.size() > kMostFacts) {
    all.by_block.erase(all.by_block.begin());
  }
}

void forget(const c10::TensorImpl& outer) {
  const auto key = key_of(outer);
  if (!key) return;
  Facts& all = facts();
  const std::lock_guard lock(all.mutex);
  all.by_block.erase(*key);
}

void note_upload(const at::Tensor& from_cpu, const at::Tensor& to) {
  const c10::TensorImpl& outer = *to.unsafeGetTensorImpl();
  forget(outer);
  if (from_cpu.scalar_type() != at::kBool || to.numel() == 0 ||
      to.nbytes() != to.storage().nbytes()) {
    return;
  }
  const auto count = from_cpu.count_nonzero().item<std::int64_t>();
  learn(outer, share_of_true(static_cast<double>(count) /
                             static_cast<double>(to.numel())));
}

std::int64_t part_of(double share, std::int64_t elements) {
  constexpr double kRounding = 1e-12; // of 1 / 3, three times
  return std::min(
      elements, static_cast<std::int64_t>(std::ceil(
                    share * static_cast<double>(elements) * (1 - kRounding))));
}

bool fill_known(const at::Tensor& from, const at::Tensor& to_cpu) {
  const auto fact = fact_of(*from.unsafeGetTensorImpl());
  if (!fact) return false;
  if (fact->kind == Fact::Kind::kTrue &&
      (fact->share <= 0 || fact->share >= 1)) {
    to_cpu.fill_(fact->share >= 1);
    return true;
  }
  if (fact->kind != Fact::Kind::kParts && fact->kind != Fact::Kind::kEnds) {
    return false;
  }
  at::Tensor values =
      at::empty(from.sizes(), at::TensorOptions().dtype(at::kLong));
  auto* const numbers = values.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const std::int64_t index = (from.storage_offset() + i) % fact->parts;
    numbers[i] = fact->kind == Fact::Kind::kParts ? part(*fact, index)
                                                  : end(*fact, index);
  }
  to_cpu.copy_(values);
  return true;
}

FactsOfCall::FactsOfCall(const AliasTensorSet& alias_tensors)
    : outer_(std::exchange(alias_tensors_of_call, &alias_tensors)) {}
FactsOfCall::~FactsOfCall() { alias_tensors_of_call = outer_; }

std::optional<Fact> FactsOfCall::of(const at::Tensor& alias_tensor) {
  if (alias_tensors_of_call == nullptr || !alias_tensor.defined() ||
      !alias_tensor.has_storage()) {
    return std::nullopt;
  }
  const AliasTensorSet::Entry* const entry = alias_tensors_of_call->find(
      *alias_tensor.storage().unsafeGetStorageImpl());
  return entry == nullptr ? std::nullopt : find(key_of(*entry->outer));
}

} // namespace chameleon::kernels::simulated
