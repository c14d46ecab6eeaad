#include "profiler/trace/trace_reader.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "backend/runtime/quote.h"

namespace chameleon::profiler {
namespace {

using runtime::Error;
using runtime::ErrorCode;
using runtime::Result;

// The JSON that a trace needs: flat objects whose values are numbers, strings,
// lists of numbers and lists of pairs. The first failure sticks.
class LineScanner {
 public:
  explicit LineScanner(std::string_view line) : rest_(line) {}

  const std::string& problem() const noexcept { return problem_; }
  bool good() const noexcept { return problem_.empty(); }
  bool fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  bool take(char c) {
    skipSpace();
    if (!rest_.empty() && rest_.front() == c) {
      rest_.remove_prefix(1);
      return true;
    }
    return false;
  }
  bool expect(char c) {
    return take(c) || fail(std::string("expected '") + c + "'" + where());
  }
  bool atEnd() {
    skipSpace();
    return rest_.empty();
  }
  char peek() {
    skipSpace();
    return rest_.empty() ? '\0' : rest_.front();
  }

  bool string(std::string& out) {
    out.clear();
    if (!expect('"')) return false;
    while (!rest_.empty()) {
      const char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == '"') {
        return runtime::is_utf8(out) || fail("a string is not UTF-8");
      }
      if (static_cast<unsigned char>(c) < 0x20) break;
      if (c != '\\') {
        out += c;
      } else if (!escape(out)) {
        return false;
      }
    }
    return fail("a string has no end");
  }
  template <typename Integer>
  bool integer(Integer& out) {
    skipSpace();
    const char* const end = rest_.data() + rest_.size();
    const auto [at, error] = std::from_chars(rest_.data(), end, out);
    const bool whole = error == std::errc{} &&
                       (at == end || std::strchr(".eE", *at) == nullptr);
    if (!whole || out < Integer{0}) {
      return fail("expected an integer of 0 or more" + where());
    }
    rest_.remove_prefix(static_cast<std::size_t>(at - rest_.data()));
    return true;
  }
  bool real(double& out) {
    skipSpace();
    const bool numeric =
        !rest_.empty() && std::strchr("-0123456789", rest_.front()) != nullptr;
    const char* const end = rest_.data() + rest_.size();
    const auto [at, error] = std::from_chars(rest_.data(), end, out);
    if (!numeric || error != std::errc{}) {
      return fail("expected a number" + where());
    }
    rest_.remove_prefix(static_cast<std::size_t>(at - rest_.data()));
    return true;
  }
  template <typename Item>
  bool list(Item item) {
    if (!expect('[')) return false;
    if (take(']')) return true;
    do {
      if (!item()) return false;
    } while (take(','));
    return expect(']');
  }
  bool object(const std::function<bool(const std::string&)>& member) {
    if (!expect('{')) return false;
    if (take('}')) return fail("an empty object");
    std::string key;
    do {
      if (!string(key) || !expect(':') || !member(key)) return false;
    } while (take(','));
    return expect('}') &&
           (atEnd() || fail("something follows the object" + where()));
  }

 private:
  void skipSpace() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\t' ||
                              rest_.front() == '\r')) {
      rest_.remove_prefix(1);
    }
  }
  std::string where() const {
    if (rest_.empty()) return " at the end of the line";
    return " before " + runtime::quote(rest_.substr(0, 12));
  }
  bool escape(std::string& out) {
    if (rest_.empty()) return fail("a string has no end");
    const char c = rest_.front();
    rest_.remove_prefix(1);
    static constexpr char kFrom[] = "\"\\/bfnrt";
    static constexpr char kTo[] = "\"\\/\b\f\n\r\t";
    if (const char* const at = std::strchr(kFrom, c); c != '\0' && at) {
      out += kTo[at - kFrom];
      return true;
    }
    unsigned code = 0;
    const char* const begin = rest_.data();
    const std::size_t digits = 4;
    if (c != 'u' || rest_.size() < digits ||
        std::from_chars(begin, begin + digits, code, 16).ptr !=
            begin + digits ||
        code >= 0x80) {
      return fail("a string has an escape that is not supported");
    }
    rest_.remove_prefix(digits);
    out += static_cast<char>(code);
    return true;
  }

  std::string_view rest_;
  std::string problem_;
};

// So that sums of what a trace says fit into 64 bits.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;
constexpr std::int64_t kMostTime_ns = 365LL * 86'400 * 1'000'000'000;
constexpr std::int64_t kMostLatency_ns = 1'000'000'000;
constexpr std::size_t kMostFileBytes = std::size_t{1} << 30;

class Reader {
 public:
  Result<Trace> read(std::string_view text) {
    while (!text.empty()) {
      ++line_;
      const std::size_t end = text.find('\n');
      const std::string_view line = text.substr(0, end);
      text = end == std::string_view::npos ? std::string_view()
                                           : text.substr(end + 1);
      LineScanner scanner(line);
      if (scanner.atEnd()) {
        return error("an empty line");
      }
      if (!(line_ == 1 ? header(scanner) : record(scanner))) {
        return error(scanner.problem());
      }
    }
    if (line_ == 0) return error("no header");
    if (trace_.step_ends.empty() ||
        trace_.step_ends.back() != trace_.ops.size()) {
      return error("the last line must be a step, {\"step\":n}");
    }
    return std::move(trace_);
  }

 private:
  Error error(const std::string& problem) const {
    return {ErrorCode::kInvalidArgument,
            "trace line " + std::to_string(line_) + ": " + problem};
  }

  bool header(LineScanner& in) {
    TraceHeader& header = trace_.header;
    std::unordered_set<std::string> seen;
    std::uint64_t version = 0;
    const bool good = in.object([&](const std::string& key) {
      if (!seen.insert(key).second)
        return in.fail(runtime::quote(key) + " twice");
      if (key == "trace") return in.integer(version);
      if (key == "name") return in.string(header.name);
      if (key == "hbm_budget") return bytes(in, header.hbm_budget_bytes);
      if (key == "bw_in") return bandwidth(in, header.in_bytes_per_second);
      if (key == "bw_out") return bandwidth(in, header.out_bytes_per_second);
      if (key == "bw_both") return bandwidth(in, header.both_bytes_per_second);
      if (key == "copy_latency_ns") {
        return in.integer(header.copy_latency_ns) &&
               (header.copy_latency_ns <= kMostLatency_ns ||
                in.fail("a latency is a second at most"));
      }
      std::string text;
      double number = 0;
      return in.peek() == '"' ? in.string(text) : in.real(number);
    });
    if (!good) return false;
    if (version != 1) {
      return in.fail("a trace begins with {\"trace\":1, ...}");
    }
    for (const char* key : {"bw_in", "bw_out", "bw_both"}) {
      if (!seen.contains(key)) {
        return in.fail(std::string("the header lacks \"") + key + "\"");
      }
    }
    return true;
  }
  static bool bytes(LineScanner& in, std::uint64_t& out) {
    return in.integer(out) &&
           (out <= kMostBytes || in.fail("a size is 1 PiB at most"));
  }
  static bool bandwidth(LineScanner& in, double& out) {
    return in.real(out) &&
           (out == 0 || (out >= 1 && out < 1e18) ||
            in.fail("a bandwidth must be from 1 to 1e18 bytes per second, or 0 "
                    "where it is not known"));
  }

  bool record(LineScanner& in) {
    TraceOp op;
    std::uint64_t step = 0;
    std::uint64_t may_rerun = 0;
    unsigned seen = 0;
    const auto storages = [&](std::vector<TraceOp::Storage>& out) {
      return in.list([&] {
        TraceOp::Storage& s = out.emplace_back();
        return in.expect('[') && in.integer(s.first) && in.expect(',') &&
               bytes(in, s.second) && in.expect(']');
      });
    };
    const auto numbers = [&](std::vector<std::uint64_t>& out) {
      return in.list([&] { return in.integer(out.emplace_back()); });
    };
    const std::pair<const char*, std::function<bool()>> kMembers[] = {
        {"op", [&] { return in.string(op.op); }},
        {"t", [&] { return in.integer(op.time_ns); }},
        {"dur_ns", [&] { return in.integer(op.duration_ns); }},
        {"in", [&] { return storages(op.in); }},
        {"out", [&] { return storages(op.out); }},
        {"write", [&] { return numbers(op.write); }},
        {"free", [&] { return numbers(op.free); }},
        {"step", [&] { return in.integer(step); }},
        {"over", [&] { return numbers(op.over); }},
        {"workspace", [&] { return bytes(in, op.workspace_bytes); }},
        {"fresh", [&] { return numbers(op.fresh); }},
        {"may_rerun",
         [&] {
           return in.integer(may_rerun) &&
                  (may_rerun <= 1 || in.fail("may_rerun is 0 or 1"));
         }},
    };
    const bool good = in.object([&](const std::string& key) {
      for (unsigned i = 0; i < std::size(kMembers); ++i) {
        if (key != kMembers[i].first) continue;
        if ((seen & 1U << i) != 0) return in.fail("\"" + key + "\" twice");
        seen |= 1U << i;
        return kMembers[i].second();
      }
      return in.fail(runtime::quote(key) + " is no field of a trace");
    });
    if (!good) return false;
    constexpr unsigned kStep = 0x80;
    constexpr unsigned kOp = 0x7f;
    constexpr unsigned kMayLack = 0xf00;
    if (seen == kStep) return endStep(in, step);
    if ((seen & ~kMayLack) != kOp) {
      return in.fail(
          "an op has the fields op, t, dur_ns, in, out, write, free");
    }
    op.may_rerun = may_rerun == 1;
    return check(in, op) && (trace_.ops.push_back(std::move(op)), true);
  }

  bool endStep(LineScanner& in, std::uint64_t step) {
    const std::size_t begin =
        trace_.step_ends.empty() ? 0 : trace_.step_ends.back();
    if (step != trace_.step_ends.size() + 1) {
      return in.fail("steps are numbered from 1");
    }
    if (trace_.ops.size() == begin) return in.fail("a step without ops");
    trace_.step_ends.push_back(trace_.ops.size());
    return true;
  }

  struct State {
    std::uint64_t bytes;
    bool alive;
    std::size_t seen = 0;    // the last op that has it as an operand, from 1
    std::size_t written = 0; // the last op that writes it
    bool is_in = false;      // of the op in `seen`
    bool is_out = false;
  };
  bool check(LineScanner& in, const TraceOp& op) {
    if (op.time_ns < time_ns_) return in.fail("t goes back");
    time_ns_ = op.time_ns;
    if (op.time_ns > INT64_MAX - op.duration_ns) {
      return in.fail("t + dur_ns is too large");
    }
    if (op.duration_ns > kMostTime_ns - busy_ns_) {
      return in.fail("the ops take more than a year");
    }
    busy_ns_ += op.duration_ns;
    const std::size_t now = trace_.ops.size() + 1;
    for (const bool out : {false, true}) {
      for (const auto& [number, bytes] : out ? op.out : op.in) {
        const std::string name = "storage " + std::to_string(number);
        // Not seen before: it was there from the start.
        const auto [at, added] =
            states_.try_emplace(number, State{bytes, /*alive=*/!out});
        State& state = at->second;
        if (state.seen == now) return in.fail(name + " is twice an operand");
        state.seen = now;
        state.is_in = !out;
        state.is_out = out;
        if (state.alive == out) {
          return in.fail(name + (out ? " is created while it lives"
                                     : " is used while it is dead"));
        }
        if (!out && state.bytes != bytes) {
          return in.fail(name + " had another size before");
        }
        if (added) all_bytes_ += bytes;
        if (all_bytes_ > kMostBytes) {
          return in.fail("the storages have more than 1 PiB together");
        }
        state.bytes = bytes;
        state.alive = true;
      }
    }
    for (const std::uint64_t number : op.write) {
      const auto at = states_.find(number);
      if (at == states_.end() || at->second.seen != now) {
        return in.fail("storage " + std::to_string(number) +
                       " is written but no operand");
      }
      at->second.written = now;
    }
    for (const std::uint64_t number : op.over) {
      const auto at = states_.find(number);
      if (at == states_.end() || at->second.seen != now ||
          at->second.written != now || !at->second.is_in) {
        return in.fail("storage " + std::to_string(number) +
                       " is overwritten but not among in and write");
      }
    }
    for (const std::uint64_t number : op.fresh) {
      const auto at = states_.find(number);
      if (at == states_.end() || at->second.seen != now || !at->second.is_out) {
        return in.fail("storage " + std::to_string(number) +
                       " is fresh but not among out");
      }
    }
    for (const std::uint64_t number : op.free) {
      // Not seen before: it is left from the step before.
      State& state = states_.try_emplace(number, State{0, true}).first->second;
      if (!state.alive) {
        return in.fail("storage " + std::to_string(number) +
                       " is freed while it is dead");
      }
      state.alive = false;
    }
    return true;
  }

  Trace trace_;
  std::size_t line_ = 0;
  std::int64_t time_ns_ = 0;
  std::int64_t busy_ns_ = 0;
  std::uint64_t all_bytes_ = 0;
  std::unordered_map<std::uint64_t, State> states_;
};

} // namespace

Result<Trace> read_trace(std::string_view text) { return Reader().read(text); }

Result<Trace> read_trace_file(const std::string& path) {
  const auto refused = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument,
                 "cannot read " + runtime::quote(path) + ": " + why);
  };
  // A pipe might never say anything, a device never end.
  std::error_code unknown;
  const std::filesystem::file_status status =
      std::filesystem::status(path, unknown);
  if (unknown || !std::filesystem::exists(status)) {
    return refused(unknown ? unknown.message() : std::strerror(ENOENT));
  }
  if (!std::filesystem::is_regular_file(status)) {
    return refused("it is no regular file");
  }
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return refused(std::strerror(errno));
  std::string text;
  char buffer[1 << 16];
  std::size_t count = 0;
  while ((count = std::fread(buffer, 1, sizeof buffer, file)) > 0) {
    text.append(buffer, count);
    if (text.size() > kMostFileBytes) break;
  }
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) return refused("reading failed");
  if (text.size() > kMostFileBytes) return refused("it has more than 1 GiB");
  return read_trace(text);
}

} // namespace chameleon::profiler
