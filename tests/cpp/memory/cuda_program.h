// A program of random ops on a pager, on the cuda runtime and an emulated
// driver: kernels are asynchronous, and a model knows what each tensor holds.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "memory/pager.h"
#include "tests/cpp/support/emulated_runtime.h"

namespace chameleon::memory {

inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kBudget = 512 * kKiB;
inline constexpr std::size_t kLargest = 40 * kKiB;

// What a kernel writes: words that its seed determines.
inline std::uint64_t next_word(std::uint64_t& state) {
  state = (state ^ (state >> 29)) * 0xbf58476d1ce4e5b9;
  return state;
}

inline void fill(std::byte* to, std::size_t bytes, std::uint64_t seed) {
  std::uint64_t state = seed | 1;
  for (std::size_t at = 0; at < bytes; at += 8) {
    const std::uint64_t word = next_word(state);
    std::memcpy(to + at, &word, std::min<std::size_t>(8, bytes - at));
  }
}

inline bool holds(const std::byte* from, std::size_t bytes,
                  std::uint64_t seed) {
  std::uint64_t state = seed | 1;
  for (std::size_t at = 0; at < bytes; at += 8) {
    const std::uint64_t word = next_word(state);
    if (std::memcmp(from + at, &word, std::min<std::size_t>(8, bytes - at)) !=
        0) {
      return false;
    }
  }
  return true;
}

// A user's program: tensors that several streams use, ordered by nobody but
// the user's own waits when a tensor is written, and the pager's.
class Program {
 public:
  explicit Program(support::EmulatedRuntimeOptions options, std::uint64_t seed)
      : random_(seed), keeps_buffers_(options.plant != nullptr) {
    options.inline_kernels = false;
    options.driver.seed = seed;
    options.driver.on_misuse = [this](const std::string& sentence) {
      misuses_.push_back(sentence);
    };
    device_ = std::make_unique<support::EmulatedRuntime>(std::move(options));
    pager_ =
        Pager::create(*device_, {kBudget, std::size_t{64} << 20, 64}, "lru")
            .value();
  }

  // False: an error, or wrong bytes.
  bool run(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count && good_; ++i) {
      step();
      if (below(256) == 0) pager_->invariants().check(2);
    }
    return good_;
  }

  // All is read back, all is given back.
  bool finish() {
    for (const Tensor& tensor : tensors_) {
      if (good_) read(tensor);
      pager_->release(tensor.block);
    }
    tensors_.clear();
    if (good_) pager_->invariants().check(3);
    pager_.reset();
    device_->runAll();
    good_ = good_ && wrong_kernels_ == 0;
    device_.reset(); // reports leaks
    return good_;
  }

  // From now on calls may fail: an op that does is not done, and the program
  // goes on with what it has.
  void expectErrors(bool expects) { expects_errors_ = expects; }
  std::uint64_t errors() const { return errors_; }

  support::EmulatedRuntime& device() { return *device_; }
  Pager& pager() { return *pager_; }
  const std::vector<std::string>& misuses() const { return misuses_; }
  const std::string& error() const { return error_; }

 private:
  struct Tensor {
    Block* block;
    std::uint64_t seed;   // of its bytes
    std::uint64_t stream; // the one that uses it
  };

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  Tensor& any() { return tensors_[below(tensors_.size())]; }

  // False: it failed.
  bool must(const runtime::Error& error) {
    if (error.ok()) return true;
    ++errors_;
    const bool excused =
        expects_errors_ && error.code() != runtime::ErrorCode::kLost;
    if (!excused) good_ = false;
    error_ = error.message();
    return false;
  }

  void step() {
    while (tensors_.size() > 80) releaseOne();
    switch (tensors_.size() < 24 ? 0 : below(16)) {
      case 0:
      case 1:
        create();
        break;
      case 2:
      case 3:
        releaseOne();
        break;
      case 4:
        must(pager_->evict(*any().block));
        break;
      case 5:
        if (below(16) == 0) must(pager_->evictAll());
        break;
      case 6:
        if (below(4) == 0) read(any());
        break;
      case 7:
        if (below(16) == 0) {
          (void)pager_->budgets()
              .setHbmBudget(kBudget - below(kBudget / 2))
              .ok();
        }
        break;
      case 8:
        follow(any(), below(3));
        break;
      default:
        op();
        break;
    }
  }

  void create() {
    auto block = pager_->createBlock(1 + below(kLargest));
    if (!block.ok()) {
      must(block.takeError());
      return;
    }
    tensors_.push_back({*block, 0, below(3)});
    if (write(tensors_.back())) return;
    pager_->release(*block);
    tensors_.pop_back();
  }

  void releaseOne() {
    const std::size_t index = below(tensors_.size());
    pager_->release(tensors_[index].block);
    tensors_[index] = tensors_.back();
    tensors_.pop_back();
  }

  // From now on another stream uses the tensor, as a user has it who knows.
  void follow(Tensor& tensor, std::uint64_t stream) {
    auto event = device_->record({tensor.stream});
    if (!event.ok()) {
      must(event.takeError());
      return;
    }
    const bool ordered = must(device_->wait({stream}, *event));
    device_->destroy(*event);
    if (ordered) tensor.stream = stream;
  }

  // A kernel that reads some tensors of its stream, and writes one of them or
  // a new one, perhaps by way of a workspace.
  void op() {
    Tensor& first = any();
    const std::uint64_t stream = first.stream;
    std::vector<Tensor*> inputs{&first};
    std::vector<Operand> operands{{first.block, Access::kRead}};
    for (int i = 0; i < 2; ++i) {
      Tensor& other = any();
      if (other.stream != stream) continue;
      inputs.push_back(&other);
      operands.push_back({other.block, Access::kRead});
    }
    Tensor& last = any();
    const bool in_place = below(2) == 0 && last.stream == stream;
    if (in_place) operands.push_back({last.block, Access::kWrite});
    const std::size_t output_bytes = in_place ? 0 : 1 + below(kLargest);
    const std::size_t work_bytes = below(3) == 0 ? 1 + below(kLargest) : 0;
    const std::uint64_t seed = random_();

    Call call;
    OpMemory& memory = memory_[in_place ? 0 : 1];
    for (;;) {
      if (!must(pager_->begin(call, {stream}, operands, &memory, "op",
                              !in_place))) {
        return;
      }
      std::vector<runtime::ByteRange> reads;
      std::vector<std::uint64_t> seeds;
      for (const Tensor* input : inputs) {
        reads.push_back({input->block->device_address, input->block->bytes});
        seeds.push_back(input->seed);
      }
      std::vector<runtime::ByteRange> writes;
      std::byte* work = nullptr;
      std::byte* output = nullptr;
      bool enough = true;
      if (work_bytes > 0) enough = allocate(call, work_bytes, work, writes);
      if (enough && output_bytes > 0) {
        enough = allocate(call, output_bytes, output, writes);
      }
      if (in_place) {
        writes.push_back({last.block->device_address, last.block->bytes});
      }
      if (enough) launch(stream, reads, std::move(seeds), writes, seed);
      if (work != nullptr) pager_->free(&call, work);
      Block* made = nullptr;
      if (enough && output != nullptr) {
        made = pager_->adopt(call, output, output_bytes).value();
      } else if (output != nullptr) {
        pager_->free(&call, output);
      }
      pager_->end(call);
      if (in_place && enough) last.seed = seed;
      if (made != nullptr) tensors_.push_back({made, seed, stream});
      if (enough) return;
      if (!call.worthRetrying()) {
        must(std::move(no_room_));
        return;
      }
    }
  }

  bool write(Tensor& tensor) {
    const std::uint64_t seed = random_();
    const Operand operand{tensor.block, Access::kWrite};
    Call call;
    if (!must(pager_->begin(call, {tensor.stream}, {&operand, 1}, nullptr,
                            "fill", false))) {
      return false;
    }
    launch(tensor.stream, {}, {},
           {{tensor.block->device_address, tensor.block->bytes}}, seed);
    pager_->end(call);
    tensor.seed = seed;
    return true;
  }

  void read(const Tensor& tensor) {
    if (!keeps_buffers_) buffers_.clear();
    std::vector<std::byte>& bytes = buffers_.emplace_back(tensor.block->bytes);
    if (must(pager_->read(*tensor.block, 0, bytes.data(), bytes.size(),
                          {tensor.stream})) &&
        !holds(bytes.data(), bytes.size(), tensor.seed)) {
      must({runtime::ErrorCode::kLost, "a tensor has other bytes"});
    }
  }

  bool allocate(Call& call, std::size_t bytes, std::byte*& address,
                std::vector<runtime::ByteRange>& writes) {
    auto result = pager_->allocate(call, bytes);
    if (!result.ok()) {
      no_room_ = result.takeError();
      return false;
    }
    address = *result;
    writes.push_back({address, bytes});
    return true;
  }

  void launch(std::uint64_t stream,
              const std::vector<runtime::ByteRange>& reads,
              std::vector<std::uint64_t> seeds,
              const std::vector<runtime::ByteRange>& writes,
              std::uint64_t seed) {
    device_->launch(
        {stream}, reads, writes,
        [this, reads, seeds = std::move(seeds), writes, seed] {
          for (std::size_t i = 0; i < reads.size(); ++i) {
            wrong_kernels_ += !holds(reads[i].begin, reads[i].bytes, seeds[i]);
          }
          for (const runtime::ByteRange range : writes) {
            fill(const_cast<std::byte*>(range.begin), range.bytes, seed);
          }
        });
  }

  std::mt19937_64 random_;
  std::vector<std::string> misuses_;
  std::uint64_t wrong_kernels_ = 0;
  // Where reads go. With a mistake they may be under way for ever.
  const bool keeps_buffers_;
  std::deque<std::vector<std::byte>> buffers_;
  std::unique_ptr<support::EmulatedRuntime> device_;
  std::unique_ptr<Pager> pager_;
  std::vector<Tensor> tensors_;
  OpMemory memory_[2];
  runtime::Error no_room_; // of the last kernel that had none
  bool good_ = true;
  bool expects_errors_ = false;
  std::uint64_t errors_ = 0;
  std::string error_;
};

} // namespace chameleon::memory
