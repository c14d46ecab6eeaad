#include "profiler/trace/trace_writer.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <string>
#include <unistd.h>

#include "backend/runtime/quote.h"

namespace chameleon::profiler {
namespace {

using runtime::Error;
using runtime::ErrorCode;

template <typename Number>
void append(std::string& text, Number number) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, number);
  text.append(digits, end.ptr);
}

template <typename List, typename Item>
void append_list(std::string& text, const char* key, const List& list,
                 Item item) {
  text += key;
  text += '[';
  bool first = true;
  for (const auto& element : list) {
    if (!first) text += ',';
    first = false;
    item(element);
  }
  text += ']';
}

} // namespace

std::string json_string(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      quoted += "\\u00";
      quoted += kHex[static_cast<unsigned char>(c) >> 4];
      quoted += kHex[c & 15];
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string write_trace(const Trace& trace) {
  std::string text = R"({"trace":1,"name":)" + json_string(trace.header.name);
  text += R"(,"hbm_budget":)";
  append(text, trace.header.hbm_budget_bytes);
  text += R"(,"bw_in":)";
  append(text, trace.header.in_bytes_per_second);
  text += R"(,"bw_out":)";
  append(text, trace.header.out_bytes_per_second);
  text += R"(,"bw_both":)";
  append(text, trace.header.both_bytes_per_second);
  text += R"(,"copy_latency_ns":)";
  append(text, trace.header.copy_latency_ns);
  text += "}\n";
  const auto storage = [&](const TraceOp::Storage& s) {
    text += '[';
    append(text, s.first);
    text += ',';
    append(text, s.second);
    text += ']';
  };
  const auto number = [&](std::uint64_t n) { append(text, n); };
  std::size_t step = 0;
  const auto endSteps = [&](std::size_t ops) {
    while (step < trace.step_ends.size() && trace.step_ends[step] == ops) {
      text += R"({"step":)";
      append(text, ++step);
      text += "}\n";
    }
  };
  for (std::size_t i = 0; i < trace.ops.size(); ++i) {
    const TraceOp& op = trace.ops[i];
    text += R"({"op":)" + json_string(op.op) + R"(,"t":)";
    append(text, op.time_ns);
    text += R"(,"dur_ns":)";
    append(text, op.duration_ns);
    append_list(text, R"(,"in":)", op.in, storage);
    append_list(text, R"(,"out":)", op.out, storage);
    append_list(text, R"(,"write":)", op.write, number);
    append_list(text, R"(,"free":)", op.free, number);
    if (!op.over.empty()) append_list(text, R"(,"over":)", op.over, number);
    if (!op.fresh.empty()) append_list(text, R"(,"fresh":)", op.fresh, number);
    if (op.workspace_bytes > 0) {
      text += R"(,"workspace":)";
      append(text, op.workspace_bytes);
    }
    if (op.may_rerun) text += R"(,"may_rerun":1)";
    text += "}\n";
    endSteps(i + 1);
  }
  return text;
}

// The draft has a name that nobody can foresee: what lies at a foreseeable one
// in a folder for all may lead elsewhere.
Error write_file(const std::string& path, const std::string& text) {
  const auto failed = [&] {
    return Error(
        ErrorCode::kInvalidArgument,
        "cannot write " + runtime::quote(path) + ": " + std::strerror(errno));
  };
  std::random_device random;
  const std::string draft = path + "." + std::to_string(random()) +
                            std::to_string(random()) + ".part";
  const int descriptor =
      ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return failed();
  std::FILE* const file = ::fdopen(descriptor, "wb");
  const bool written =
      file != nullptr &&
      std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed =
      (file != nullptr ? std::fclose(file) : ::close(descriptor)) == 0;
  if (!written || !closed || std::rename(draft.c_str(), path.c_str()) != 0) {
    Error error = failed();
    std::remove(draft.c_str());
    return error;
  }
  return {};
}

} // namespace chameleon::profiler
