#include "memory/policy/saved_plans.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "memory/policy/link_estimate.h"
#include "profiler/token.h"

namespace chameleon::memory {

namespace {

// A file of another version is refused: its plans would be made anew anyway.
constexpr std::string_view kHeader = "torch_chameleon plans 1\n";

class Writer {
 public:
  template <typename T>
  void add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  template <typename T>
  void add(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    add(std::uint64_t{values.size()});
    text_.append(reinterpret_cast<const char*>(values.data()),
                 values.size() * sizeof(T));
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

// Once the text has ended too early, what is read is empty.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (has(sizeof(T))) {
      std::memcpy(&value, text_.data(), sizeof(T));
      text_.remove_prefix(sizeof(T));
    }
    return value;
  }
  template <typename T>
  std::vector<T> getAll(T filler) {
    const auto count = get<std::uint64_t>();
    if (count > text_.size() / sizeof(T)) {
      is_whole_ = false;
      return {};
    }
    std::vector<T> values(count, filler);
    if (count > 0) std::memcpy(values.data(), text_.data(), count * sizeof(T));
    text_.remove_prefix(count * sizeof(T));
    return values;
  }
  bool isWhole() const { return is_whole_; }
  bool isAtEnd() const { return text_.empty(); }

 private:
  bool has(std::size_t bytes) {
    is_whole_ = is_whole_ && text_.size() >= bytes;
    return is_whole_;
  }

  std::string_view text_;
  bool is_whole_ = true;
};

std::uint64_t checksum(std::string_view text) {
  profiler::TokenHasher hasher(text.size());
  for (; text.size() >= 8; text.remove_prefix(8)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), 8);
    hasher.add(word);
  }
  for (const char c : text) hasher.add(static_cast<unsigned char>(c));
  return hasher.token();
}

void write(Writer& writer, const SavedPlan& saved) {
  writer.add(saved.signature);
  writer.add(saved.budget_bytes);
  writer.add(saved.link.in_bytes_per_ns);
  writer.add(saved.link.out_bytes_per_ns);
  writer.add(saved.link.both_bytes_per_ns);
  writer.add(saved.link.latency_ns);
  writer.add(std::int64_t{saved.headroom});
  writer.add(std::uint64_t{saved.is_settled});
  writer.add(saved.plan.action_end);
  writer.add(saved.plan.actions);
  writer.add(saved.plan.recorded);
  writer.add(saved.plan.budget_bytes);
  writer.add(saved.plan.modelled.duration_ns);
  writer.add(saved.plan.modelled.compute_ns);
  writer.add(saved.plan.modelled.bytes_in);
  writer.add(saved.plan.modelled.bytes_out);
  writer.add(saved.plan.modelled.copies);
  writer.add(saved.assignment.price_ns_per_byte);
  writer.add(saved.assignment.joins);
}

SavedPlan read(Reader& reader) {
  SavedPlan saved;
  saved.signature = reader.get<std::uint64_t>();
  saved.budget_bytes = reader.get<std::uint64_t>();
  saved.link.in_bytes_per_ns = reader.get<double>();
  saved.link.out_bytes_per_ns = reader.get<double>();
  saved.link.both_bytes_per_ns = reader.get<double>();
  saved.link.latency_ns = reader.get<double>();
  saved.headroom = static_cast<int>(reader.get<std::int64_t>());
  saved.is_settled = reader.get<std::uint64_t>() != 0;
  saved.plan.action_end = reader.getAll(std::uint32_t{});
  saved.plan.actions = reader.getAll(Action(Action::Kind::kRelease, 0));
  saved.plan.recorded = reader.getAll(std::uint32_t{});
  saved.plan.budget_bytes = reader.get<std::uint64_t>();
  saved.plan.modelled.duration_ns = reader.get<double>();
  saved.plan.modelled.compute_ns = reader.get<double>();
  saved.plan.modelled.bytes_in = reader.get<std::uint64_t>();
  saved.plan.modelled.bytes_out = reader.get<std::uint64_t>();
  saved.plan.modelled.copies = reader.get<std::uint64_t>();
  saved.assignment.price_ns_per_byte = reader.getAll(double{});
  saved.assignment.joins = reader.getAll(std::uint8_t{});
  return saved;
}

// Whatever it says, it can be followed: a plan is a wish, and every op sees the
// right bits under any. But its numbers must be those of ops and values.
bool can_follow(const Plan& plan, const profiler::Cycle& cycle) {
  const auto rises = [](const std::vector<std::uint32_t>& numbers) {
    return std::is_sorted(numbers.begin(), numbers.end());
  };
  return plan.ops() == cycle.ops() && !plan.action_end.empty() &&
         rises(plan.action_end) &&
         plan.action_end.back() == plan.actions.size() &&
         rises(plan.recorded) &&
         (plan.recorded.empty() || plan.recorded.back() < cycle.ops()) &&
         std::all_of(
             plan.actions.begin(), plan.actions.end(),
             [&](Action action) { return action.value() < cycle.values(); });
}

} // namespace

SavedPlans::SavedPlans(const SavedPlans& other) {
  const std::lock_guard lock(other.mutex_);
  plans_ = other.plans_;
}

void SavedPlans::add(SavedPlan plan) {
  const std::lock_guard lock(mutex_);
  addLocked(std::move(plan));
}

void SavedPlans::addLocked(SavedPlan plan) {
  const auto same =
      std::find_if(plans_.begin(), plans_.end(), [&](const SavedPlan& other) {
        return other.signature == plan.signature &&
               other.budget_bytes == plan.budget_bytes &&
               other.plan.recorded.empty() == plan.plan.recorded.empty();
      });
  if (same == plans_.end()) {
    plans_.push_back(std::move(plan));
  } else {
    *same = std::move(plan);
  }
}

std::optional<SavedPlan> SavedPlans::take(std::uint64_t signature,
                                          const profiler::Cycle& cycle,
                                          std::uint64_t budget_bytes,
                                          const LinkModel& link,
                                          bool recompute) {
  const std::lock_guard lock(mutex_);
  auto best = plans_.end();
  for (auto saved = plans_.begin(); saved != plans_.end(); ++saved) {
    if (saved->signature != signature || saved->budget_bytes != budget_bytes ||
        (!recompute && !saved->plan.recorded.empty()) ||
        differs_much(saved->link, link) || !can_follow(saved->plan, cycle)) {
      continue;
    }
    if (best == plans_.end() ||
        saved->plan.modelled.duration_ns < best->plan.modelled.duration_ns) {
      best = saved;
    }
  }
  if (best == plans_.end()) return std::nullopt;
  SavedPlan taken = std::move(*best);
  plans_.erase(best);
  return taken;
}

std::size_t SavedPlans::size() const {
  const std::lock_guard lock(mutex_);
  return plans_.size();
}

std::string SavedPlans::text() const {
  Writer writer;
  {
    const std::lock_guard lock(mutex_);
    writer.add(std::uint64_t{plans_.size()});
    for (const SavedPlan& plan : plans_) write(writer, plan);
  }
  const std::string plans = writer.take();
  Writer end;
  end.add(checksum(plans));
  return std::string(kHeader) + plans + end.take();
}

runtime::Result<std::size_t> SavedPlans::addText(std::string_view text) {
  const auto refused = [](const char* why) {
    return runtime::Error(runtime::ErrorCode::kInvalidArgument, why);
  };
  if (!text.starts_with(kHeader) || text.size() < kHeader.size() + 8) {
    return refused(
        "is no file that torch_chameleon.profiler.save_plans() of this version "
        "wrote");
  }
  const std::string_view plans =
      text.substr(kHeader.size(), text.size() - kHeader.size() - 8);
  Reader end(text.substr(text.size() - 8));
  if (end.get<std::uint64_t>() != checksum(plans)) {
    return refused("is damaged: its checksum differs");
  }
  Reader reader(plans);
  std::vector<SavedPlan> found;
  const auto count = reader.get<std::uint64_t>();
  for (std::uint64_t i = 0; i < count && reader.isWhole(); ++i) {
    found.push_back(read(reader));
  }
  if (!reader.isWhole() || !reader.isAtEnd()) return refused("is damaged");
  const std::lock_guard lock(mutex_);
  for (SavedPlan& plan : found) addLocked(std::move(plan));
  return found.size();
}

} // namespace chameleon::memory
