#include "memory/figures/exchange_meter.h"

#include <algorithm>
#include <mutex>

namespace chameleon::memory {

using runtime::Stream;

namespace {

struct Interval {
  std::int64_t begin_ns;
  std::int64_t end_ns;
};

// In order, and none overlaps the next.
std::vector<Interval> merged(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) {
              return a.begin_ns < b.begin_ns;
            });
  std::vector<Interval> result;
  for (const Interval& next : intervals) {
    if (result.empty() || result.back().end_ns < next.begin_ns) {
      result.push_back(next);
    } else {
      result.back().end_ns = std::max(result.back().end_ns, next.end_ns);
    }
  }
  return result;
}

std::int64_t sum_ns(const std::vector<Interval>& intervals) {
  std::int64_t sum = 0;
  for (const Interval& each : intervals) sum += each.end_ns - each.begin_ns;
  return sum;
}

// Both merged.
std::int64_t shared_ns(const std::vector<Interval>& a,
                       const std::vector<Interval>& b) {
  std::int64_t sum = 0;
  for (auto at = a.begin(), other = b.begin();
       at != a.end() && other != b.end();) {
    sum +=
        std::max<std::int64_t>(0, std::min(at->end_ns, other->end_ns) -
                                      std::max(at->begin_ns, other->begin_ns));
    if (at->end_ns < other->end_ns) {
      ++at;
    } else {
      ++other;
    }
  }
  return sum;
}

} // namespace

ExchangeMeter::~ExchangeMeter() { giveBack(spans_); }

bool ExchangeMeter::ranOn(Stream stream) const {
  const std::lock_guard lock(mutex_);
  return std::find(streams_.begin(), streams_.end(), stream) != streams_.end();
}

TimedPoint ExchangeMeter::begin(ExchangePart part, Stream stream) {
  if (part == ExchangePart::kRuns) {
    const std::lock_guard lock(mutex_);
    saw_any_.store(true, std::memory_order_relaxed);
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) {
      streams_.push_back(stream);
    }
  }
  return take_point(runtime_, stream);
}

void ExchangeMeter::add(Span span) noexcept {
  if (!span.begin.taken) return;
  span.end = take_point(runtime_, span.stream);
  const std::lock_guard lock(mutex_);
  if (spans_.size() < kMaxSpans) {
    spans_.push_back(span);
  } else {
    give_back(runtime_, span.begin);
    give_back(runtime_, span.end);
  }
}

ExchangeMeter::Spans ExchangeMeter::take() {
  const std::lock_guard lock(mutex_);
  Spans next;
  next.reserve(spans_.size()); // steps mostly have as many
  return std::exchange(spans_, std::move(next));
}

ExchangeMeter::Times ExchangeMeter::timesOf(Spans& spans, Stream stream) {
  Times times;
  std::vector<Interval> waits;
  std::vector<Interval> fetches;
  for (Span& span : spans) {
    if (!resolve(runtime_, span.begin) || !resolve(runtime_, span.end)) {
      continue;
    }
    const Interval interval{span.begin.moment.time_ns, span.end.moment.time_ns};
    switch (span.part) {
      case ExchangePart::kRuns:
        times.runs_ns += interval.end_ns - interval.begin_ns;
        break;
      case ExchangePart::kFetches:
        fetches.push_back(interval);
        break;
      case ExchangePart::kWaits:
        if (span.stream == stream) waits.push_back(interval);
        break;
    }
  }
  waits = merged(std::move(waits));
  times.waits_ns = sum_ns(waits);
  times.exposed_ns = times.waits_ns - shared_ns(waits, merged(fetches));
  return times;
}

void ExchangeMeter::giveBack(Spans& spans) noexcept {
  for (Span& span : spans) {
    give_back(runtime_, span.begin);
    give_back(runtime_, span.end);
  }
  spans.clear();
}

ExchangeSpan::ExchangeSpan(ExchangeMeter& meter, ExchangePart part,
                           Stream stream)
    : meter_(meter),
      part_(part),
      stream_(stream),
      begin_(meter.begin(part, stream)) {}

ExchangeSpan::~ExchangeSpan() { meter_.add({part_, stream_, begin_, {}}); }

} // namespace chameleon::memory
