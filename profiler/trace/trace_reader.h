// Reads a trace in the format of trace.h, strictly: what is not exactly that is
// one Error that says which line is wrong and how. Header keys that are not
// known are skipped (their values must be numbers or strings); an op has its
// seven keys, in any order, and perhaps `over`, `fresh`, `workspace` and
// `may_rerun`.
//
// Beyond the form: storages keep their size, nothing is created while it lives,
// used or freed while it is dead, written without being an operand; t never
// goes back; the file ends with a step.
//
// Tests: trace_test.cpp.
//
// Thread safety: none needed; text in, a value out. Memory is bounded by a
// small multiple of the text's length.
#pragma once

#include <string>
#include <string_view>

#include "backend/runtime/result.h"
#include "profiler/trace/trace.h"

namespace chameleon::profiler {

runtime::Result<Trace> read_trace(std::string_view text);
runtime::Result<Trace> read_trace_file(const std::string& path);

} // namespace chameleon::profiler
