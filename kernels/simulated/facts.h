// What is known of values that a simulated device does not have: how many
// elements of a mask are true, among how many choices an index chooses, what
// counts add up to. Sizes that depend on values, and what is read, follow from
// it. `note_call` learns it from op to op (fact_rules.cpp).
//
// A fact is of a whole storage, so views share it. Who writes the storage makes
// it another one, or none. The newest kMostFacts are kept.
//
// Tests: test_simulated_values.py.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "kernels/alias_tensors.h"
#include "kernels/simulated/call_view.h"

namespace chameleon::kernels::simulated {

inline constexpr std::size_t kMostFacts = 1 << 16;

struct Fact {
  enum class Kind : std::uint8_t {
    kTrue,    // `share` of the elements are true or 1, the others false or 0
    kChoice,  // each is one of 0 .. parts - 1, all of them equally often
    kParts,   // `parts` whole numbers, as even as can be, of sum `total`
    kEnds,    // sums of the first, the first two ... of such parts
    kUniform, // numbers from 0 to 1, all equally likely
  };
  Kind kind = Kind::kTrue;
  double share = 1;
  std::int64_t parts = 1;
  std::int64_t total = 0;

  // That an element is not zero.
  double shareTrue(std::int64_t elements) const;
};
Fact share_of_true(double share);
Fact choice_of(std::int64_t parts);
Fact parts_of_sum(std::int64_t total, std::int64_t parts);

// Of a chameleon tensor's storage.
std::optional<Fact> fact_of(const c10::TensorImpl& outer);
void learn(const c10::TensorImpl& outer, const Fact& fact);
void forget(const c10::TensorImpl& outer);

// Learns from an op, after the call.
void note_call(const CallView& call);
// Learns from a copy: what comes from the CPU has values.
void note_upload(const at::Tensor& from_cpu, const at::Tensor& to);

// How many of `elements` a fraction is, rounded up.
std::int64_t part_of(double share, std::int64_t elements);

// Writes what the values of `from` stand for, as far as that is known, and says
// whether it is.
bool fill_known(const at::Tensor& from, const at::Tensor& to_cpu);

// While a kernel runs: which outer storages its alias tensors show.
class FactsOfCall {
 public:
  explicit FactsOfCall(const AliasTensorSet& alias_tensors);
  ~FactsOfCall();
  FactsOfCall(const FactsOfCall&) = delete;
  FactsOfCall& operator=(const FactsOfCall&) = delete;
  // None where no call runs on this thread.
  static std::optional<Fact> of(const at::Tensor& alias_tensor);

 private:
  const AliasTensorSet* outer_;
};

} // namespace chameleon::kernels::simulated
