#include "tests/benchmarks/policy/trace_reader.h"

#include <charconv>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/benchmarks/policy/rerun_names.h"

namespace chameleon::benchmarks {
namespace {

using profiler::Operand;
using profiler::ValueIndex;

// One line: characters are taken from the front; after a mistake nothing
// matches any more.
class Line {
 public:
  explicit Line(std::string_view text) : rest_(text) {}

  bool ok() const { return ok_; }
  bool done() const { return ok_ && rest_.empty(); }

  bool at(char c) {
    skipSpace();
    return !rest_.empty() && rest_.front() == c;
  }
  void expect(char c) {
    if (!at(c)) ok_ = false;
    if (ok_) rest_.remove_prefix(1);
  }
  std::string_view text() { // without escapes, which the format does not need
    expect('"');
    const std::size_t size = rest_.find_first_of("\"\\");
    if (size == std::string_view::npos) ok_ = false;
    if (!ok_) return {};
    const std::string_view found = rest_.substr(0, size);
    rest_.remove_prefix(size);
    expect('"');
    return found;
  }
  template <typename T>
  T number() {
    skipSpace();
    T found{};
    const auto [end, error] =
        std::from_chars(rest_.data(), rest_.data() + rest_.size(), found);
    if (error != std::errc{}) ok_ = false;
    if (!ok_) return {};
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return found;
  }
  // `item` reads one element.
  template <typename Item>
  void list(char open, char close, Item item) {
    expect(open);
    for (bool first = true; ok_ && !at(close); first = false) {
      if (!first) expect(',');
      if (ok_) item();
    }
    expect(close);
  }
  template <typename Member>
  void object(Member member) {
    list('{', '}', [&] {
      const std::string_view key = text();
      expect(':');
      if (ok_) member(key);
    });
  }
  void fail() { ok_ = false; }
  void skipSpace() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\r')) {
      rest_.remove_prefix(1);
    }
  }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

using Sized = std::pair<std::uint64_t, std::uint64_t>; // id, bytes

std::vector<Sized> sized(Line& line) {
  std::vector<Sized> found;
  line.list('[', ']', [&] {
    line.expect('[');
    const auto id = line.number<std::uint64_t>();
    line.expect(',');
    found.emplace_back(id, line.number<std::uint64_t>());
    line.expect(']');
  });
  return found;
}

std::vector<std::uint64_t> ids(Line& line) {
  std::vector<std::uint64_t> found;
  line.list('[', ']', [&] { found.push_back(line.number<std::uint64_t>()); });
  return found;
}

class Reader {
 public:
  // True: the line was as it should be.
  bool read(std::string_view text) {
    Line line(text);
    if (lines_++ == 0) {
      header(line);
    } else {
      op(line);
    }
    line.skipSpace();
    return line.done();
  }
  bool complete() const { return complete_; }
  Trace take() { return std::move(trace_); }

 private:
  void header(Line& line) {
    line.object([&](std::string_view key) {
      if (key == "name") {
        line.text();
        return;
      }
      const auto number = line.number<double>();
      if (key == "bw_in") trace_.bytes_in_per_s = number;
      if (key == "bw_out") trace_.bytes_out_per_s = number;
      if (key == "bw_both") trace_.bytes_both_per_s = number;
      if (key == "copy_latency_ns") trace_.copy_latency_ns = number;
      if (key == "peak_bytes") trace_.peak_bytes = number;
    });
  }

  void op(Line& line) {
    std::int64_t duration = 0;
    std::string_view name;
    std::vector<Sized> in;
    std::vector<Sized> out;
    std::vector<std::uint64_t> written;
    std::vector<std::uint64_t> freed;
    bool marker = false;
    line.object([&](std::string_view key) {
      if (complete_) {
        line.fail(); // nothing comes after the step's end
      } else if (key == "op") {
        name = line.text();
      } else if (key == "t" || key == "step") {
        line.number<std::int64_t>();
        marker = marker || key == "step";
      } else if (key == "dur_ns") {
        duration = line.number<std::int64_t>();
      } else if (key == "in") {
        in = sized(line);
      } else if (key == "out") {
        out = sized(line);
      } else if (key == "write") {
        written = ids(line);
      } else if (key == "free") {
        freed = ids(line);
      } else {
        line.fail();
      }
    });
    if (marker) {
      complete_ = true;
      return;
    }
    add(duration, in, out, written, freed);
    trace_.cycle.may_rerun.push_back(may_rerun(name) ? 1 : 0);
  }

  ValueIndex index(const Sized& value) {
    const auto [at, fresh] = indices_.try_emplace(
        value.first, static_cast<ValueIndex>(indices_.size()));
    if (fresh) trace_.cycle.addValue(value.second);
    return at->second;
  }

  void add(std::int64_t duration, const std::vector<Sized>& in,
           const std::vector<Sized>& out,
           const std::vector<std::uint64_t>& written,
           const std::vector<std::uint64_t>& freed) {
    profiler::Cycle& cycle = trace_.cycle;
    cycle.addOp(duration);
    std::unordered_map<std::uint64_t, bool> writes;
    for (const std::uint64_t id : written) writes[id] = true;
    for (const Sized& value : in) {
      cycle.addOperand(index(value), writes.contains(value.first)
                                         ? Operand::kReads | Operand::kWrites
                                         : Operand::kReads);
    }
    for (const Sized& value : out) {
      cycle.addOperand(index(value), Operand::kCreates);
    }
    for (const std::uint64_t id : freed) {
      const auto found = indices_.find(id);
      if (found != indices_.end()) cycle.addFree(found->second);
    }
  }

  Trace trace_;
  std::unordered_map<std::uint64_t, ValueIndex> indices_;
  std::size_t lines_ = 0;
  bool complete_ = false;
};

} // namespace

runtime::Result<Trace> read_trace(std::string_view text) {
  using runtime::Error;
  using runtime::ErrorCode;
  Reader reader;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!reader.read(line)) {
      return Error(ErrorCode::kInvalidArgument,
                   "line " + std::to_string(number) + " is not of a trace");
    }
  }
  if (!reader.complete()) {
    return Error(ErrorCode::kInvalidArgument, "the trace has no step's end");
  }
  Trace trace = reader.take();
  const std::string problem = trace.cycle.problem();
  if (!problem.empty()) return Error(ErrorCode::kInvalidArgument, problem);
  return trace;
}

profiler::Cycle tile(const profiler::Cycle& cycle, int times) {
  profiler::Cycle tiled;
  std::vector<ValueIndex> now(cycle.values());
  std::vector<bool> transient(cycle.values());
  for (const Operand operand : cycle.operands) {
    if (operand.creates()) transient[operand.value()] = true;
  }
  for (ValueIndex value = 0; value < cycle.values(); ++value) {
    now[value] = tiled.addValue(cycle.value_bytes[value]);
  }
  for (int time = 0; time < times; ++time) {
    for (ValueIndex value = 0; time > 0 && value < cycle.values(); ++value) {
      if (!transient[value]) continue;
      now[value] = tiled.addValue(cycle.value_bytes[value]);
    }
    for (std::size_t op = 0; op < cycle.ops(); ++op) {
      tiled.addOp(cycle.duration_ns[op], cycle.workspace_bytes[op]);
      if (!cycle.may_rerun.empty()) {
        tiled.may_rerun.push_back(cycle.may_rerun[op]);
      }
      for (const Operand operand : cycle.operandsOf(op)) {
        tiled.addOperand(now[operand.value()], operand.flags());
      }
      for (const ValueIndex value : cycle.freedAfter(op)) {
        tiled.addFree(now[value]);
      }
    }
  }
  return tiled;
}

} // namespace chameleon::benchmarks
