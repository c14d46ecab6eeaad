// Drives a Profiler as the pager and the kernels would: named tensors, ops by
// name and shape, blocks that are born and die. Counts, per step of the test's
// own program, the ops that had no forecast.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "profiler/op_names.h"
#include "profiler/profiler.h"

namespace chameleon::profiler {

class OpDriver {
 public:
  struct Block {
    BlockSlot slot;
    std::uint64_t identity;
    std::uint64_t bytes;
    bool* gone;
  };

  explicit OpDriver(std::size_t history_bytes = OpHistory::kDefaultBytes)
      : profiler(history_bytes, [](const void* owner) {
          return *static_cast<const bool*>(owner);
        }) {}

  // A block that no op makes.
  void create(const std::string& name, std::uint64_t bytes) {
    drop(name);
    blocks_[name] = birth(bytes);
  }
  void drop(const std::string& name) {
    const auto at = blocks_.find(name);
    if (at == blocks_.end()) return;
    profiler.freed(at->second.slot, profiler.opCount());
    blocks_.erase(at);
  }
  // It dies now; the profiler is told later, by the caller.
  Block forget(const std::string& name) {
    const Block dead = blocks_.at(name);
    *dead.gone = true;
    blocks_.erase(name);
    return dead;
  }
  bool has(const std::string& name) const { return blocks_.count(name) > 0; }
  const Block& block(const std::string& name) const { return blocks_.at(name); }

  // An op on named blocks; "+x" writes x, "=x" overwrites it. Its results get
  // names, in place of what had them.
  bool op(const std::string& name, const std::vector<std::string>& operands,
          const std::vector<std::string>& results = {},
          std::uint64_t result_bytes = 4096, std::uint64_t shape = 0) {
    std::vector<Use> uses;
    const std::uint32_t number = names.add(name);
    TokenHasher hasher(number);
    hasher.add(shape);
    for (const std::string& text : operands) {
      const bool marked = text[0] == '+' || text[0] == '=';
      const Block& b = blocks_.at(marked ? text.substr(1) : text);
      std::uint32_t flags = Operand::kReads;
      if (text[0] == '+') flags = Operand::kReads | Operand::kWrites;
      if (text[0] == '=') flags = Operand::kWrites | Operand::kOverwrites;
      uses.push_back({b.identity, b.slot, flags});
      hasher.add(flags);
      hasher.add(b.bytes);
    }
    const Token token = hasher.token();
    OpTicket ticket;
    profiler.observe(
        number, quick_half(token), Profiler::UseList{uses},
        [&] {
          ++whole_tokens;
          return token;
        },
        ticket);
    std::vector<Block> made;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::uint64_t identity = ++identities_;
      bool* const gone = &gone_.emplace_back(false);
      made.push_back({profiler.result(ticket, identity, result_bytes, gone),
                      identity, result_bytes, gone});
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      drop(results[i]);
      blocks_[results[i]] = made[i];
    }
    ++ops_;
    if (!ticket.expected) ++misses_;
    return ticket.expected;
  }

  // Ends a step of the program (not of the profiler): ops without forecast.
  struct StepCount {
    std::uint32_t ops;
    std::uint32_t misses;
    // More than a tenth of it had no forecast.
    bool lost() const { return misses * 10 > ops; }
  };
  StepCount endStep() {
    const StepCount count{ops_, misses_};
    ops_ = misses_ = 0;
    return count;
  }

  Profiler profiler;
  OpNames names;
  std::uint64_t whole_tokens = 0; // that the profiler has asked for

 private:
  Block birth(std::uint64_t bytes) {
    const std::uint64_t identity = ++identities_;
    bool* const gone = &gone_.emplace_back(false);
    return {profiler.born(identity, bytes, gone), identity, bytes, gone};
  }

  std::map<std::string, Block> blocks_;
  std::deque<bool> gone_; // of every block there ever was
  std::uint64_t identities_ = 0;
  std::uint32_t ops_ = 0;
  std::uint32_t misses_ = 0;
};

// A small model: `layers` of weights, forward, backward, optimizer, as eager
// training issues them.
class ToyModel {
 public:
  ToyModel(OpDriver& driver, int layers, std::string name = "")
      : driver_(driver), layers_(layers), name_(std::move(name)) {
    for (int i = 0; i < layers; ++i) driver_.create(weight(i), 1 << 20);
  }

  void forward(std::uint64_t batch, bool keep) {
    driver_.op("copy_in", {}, {"x0"}, batch * 4096, batch);
    for (int i = 0; i < layers_; ++i) {
      driver_.op("mm", {at("x", i), weight(i)}, {"h"}, batch * 4096, batch);
      driver_.op("gelu", {"h"}, {at("x", i + 1)}, batch * 4096, batch);
      if (!keep) driver_.drop(at("x", i));
    }
    driver_.op("loss", {at("x", layers_)}, {"loss"}, 512, batch);
    driver_.drop("h");
    if (!keep) driver_.drop(at("x", layers_));
  }
  void backward(std::uint64_t batch) {
    driver_.op("loss_grad", {"loss", at("x", layers_)}, {"g"}, batch * 4096,
               batch);
    for (int i = layers_; i-- > 0;) {
      driver_.op("gelu_grad", {"g", at("x", i + 1)}, {"gh"}, batch * 4096,
                 batch);
      driver_.drop(at("x", i + 1));
      driver_.op("mm_wgrad", {"gh", at("x", i)}, {"gw"}, 1 << 20, batch);
      if (driver_.has(grad(i))) {
        driver_.op("add_", {"+" + grad(i), "gw"});
      } else {
        driver_.op("detach", {"gw"}, {grad(i)}, 1 << 20);
      }
      driver_.drop("gw");
      driver_.op("mm_xgrad", {"gh", weight(i)}, {"g"}, batch * 4096, batch);
    }
    driver_.drop("g");
    driver_.drop("gh");
    driver_.drop("x0");
  }
  void optimizer() { // makes its state first, as torch.optim does
    for (int i = 0; i < layers_; ++i) {
      if (driver_.has(state(i))) break;
      driver_.op("zeros", {}, {state(i)}, 1 << 20);
    }
    for (int i = 0; i < layers_; ++i) {
      driver_.op("adam", {"+" + weight(i), "+" + state(i), grad(i)});
    }
  }
  void zeroGrad() {
    for (int i = 0; i < layers_; ++i) driver_.drop(grad(i));
  }
  void train(std::uint64_t batch = 8) {
    forward(batch, true);
    backward(batch);
    optimizer();
    zeroGrad();
  }
  void eval(std::uint64_t batch = 8) { forward(batch, false); }
  int layers() const { return layers_; }

 private:
  static std::string at(const char* name, int i) {
    return name + std::to_string(i);
  }
  std::string weight(int i) const { return name_ + at("w", i); }
  std::string grad(int i) const { return name_ + at("grad", i); }
  std::string state(int i) const { return name_ + at("m", i); }

  OpDriver& driver_;
  int layers_;
  std::string name_;
};

} // namespace chameleon::profiler
