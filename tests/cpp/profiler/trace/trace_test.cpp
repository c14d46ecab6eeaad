#include "profiler/trace/trace.h"

#include <fstream>
#include <gtest/gtest.h>
#include <random>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "profiler/forecast.h"
#include "profiler/trace/trace_reader.h"
#include "profiler/trace/trace_writer.h"
#include "tests/cpp/profiler/op_driver.h"

namespace chameleon::profiler {
namespace {

const std::string kHeader =
    R"({"trace":1,"bw_in":55000000000.0,"bw_out":5.5e10,"bw_both":9e10})"
    "\n";
const std::string kOp =
    R"({"op":"mm","t":0,"dur_ns":5,"in":[[1,512]],"out":[[2,1024]],)"
    R"("write":[2],"free":[]})"
    "\n";
const std::string kStep = "{\"step\":1}\n";

std::string problem(const std::string& text) {
  auto trace = read_trace(text);
  return trace.ok() ? "" : trace.error().message();
}

TEST(Trace, ReadsTheFormat) {
  const auto read = read_trace(
      R"({"trace": 1, "name": "x\"y", "peak_bytes": 12, "hbm_budget": 100,)"
      R"( "bw_in": 1, "bw_out": 2.5, "bw_both": 3e9, "copy_latency_ns": 7})"
      "\n" +
      kOp + R"({"op":"add_","t":5,"dur_ns":1,"in":[[2,1024],[1,512]],)" +
      R"("out":[],"write":[1],"free":[2]})" + "\n" + kStep);
  ASSERT_TRUE(read.ok()) << read.error().message();
  const Trace& trace = read.value();
  EXPECT_EQ(trace.header.name, "x\"y");
  EXPECT_EQ(trace.header.hbm_budget_bytes, 100U);
  EXPECT_EQ(trace.header.in_bytes_per_second, 1);
  EXPECT_EQ(trace.header.out_bytes_per_second, 2.5);
  EXPECT_EQ(trace.header.both_bytes_per_second, 3e9);
  EXPECT_EQ(trace.header.copy_latency_ns, 7);
  ASSERT_EQ(trace.ops.size(), 2U);
  EXPECT_EQ(trace.ops[1].op, "add_");
  EXPECT_EQ(trace.ops[1].time_ns, 5);
  EXPECT_EQ(trace.ops[1].in.size(), 2U);
  EXPECT_EQ(trace.ops[1].write, std::vector<std::uint64_t>{1});
  EXPECT_EQ(trace.ops[1].free, std::vector<std::uint64_t>{2});
  EXPECT_EQ(trace.step_ends, std::vector<std::size_t>{2});
  const auto cycle = make_cycle(trace);
  ASSERT_TRUE(cycle.ok()) << cycle.error().message();
  EXPECT_EQ(cycle.value().problem(), "");
  EXPECT_EQ(cycle.value().ops(), 2U);
  EXPECT_EQ(cycle.value().values(), 2U);
  EXPECT_EQ(cycle.value().freedAfter(1).size(), 1U);
  EXPECT_FALSE(make_cycle(trace, 1).ok());
}

// What a trace says costs no more than its text.
TEST(Trace, RefusesWhatWouldNotFitIntoSums) {
  const auto op = [](const std::string& time, const std::string& bytes,
                     const std::string& more = "") {
    return R"({"op":"mm","t":0,"dur_ns":)" + time + R"(,"in":[],"out":[[1,)" +
           bytes + "]" + more + R"(],"write":[],"free":[]})" + "\n";
  };
  const std::string pib = std::to_string(std::uint64_t{1} << 50);
  EXPECT_EQ(problem(kHeader + op("5", pib) + kStep), "");
  EXPECT_EQ(problem(kHeader + op("5", pib + "0") + kStep),
            "trace line 2: a size is 1 PiB at most");
  EXPECT_EQ(problem(kHeader + op("5", pib, ",[2,1]") + kStep),
            "trace line 2: the storages have more than 1 PiB together");
  EXPECT_EQ(problem(kHeader + op("31536000000000000", "1") + kStep), "");
  EXPECT_EQ(problem(kHeader + op("31536000000000001", "1") + kStep),
            "trace line 2: the ops take more than a year");
  EXPECT_EQ(problem(kHeader + op("9223372036854775807", "1") + kStep),
            "trace line 2: the ops take more than a year");
  EXPECT_EQ(problem(R"({"trace":1,"bw_in":1,"bw_out":1,"bw_both":1,)"
                    R"("copy_latency_ns":1000000001})"
                    "\n" +
                    kOp + kStep),
            "trace line 1: a latency is a second at most");
  EXPECT_EQ(problem("{\"trace\":1,\"name\":\"\xff\"}\n"),
            "trace line 1: a string is not UTF-8");
}

// 30,000 in each list of one op: looked up, not searched for.
TEST(Trace, LongListsTakeNoTimeToSpeakOf) {
  std::string storages;
  std::string numbers;
  for (int i = 1; i <= 30'000; ++i) {
    const std::string comma = i > 1 ? "," : "";
    storages += comma + "[" + std::to_string(i) + ",512]";
    numbers += comma + std::to_string(i);
  }
  auto trace =
      read_trace(kHeader + R"({"op":"x","t":0,"dur_ns":1,"in":[)" + storages +
                 R"(],"out":[],"write":[)" + numbers + R"(],"over":[)" +
                 numbers + R"(],"free":[]})" + "\n" + kStep);
  ASSERT_TRUE(trace.ok()) << trace.error().message();
  EXPECT_TRUE(make_cycle(*trace).ok());
}

TEST(Trace, ReadsRegularFilesOnly) {
  const auto refusal = [](const std::string& path) {
    const auto trace = read_trace_file(path);
    return trace.ok() ? "" : trace.error().message();
  };
  EXPECT_EQ(refusal("/no/such/file"),
            "cannot read \"/no/such/file\": No such file or directory");
  EXPECT_EQ(refusal("/"), "cannot read \"/\": it is no regular file");
  EXPECT_EQ(refusal("/dev/zero"),
            "cannot read \"/dev/zero\": it is no regular file");
}

TEST(Trace, OneClearErrorForBadInput) {
  const auto op = [](const char* fields) {
    return kHeader + "{" + fields + "}\n" + kStep;
  };
  EXPECT_EQ(problem(kHeader + kOp + kStep), "");
  EXPECT_EQ(problem(""), "trace line 0: no header");
  EXPECT_EQ(problem("{\"step\":1}\n"),
            "trace line 1: a trace begins with {\"trace\":1, ...}");
  EXPECT_EQ(problem(R"({"trace":1,"bw_in":1,"bw_out":1})"
                    "\n"),
            "trace line 1: the header lacks \"bw_both\"");
  EXPECT_EQ(problem(kHeader + kOp),
            "trace line 2: the last line must be a step, {\"step\":n}");
  EXPECT_EQ(problem(kHeader + kOp + "{\"step\":2}\n"),
            "trace line 3: steps are numbered from 1");
  EXPECT_EQ(problem(kHeader + kStep), "trace line 2: a step without ops");
  EXPECT_EQ(problem(kHeader + "\n" + kOp + kStep),
            "trace line 2: an empty line");
  EXPECT_EQ(problem(op(R"("op":"mm","t":0)")),
            "trace line 2: an op has the fields op, t, dur_ns, in, out, "
            "write, free");
  EXPECT_EQ(problem(op(R"("op":"mm","tt":0)")),
            "trace line 2: \"tt\" is no field of a trace");
  EXPECT_EQ(problem(op(R"("op":"mm","op":"mm")")),
            "trace line 2: \"op\" twice");
  EXPECT_EQ(problem(op(R"("t":-1)")),
            "trace line 2: expected an integer of 0 or more before \"-1}\"");
  EXPECT_EQ(problem(op(R"("may_rerun":2)")),
            "trace line 2: may_rerun is 0 or 1");
  EXPECT_EQ(problem(op(R"("t":1.5)")),
            "trace line 2: expected an integer of 0 or more before \"1.5}\"");
  EXPECT_EQ(problem(op(R"("t":99999999999999999999)")),
            "trace line 2: expected an integer of 0 or more before "
            "\"999999999999\"");
  const std::string second =
      R"({"op":"mm","t":0,"dur_ns":5,"in":IN,"out":OUT,"write":WRITE,)"
      R"("free":FREE})"
      "\n";
  const auto with = [&](const char* in, const char* out, const char* write,
                        const char* free) {
    std::string text = second;
    const auto replace = [&](const std::string& key, const char* value) {
      text.replace(text.find(key), key.size(), value);
    };
    replace("IN", in);
    replace("OUT", out);
    replace("WRITE", write);
    replace("FREE", free);
    return problem(kHeader + kOp + text + kStep);
  };
  EXPECT_EQ(with("[[2,1024]]", "[]", "[]", "[2,1]"), "");
  EXPECT_EQ(with("[[2,1025]]", "[]", "[]", "[]"),
            "trace line 3: storage 2 had another size before");
  EXPECT_EQ(with("[[2,1024],[2,1024]]", "[]", "[]", "[]"),
            "trace line 3: storage 2 is twice an operand");
  EXPECT_EQ(with("[]", "[[2,1024]]", "[]", "[]"),
            "trace line 3: storage 2 is created while it lives");
  EXPECT_EQ(with("[[1,512]]", "[]", "[2]", "[]"),
            "trace line 3: storage 2 is written but no operand");
  EXPECT_EQ(with("[]", "[]", "[]", "[2,2]"),
            "trace line 3: storage 2 is freed while it is dead");
  EXPECT_EQ(with("[[2]]", "[]", "[]", "[]"),
            "trace line 3: expected ',' before \"]],\"out\":[],\"");
}

TEST(Trace, WritesTheExactFields) {
  Trace trace;
  trace.header.name = "demo";
  trace.header.hbm_budget_bytes = 1 << 20;
  trace.header.in_bytes_per_second = 5.5e10;
  trace.header.out_bytes_per_second = 5.5e10;
  trace.header.both_bytes_per_second = 9e10;
  trace.header.copy_latency_ns = 7000;
  trace.ops.push_back(
      {"aten::mm", 0, 5, {{1, 512}}, {{2, 1024}}, {2}, {}, {}, {}});
  trace.ops.back().may_rerun = true;
  trace.ops.push_back({"tab\t", 5, 1, {{2, 1024}}, {}, {}, {2}, {}, {}});
  trace.step_ends.push_back(2);
  EXPECT_EQ(write_trace(trace),
            R"({"trace":1,"name":"demo","hbm_budget":1048576,"bw_in":5.5e+10,)"
            R"("bw_out":5.5e+10,"bw_both":9e+10,"copy_latency_ns":7000})"
            "\n"
            R"({"op":"aten::mm","t":0,"dur_ns":5,"in":[[1,512]],)"
            R"("out":[[2,1024]],"write":[2],"free":[],"may_rerun":1})"
            "\n"
            R"({"op":"tab\u0009","t":5,"dur_ns":1,"in":[[2,1024]],"out":[],)"
            R"("write":[],"free":[2]})"
            "\n"
            R"({"step":1})"
            "\n");
  const auto again = read_trace(write_trace(trace));
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(write_trace(again.value()), write_trace(trace));
}

// What the profiler learned, out and in again, is the same cycle.
TEST(Trace, ARunBecomesATraceAndACycle) {
  OpDriver driver;
  ToyModel model(driver, 6);
  for (int i = 0; i < 6; ++i) {
    model.train();
    driver.profiler.step();
  }
  Durations durations;
  CycleBuilder builder(driver.profiler, durations);
  const auto map = builder.build(Forecast(driver.profiler).position().path);
  ASSERT_TRUE(map.has_value());
  EXPECT_EQ(map->cycle.problem(), "");
  const Trace trace = make_trace(*map, driver.names, {});
  const std::string text = write_trace(trace);
  const auto read = read_trace(text);
  ASSERT_TRUE(read.ok()) << read.error().message();
  const auto cycle = make_cycle(read.value());
  ASSERT_TRUE(cycle.ok()) << cycle.error().message();
  ASSERT_EQ(cycle.value().ops(), map->cycle.ops());
  EXPECT_EQ(cycle.value().values(), map->cycle.values());
  EXPECT_EQ(cycle.value().operands.size(), map->cycle.operands.size());
  EXPECT_EQ(cycle.value().duration_ns, map->cycle.duration_ns);
  EXPECT_EQ(cycle.value().may_rerun, map->cycle.may_rerun);
  EXPECT_EQ(read.value().ops.front().op, "copy_in");
}

TEST(Trace, Files) {
  Trace trace;
  trace.ops.push_back({"mm", 0, 5, {{1, 512}}, {}, {}, {}, {}, {}});
  trace.step_ends.push_back(1);
  const std::string path =
      testing::TempDir() + "trace_test_" + std::to_string(::getpid());
  ASSERT_TRUE(write_file(path, write_trace(trace)).ok());
  const auto read = read_trace_file(path);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.value().ops.size(), 1U);
  std::remove(path.c_str());
  EXPECT_FALSE(read_trace_file(path).ok());
  const auto error = write_file(path + "/no/such", "x");
  ASSERT_FALSE(error.ok());
  EXPECT_NE(error.message().find("no/such"), std::string::npos);
}

// Damaged text: never a crash, and what is accepted is a trace that can be
// written and read again.
TEST(Trace, ReaderSurvivesDamage) {
  const std::string good =
      kHeader + kOp +
      R"({"op":"a\u0041\n","t":5,"dur_ns":1,"in":[[2,1024],[1,512]],)" +
      R"("out":[[3,8]],"write":[1,3],"free":[2]})" + "\n" + kStep;
  const std::string alphabet =
      "0123456789[]{},:\"\\.eE-+ \n\tuopinstrwf\x01\xff";
  int accepted = 0;
  for (unsigned seed = 1; seed <= 6000; ++seed) {
    std::mt19937 random(seed);
    std::string text = good;
    for (unsigned n = 1 + random() % 3; n > 0 && !text.empty(); --n) {
      const std::size_t at = random() % text.size();
      const char c = alphabet[random() % alphabet.size()];
      switch (random() % 5) {
        case 0:
          text[at] = c;
          break;
        case 1:
          text.insert(at, 1, c);
          break;
        case 2:
          text.erase(at, 1 + random() % 5);
          break;
        case 3:
          text.resize(at);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 30));
      }
    }
    const auto read = read_trace(text);
    if (!read.ok()) {
      EXPECT_EQ(read.error().message().rfind("trace line ", 0), 0U);
      continue;
    }
    ++accepted;
    const std::string once = write_trace(read.value());
    const auto again = read_trace(once);
    ASSERT_TRUE(again.ok()) << "seed " << seed << ": " << text;
    EXPECT_EQ(write_trace(again.value()), once) << "seed " << seed;
    (void)make_cycle(read.value()).ok();
  }
  EXPECT_GT(accepted, 20);
}

} // namespace
} // namespace chameleon::profiler
