#include "memory/policy/saved_plans.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "memory/policy/link_estimate.h"
#include "profiler/token.h"

namespace chameleon::memory {

namespace {

// A file of another version is refused: its plans would be made anew anyway.
constexpr std::string_view kHeader = "torch_chameleon plans 4\n";

class Writer {
 public:
  template <typename T>
  void operator()(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void operator()(bool value) { (*this)(std::uint64_t{value}); }
  template <typename T>
  void operator()(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    (*this)(std::uint64_t{values.size()});
    text_.append(reinterpret_cast<const char*>(values.data()),
                 values.size() * sizeof(T));
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

// Once the text has ended too early, nothing more is read.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  template <typename T>
  void operator()(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    copy(&value, sizeof(T));
  }
  void operator()(bool& value) { value = number() != 0; }
  template <typename T>
  void operator()(std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::uint64_t count = number();
    is_whole_ = is_whole_ && count <= text_.size() / sizeof(T);
    if (!is_whole_ || count == 0) return;
    values.assign(count, std::bit_cast<T>(std::array<std::byte, sizeof(T)>{}));
    copy(values.data(), count * sizeof(T));
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    (*this)(value);
    return value;
  }
  bool isWhole() const { return is_whole_; }
  bool isAtEnd() const { return text_.empty(); }

 private:
  void copy(void* to, std::size_t bytes) {
    is_whole_ = is_whole_ && text_.size() >= bytes;
    if (!is_whole_) return;
    std::memcpy(to, text_.data(), bytes);
    text_.remove_prefix(bytes);
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

// What a file has of a plan, in order; for a Writer and for a Reader.
template <typename Archive, typename Saved>
void each_field(Archive& archive, Saved& saved) {
  archive(saved.signature);
  archive(saved.budget_bytes);
  archive(saved.link.in_bytes_per_ns);
  archive(saved.link.out_bytes_per_ns);
  archive(saved.link.both_bytes_per_ns);
  archive(saved.link.latency_ns);
  archive(saved.headroom_level);
  archive(saved.is_settled);
  archive(saved.plan.action_end);
  archive(saved.plan.actions);
  archive(saved.plan.recorded);
  archive(saved.plan.budget_bytes);
  archive(saved.plan.modelled.duration_ns);
  archive(saved.plan.modelled.compute_ns);
  archive(saved.plan.modelled.mirror_ns);
  archive(saved.plan.modelled.bytes_in);
  archive(saved.plan.modelled.bytes_out);
  archive(saved.plan.modelled.copies);
  archive(saved.plan.modelled.away_bytes);
  archive(saved.assignment.price_ns_per_byte);
  archive(saved.assignment.joins);
}

// Whatever it says, it can be followed: the pager looks at a block's state
// before it does what is planned. But its numbers must be those of ops and
// values.
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
    writer(std::uint64_t{plans_.size()});
    for (const SavedPlan& plan : plans_) each_field(writer, plan);
  }
  const std::string plans = writer.take();
  Writer end;
  end(checksum(plans));
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
  if (end.number() != checksum(plans)) {
    return refused("is damaged: its checksum differs");
  }
  Reader reader(plans);
  std::vector<SavedPlan> found;
  const std::uint64_t count = reader.number();
  for (std::uint64_t i = 0; i < count && reader.isWhole(); ++i) {
    each_field(reader, found.emplace_back());
  }
  if (!reader.isWhole() || !reader.isAtEnd()) return refused("is damaged");
  const std::lock_guard lock(mutex_);
  for (SavedPlan& plan : found) addLocked(std::move(plan));
  return found.size();
}

} // namespace chameleon::memory
