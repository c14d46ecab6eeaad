// What an op's results are, as far as it follows from what is known of its
// arguments. In place, as out= and under every overload an op has one rule.
//
// Tests: test_simulated_values.py.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <ATen/ATen.h>

#include "kernels/simulated/facts.h"

namespace chameleon::kernels::simulated {
namespace {

using Kind = Fact::Kind;
using Known = std::optional<Fact>;

// One call, and what is known of its first argument.
struct Call {
  const CallView& view;
  const c10::TensorImpl* self;   // may be null
  Known known;                   // of `self`
  const c10::TensorImpl* result; // the first; may be null
  std::int64_t results;          // its elements

  const c10::TensorImpl* tensor(std::size_t index) const {
    return index < view.arguments.size() ? view.argument(index) : nullptr;
  }
  Known of(std::size_t index) const {
    const c10::TensorImpl* const given = tensor(index);
    return given == nullptr ? Known() : fact_of(*given);
  }
  // A number among the arguments.
  std::optional<double> number(std::size_t index) const {
    if (index >= view.arguments.size()) return std::nullopt;
    const c10::IValue& value = view.arguments[index];
    if (value.isBool()) return value.toBool() ? 1 : 0;
    return value.isScalar() && !value.isComplexDouble()
               ? std::optional(value.toScalar().toDouble())
               : std::nullopt;
  }
  bool is(Kind kind) const { return known && known->kind == kind; }
  // Elements of `self` for each of the result.
  double reduced() const {
    return static_cast<double>(self->numel()) /
           static_cast<double>(std::max<std::int64_t>(1, results));
  }
};

using Rule = Known (*)(const Call& call);

// ---- comparisons -----------------------------------------------------------

// What all parts of a sum are; none: they are not the same.
std::optional<double> each_of(const Fact& fact) {
  if (fact.kind != Kind::kParts || fact.total % fact.parts != 0) {
    return std::nullopt;
  }
  const std::int64_t each = fact.total / fact.parts;
  return static_cast<double>(each);
}

// Nothing is infinite; else the fraction of elements that are `value`.
std::optional<double> share_equal(const Call& call, double value) {
  if (!std::isfinite(value)) return 0;
  if (!call.known) return std::nullopt;
  const Fact& fact = *call.known;
  if (fact.kind == Kind::kChoice) {
    const bool possible = value >= 0 && value < static_cast<double>(fact.parts);
    return possible ? 1.0 / static_cast<double>(fact.parts) : 0;
  }
  if (const auto number = each_of(fact)) return value == *number ? 1 : 0;
  const double share = fact.shareTrue(call.self->numel());
  if (fact.kind == Kind::kTrue && value == 1) return share;
  if (fact.kind <= Kind::kParts && value == 0) return 1 - share;
  return std::nullopt;
}

// As NaN is looked for: it alone differs from itself.
bool is_the_same(const c10::TensorImpl& a, const c10::TensorImpl& b) {
  return a.unsafe_storage().unsafeGetStorageImpl() ==
             b.unsafe_storage().unsafeGetStorageImpl() &&
         a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

std::optional<double> share_equal(const Call& call) {
  if (const auto value = call.number(1)) return share_equal(call, *value);
  const c10::TensorImpl* const other = call.tensor(1);
  if (other == nullptr || !other->has_storage()) return std::nullopt;
  if (is_the_same(*call.self, *other)) return 1;
  for (const Known& known : {call.known, call.of(1)}) {
    if (known && known->kind == Kind::kChoice) {
      return 1.0 / static_cast<double>(known->parts);
    }
  }
  return std::nullopt;
}

Known equal(const Call& call) {
  const auto share = share_equal(call);
  return share ? Known(share_of_true(*share)) : Known();
}
Known not_equal(const Call& call) {
  const auto share = share_equal(call);
  return share ? Known(share_of_true(1 - *share)) : Known();
}

// The fraction of elements that are less than a number, or not more.
std::optional<double> share_below(const Call& call, bool or_equal) {
  const auto value = call.number(1);
  if (!value || !call.known) return std::nullopt;
  const Fact& fact = *call.known;
  if (const auto number = each_of(fact)) {
    return *number < *value || (or_equal && *number == *value) ? 1 : 0;
  }
  const double whole = or_equal ? std::floor(*value) + 1 : std::ceil(*value);
  switch (fact.kind) {
    case Kind::kUniform:
      return value;
    case Kind::kChoice:
      return whole / static_cast<double>(fact.parts);
    default: // no element is negative, and the share of zeros is known
      if (whole <= 0) return 0;
      if (whole == 1) return 1 - fact.shareTrue(call.self->numel());
      return fact.kind == Kind::kTrue ? std::optional(1.0) : std::nullopt;
  }
}

template <bool OrEqual, bool Above>
Known ordered(const Call& call) {
  const auto below = share_below(call, Above ? !OrEqual : OrEqual);
  if (!below) return std::nullopt;
  const double share = std::clamp(*below, 0.0, 1.0);
  return share_of_true(Above ? 1 - share : share);
}

template <int Share>
Known always(const Call&) {
  return share_of_true(Share);
}

// ---- masks -----------------------------------------------------------------

bool has_bools(const c10::TensorImpl* tensor) {
  return tensor != nullptr && tensor->dtype() == caffe2::TypeMeta::Make<bool>();
}

Known negated(const Call& call) {
  if (!call.is(Kind::kTrue)) return std::nullopt;
  return share_of_true(1 - call.known->share);
}
Known negated_bits(const Call& call) {
  return has_bools(call.self) ? negated(call) : Known();
}

// At most so many; a mask of which nothing is known may be all true.
Known both(const Call& call) {
  if (!has_bools(call.self) || !has_bools(call.tensor(1))) return std::nullopt;
  const Known other = call.of(1);
  if (!call.known && !other) return std::nullopt;
  const double share =
      std::min(call.known ? call.known->share : 1, other ? other->share : 1);
  if (share >= 1 && !(call.known && other)) return std::nullopt;
  return share_of_true(share);
}
Known either(const Call& call) {
  if (!has_bools(call.self) || !has_bools(call.tensor(1))) return std::nullopt;
  const Known other = call.of(1);
  const double share =
      (call.known ? call.known->share : 0) + (other ? other->share : 0);
  if (share < 1 && !(call.known && other)) return std::nullopt;
  return share_of_true(share);
}

Known all(const Call& call) {
  if (!call.is(Kind::kTrue)) return std::nullopt;
  return share_of_true(call.known->share >= 1 ? 1 : 0);
}
// Along the choices of one token no two are the same.
Known any(const Call& call) {
  if (!call.is(Kind::kTrue)) return std::nullopt;
  const double share = call.known->share;
  if (share > 0 && call.results == 1) return share_of_true(1);
  return share_of_true(share * call.reduced());
}

// ---- sums and counts -------------------------------------------------------

Known sum(const Call& call) {
  if (call.is(Kind::kParts)) {
    return parts_of_sum(call.known->total, call.results);
  }
  if (!call.is(Kind::kTrue)) return std::nullopt;
  return parts_of_sum(part_of(call.known->share, call.self->numel()),
                      call.results);
}
Known counts(const Call& call) {
  return parts_of_sum(call.self->numel(), call.results);
}
Known bincount(const Call& call) { // of weights there are no values
  return call.tensor(1) == nullptr ? counts(call) : Known();
}
Known cumsum(const Call& call) {
  if (!call.is(Kind::kParts) || call.self->dim() != 1) return std::nullopt;
  Fact ends = *call.known;
  ends.kind = Kind::kEnds;
  return ends;
}
// Index adds of ones: how often each is meant.
Known scatter_ones(const Call& call) {
  const c10::TensorImpl* const index = call.tensor(2);
  const Known source = call.of(3);
  if (index == nullptr || !source || source->kind != Kind::kTrue ||
      source->share < 1) {
    return std::nullopt;
  }
  return parts_of_sum(index->numel(), call.results);
}

// ---- choices ---------------------------------------------------------------

Known dimension(const Call& call, std::size_t argument) {
  if (argument >= call.view.arguments.size() ||
      !call.view.arguments[argument].isInt()) {
    return choice_of(call.self->numel());
  }
  if (call.self->dim() == 0) return choice_of(1);
  const auto dim = c10::maybe_wrap_dim(call.view.arguments[argument].toInt(),
                                       call.self->dim());
  return choice_of(call.self->size(dim));
}
Known arg(const Call& call) { return dimension(call, 1); }
Known last_dimension(const Call& call) {
  return choice_of(call.self->dim() == 0 ? 1 : call.self->sizes().back());
}

// Ones where chosen indices say.
Known scatter(const Call& call) {
  const Known index = call.of(2);
  const Known source = call.of(3);
  const auto value = call.number(3);
  const bool ones = value == 1.0 || (source && source->kind == Kind::kTrue &&
                                     source->share >= 1);
  if (!ones || !index || index->kind != Kind::kChoice) return std::nullopt;
  return share_of_true(
      static_cast<double>(call.tensor(2)->numel()) /
      static_cast<double>(std::max<std::int64_t>(1, call.results)));
}

Known remainder(const Call& call) {
  const auto value = call.number(1);
  const bool whole =
      c10::isIntegralType(c10::typeMetaToScalarType(call.self->dtype()), false);
  if (!whole || !value || *value < 1) return std::nullopt;
  return choice_of(static_cast<std::int64_t>(*value));
}

bool is_reduced_to_one(const Call& call) {
  return call.known && call.results == 1 && call.tensor(1) == nullptr;
}

// The smallest and the largest element.
std::optional<std::pair<Fact, Fact>> ends_of(const Fact& fact) {
  const auto number = [](std::int64_t value) { return parts_of_sum(value, 1); };
  switch (fact.kind) {
    case Kind::kTrue:
      return std::pair(share_of_true(fact.share < 1 ? 0 : 1),
                       share_of_true(fact.share > 0 ? 1 : 0));
    case Kind::kChoice:
      return std::pair(number(0), number(fact.parts - 1));
    case Kind::kParts:
      return std::pair(number(fact.total / fact.parts),
                       number((fact.total + fact.parts - 1) / fact.parts));
    default:
      return std::nullopt;
  }
}
Known least(const Call& call) {
  if (!is_reduced_to_one(call)) return std::nullopt;
  const auto ends = ends_of(*call.known);
  return ends ? Known(ends->first) : Known();
}
Known most(const Call& call) {
  if (!is_reduced_to_one(call)) return std::nullopt;
  const auto ends = ends_of(*call.known);
  return ends ? Known(ends->second) : Known();
}

// ---- made and copied -------------------------------------------------------

bool is_whole(const c10::TensorImpl& tensor) {
  return tensor.storage_offset() == 0 &&
         static_cast<std::size_t>(tensor.numel()) * tensor.itemsize() ==
             tensor.unsafe_storage().nbytes();
}

Known filled(const Call& call, double value) {
  const bool known =
      (value == 0 || value == 1) && is_whole(*call.self) &&
      c10::isIntegralType(c10::typeMetaToScalarType(call.self->dtype()), true);
  return known ? Known(share_of_true(value)) : Known();
}
Known fill(const Call& call) {
  const auto value = call.number(1);
  return value ? filled(call, *value) : Known();
}
Known zero(const Call& call) { return filled(call, 0); }

Known uniform(const Call& call) {
  const bool usual = call.number(1) == 0.0 && call.number(2) == 1.0;
  if (!usual || !is_whole(*call.self)) return std::nullopt;
  return Fact{.kind = Kind::kUniform};
}
// Each is 1 as often as its own probability says.
Known drawn_by(const Known& probabilities) {
  if (!probabilities) return std::nullopt;
  if (probabilities->kind == Kind::kUniform) return share_of_true(0.5);
  return probabilities->kind == Kind::kTrue ? probabilities : Known();
}
Known bernoulli(const Call& call) {
  if (!is_whole(*call.result)) return std::nullopt;
  if (const auto p = call.number(1)) return share_of_true(*p);
  return drawn_by(call.tensor(1) == nullptr ? call.known : call.of(1));
}
// What is made of numbers alone: no argument is a tensor.
Known made(std::string_view name, const Call& call) {
  // Each of them once.
  return name == "randperm" ? Known(choice_of(call.results)) : Known();
}
Known random(const Call& call) { // from 0, or from a number, to another
  const auto first = call.number(1);
  const auto last = call.number(2);
  if (!first || !is_whole(*call.self)) return std::nullopt;
  if (!last) { // up to it, or from it without an end
    if (call.view.traits.name.ends_with(".from")) return std::nullopt;
    return choice_of(static_cast<std::int64_t>(*first));
  }
  if (*first != 0) return std::nullopt;
  return choice_of(static_cast<std::int64_t>(*last));
}

// As another type: what is not zero is true.
Known as_type_of(const Call& call, const Known& known, std::int64_t elements) {
  if (!known || !has_bools(call.result)) return known;
  return share_of_true(known->shareTrue(elements));
}

// Elements of the first argument, some or all of them.
Known kept(const Call& call) {
  if (!call.known) return std::nullopt;
  if (call.self->numel() == call.results || call.is(Kind::kTrue) ||
      call.is(Kind::kChoice)) {
    return as_type_of(call, call.known, call.self->numel());
  }
  return std::nullopt;
}
Known copied(const Call& call) {
  const c10::TensorImpl* const from = call.tensor(1);
  if (from == nullptr || from->numel() != call.self->numel() ||
      !is_whole(*call.self)) {
    return std::nullopt;
  }
  return as_type_of(call, fact_of(*from), from->numel());
}

const std::unordered_map<std::string_view, Rule>& rules() {
  static const auto* const table =
      new std::unordered_map<std::string_view, Rule>{
          {"eq", &equal},
          {"ne", &not_equal},
          {"lt", &ordered<false, false>},
          {"le", &ordered<true, false>},
          {"gt", &ordered<false, true>},
          {"ge", &ordered<true, true>},
          {"isnan", &always<0>},
          {"isinf", &always<0>},
          {"isposinf", &always<0>},
          {"isneginf", &always<0>},
          {"logical_not", &negated},
          {"bitwise_not", &negated_bits},
          {"logical_and", &both},
          {"bitwise_and", &both},
          {"mul", &both},
          {"logical_or", &either},
          {"bitwise_or", &either},
          {"all", &all},
          {"any", &any},
          {"sum", &sum},
          {"count_nonzero", &sum},
          {"bincount", &bincount},
          {"histc", &counts},
          {"cumsum", &cumsum},
          {"scatter_add", &scatter_ones},
          {"index_add", &scatter_ones},
          {"scatter", &scatter},
          {"argmax", &arg},
          {"argmin", &arg},
          {"multinomial", &last_dimension},
          {"remainder", &remainder},
          {"max", &most},
          {"amax", &most},
          {"min", &least},
          {"amin", &least},
          {"fill", &fill},
          {"zero", &zero},
          {"uniform", &uniform},
          {"bernoulli", &bernoulli},
          {"random", &random},
          {"clone", &kept},
          {"_to_copy", &kept},
          {"index", &kept},
          {"index_select", &kept},
          {"gather", &kept},
          {"sort", &kept},
          {"copy", &copied},
          {"copy_within", &copied},
      };
  return *table;
}

// "eq" of "aten::eq_.Scalar".
std::string_view rule_name(std::string_view op) {
  std::string_view name = base_name(op);
  name.remove_prefix(std::min(name.size(), name.rfind(':') + 1));
  if (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

// Along which `unique` compares rows; none: single elements.
std::optional<std::int64_t> dim_of_unique(const Call& call,
                                          std::string_view name) {
  const std::size_t argument = name.starts_with("unique_dim") ? 1 : 3;
  if (name.starts_with('_') || call.self->dim() == 0 ||
      !call.view.arguments[argument].isInt()) {
    return std::nullopt;
  }
  return c10::maybe_wrap_dim(call.view.arguments[argument].toInt(),
                             call.self->dim());
}

// Indices beside the values that were chosen, and counts and places beside what
// is unique.
void note_other_results(const CallView& view, std::string_view name,
                        const Call& call) {
  const auto tell = [&](std::size_t result, const Known& known) {
    const bool there = result < view.results.size();
    const c10::TensorImpl* const to = there ? view.result(result) : nullptr;
    if (to != nullptr && known) learn(*to, *known);
  };
  if (name == "topk" || name == "kthvalue") {
    tell(1, dimension(call, 2));
  } else if (name == "sort") { // its dimension is the last but one argument
    tell(1, dimension(call, view.arguments.size() - 2));
  } else if (name == "max" || name == "min" || name == "mode") {
    tell(1, dimension(call, 1));
  } else if (call.result != nullptr &&
             (name.starts_with("_unique") || name.starts_with("unique"))) {
    const std::optional<std::int64_t> dim = dim_of_unique(call, name);
    const std::int64_t all = dim ? call.self->size(*dim) : call.self->numel();
    const std::int64_t found = dim ? call.result->size(*dim) : call.results;
    if (found == 0) return;
    tell(1, choice_of(found));
    tell(2, parts_of_sum(all, found));
  }
}

void forget_written(const CallView& view) {
  for (const ArgumentTraits& argument : view.traits.arguments) {
    if (!argument.writes) continue;
    const c10::IValue& value = view.arguments[argument.index];
    if (value.isTensorList()) {
      for (const at::Tensor& each : value.toTensorVector()) {
        forget(*each.unsafeGetTensorImpl());
      }
    } else if (const c10::TensorImpl* const tensor = CallView::tensor(value)) {
      forget(*tensor);
    }
  }
}

// The first of them; null: it is no tensor, or a sparse one.
const c10::TensorImpl* with_storage(c10::ArrayRef<c10::IValue> values) {
  const c10::TensorImpl* const first =
      values.empty() ? nullptr : CallView::tensor(values.front());
  return first != nullptr && first->has_storage() ? first : nullptr;
}

} // namespace

void note_call(const CallView& view) {
  const std::string_view name = rule_name(view.traits.name);
  const auto rule = rules().find(name);
  const c10::TensorImpl* const self = with_storage(view.arguments);
  const c10::TensorImpl* const result = with_storage(view.results);
  const Call call{view, self, self == nullptr ? Known() : fact_of(*self),
                  result, result == nullptr ? 0 : result->numel()};
  Known known;
  if (result != nullptr) {
    if (self == nullptr) {
      known = made(name, call);
    } else if (rule != rules().end()) {
      known = rule->second(call);
    }
  }
  if (view.traits.writes) forget_written(view);
  if (known && (!view.traits.writes || is_whole(*result))) {
    learn(*result, *known);
  }
  if (self != nullptr) note_other_results(view, name, call);
}

} // namespace chameleon::kernels::simulated
