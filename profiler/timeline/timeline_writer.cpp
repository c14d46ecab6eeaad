#include "profiler/timeline/timeline_writer.h"

#include <algorithm>
#include <cstdio>

#include "profiler/timeline/timeline_rows.h"
#include "profiler/trace/trace_writer.h"

namespace chameleon::profiler {
namespace {

std::string microseconds(std::int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%lld.%03lld",
                static_cast<long long>(ns / 1000),
                static_cast<long long>(ns % 1000));
  return text;
}

} // namespace

std::string write_timeline(std::span<const Interval> intervals,
                           const OpNames& names) {
  const TimelineRows rows = timeline_rows(intervals);
  std::string text = R"({"displayTimeUnit":"ns","traceEvents":[
{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"chameleon"}})";
  std::size_t place = 0; // from the top
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    for (std::size_t row = 0; row < rows.counts[lane]; ++row) {
      const std::string begin =
          ",\n"
          R"({"ph":"M","pid":1,"tid":)" +
          std::to_string(row_number(static_cast<Lane>(lane), row) + 1);
      text += begin;
      text += R"(,"name":"thread_name","args":{"name":)";
      text += json_string(row_name(static_cast<Lane>(lane), row));
      text += "}}";
      text += begin;
      text += R"(,"name":"thread_sort_index","args":{"sort_index":)";
      text += std::to_string(++place);
      text += "}}";
    }
  }
  std::int64_t first_ns = INT64_MAX;
  for (const Interval& interval : intervals) {
    first_ns = std::min(first_ns, interval.begin_ns);
  }
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    const Interval& interval = intervals[i];
    const bool named = interval.op != ~std::uint32_t{0};
    text +=
        ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":" +
        std::to_string(row_number(interval.lane, rows.of[i]) + 1) +
        ",\"ts\":" + microseconds(interval.begin_ns - first_ns) + ",\"dur\":" +
        microseconds(
            std::max<std::int64_t>(interval.end_ns - interval.begin_ns, 0)) +
        ",\"name\":" +
        json_string(interval.what != nullptr
                        ? std::string_view(interval.what)
                        : (named ? names.name(interval.op)
                                 : std::string_view(lane_name(interval.lane))));
    if (interval.bytes > 0) {
      text += ",\"args\":{\"bytes\":" + std::to_string(interval.bytes);
      if (interval.what != nullptr && named) {
        text += ",\"before\":" + json_string(names.name(interval.op));
      }
      text += '}';
    }
    text += '}';
  }
  return text + "\n]}\n";
}

} // namespace chameleon::profiler
