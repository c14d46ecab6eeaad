// Writes a trace in the format of trace.h, with exactly its field names.
//
// Tests: trace_test.cpp.
//
// Thread safety: none needed; a value in, text out.
#pragma once

#include <string>

#include "backend/runtime/result.h"
#include "profiler/trace/trace.h"

namespace chameleon::profiler {

std::string write_trace(const Trace& trace);
// To a file, whole or not at all: a failed write leaves what was there.
runtime::Error write_file(const std::string& path, const std::string& text);

// A JSON string literal, quotes included.
std::string json_string(std::string_view text);

} // namespace chameleon::profiler
