#include "tests/cpp/support/emulated_runtime.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "backend/runtime/check.h"

namespace chameleon::support {

using runtime::ByteRange;
using runtime::Copy;
using runtime::Error;
using runtime::Event;
using runtime::Result;
using runtime::Stream;

EmulatedRuntime::EmulatedRuntime(EmulatedRuntimeOptions options)
    : options_(std::move(options)),
      driver_(options_.driver),
      table_(driver_.table()) {
  if (options_.plant) options_.plant(table_);
  runtime::CudaRuntimeOptions cuda;
  cuda.stream_of = driver_.streamOf();
  cuda.commit_bytes = options_.commit_bytes;
  cuda.register_chunk_bytes = std::size_t{1} << 20;
  cuda.register_in_background = options_.register_in_background;
  cuda.warn = [](std::string_view) {};
  auto made = runtime::make_cuda_runtime(table_, 0, cuda);
  CHAMELEON_CHECK(made.ok(), "no cuda runtime on the emulated driver");
  runtime_ = std::move(*made);
}

EmulatedRuntime::~EmulatedRuntime() {
  const std::int64_t events = live_events_.load();
  if (events != 0) {
    driver_.report(std::to_string(events) + " events were never destroyed");
  }
}

void EmulatedRuntime::run(Stream stream, std::size_t count) {
  const Stream own[] = {copyInStream(), copyOutStream(), moveStream()};
  const auto found = std::ranges::find(own, stream);
  if (found != std::end(own)) {
    driver_.runOwn(static_cast<std::size_t>(found - own), count);
  } else {
    driver_.run(0, driver_.stream(0, stream.id), count);
  }
}

Error EmulatedRuntime::copy(Stream stream, std::span<const Copy> copies) {
  Error error = runtime_->copy(stream, copies);
  if (runsInline(stream)) run(stream);
  return error;
}

Result<Event> EmulatedRuntime::record(Stream stream) {
  return counted(runtime_->record(stream));
}

Result<Event> EmulatedRuntime::recordTimed(Stream stream) {
  return counted(runtime_->recordTimed(stream));
}

Error EmulatedRuntime::wait(Stream stream, Event event) {
  Error error = runtime_->wait(stream, event);
  if (runsInline(stream)) run(stream);
  return error;
}

void EmulatedRuntime::destroy(Event event) noexcept {
  if (!event.complete()) live_events_.fetch_sub(1);
  runtime_->destroy(event);
}

void EmulatedRuntime::submitted(Stream stream, std::span<const ByteRange> reads,
                                std::span<const ByteRange> writes) noexcept {
  if (options_.inline_kernels) launch(stream, reads, writes, {});
}

bool EmulatedRuntime::runsInline(Stream stream) const noexcept {
  return options_.inline_kernels && stream != copyInStream() &&
         stream != copyOutStream() && stream != moveStream();
}

Result<Event> EmulatedRuntime::counted(Result<Event> event) {
  if (event.ok() && !event->complete()) live_events_.fetch_add(1);
  return event;
}

} // namespace chameleon::support
