#include "backend/torch/generator.h"

#include <array>
#include <mutex>
#include <optional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/GeneratorImpl.h>

#include "backend/runtime/options.h"
#include "backend/torch/device.h"
#include "backend/torch/native_cuda.h"

namespace chameleon::backend {
namespace {

// The target's default generator is found when it is first needed: seeding is
// no use of the device. Until then what is seeded is the CPU's, which is the
// target unless CUDA is; if it is, the latest seed is handed on.
class Generator final : public c10::GeneratorImpl {
 public:
  // `inner`: undefined for a default generator.
  Generator(c10::DeviceIndex index, at::Generator inner)
      : GeneratorImpl(c10::Device(kChameleon, index),
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner_(std::move(inner)) {}

  void set_current_seed(uint64_t seed) override {
    if (inner_.defined() || is_used() || native_cuda() == nullptr) {
      return inner().set_current_seed(seed);
    }
    pending_seed_ = seed;
    if (runtime::option_text("physical_device") != "cuda") {
      at::Generator cpu = at::detail::getDefaultCPUGenerator();
      cpu.set_current_seed(seed);
    }
  }
  // The CPU's have no offset, and torch asks every device but the CPU for one
  // when it copies or pickles a generator.
  void set_offset(uint64_t offset) override {
    if (offset != 0 || !inner().device().is_cpu()) inner().set_offset(offset);
  }
  uint64_t get_offset() const override {
    return inner().device().is_cpu() ? 0 : inner().get_offset();
  }
  uint64_t current_seed() const override {
    return pending_seed_ && !is_used() ? *pending_seed_
                                       : inner().current_seed();
  }
  uint64_t seed() override { return inner().seed(); }
  void set_state(const c10::TensorImpl& state) override {
    inner().unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner().unsafeGetGeneratorImpl()->get_state();
  }
  // A use of the device if that is on CUDA.
  at::Generator& inner() const {
    if (inner_.defined()) return inner_;
    const bool on_cuda = targets_cuda("its random state");
    const std::lock_guard lock(mutex_);
    if (inner_.defined()) return inner_;
    if (!on_cuda) {
      // One per process, so the devices share it; not kept before the target
      // is known.
      static auto* const cpu =
          new at::Generator(at::detail::getDefaultCPUGenerator());
      return *cpu;
    }
    inner_ =
        at::globalContext().defaultGenerator(target_device(device().index()));
    if (pending_seed_) inner_.set_current_seed(*pending_seed_);
    return inner_;
  }

 private:
  GeneratorImpl* clone_impl() const override {
    return new Generator(device().index(), inner().clone());
  }
  mutable std::mutex mutex_; // what inner_ becomes
  mutable at::Generator inner_;
  std::optional<uint64_t> pending_seed_;
};

} // namespace

const at::Generator& default_generator(c10::DeviceIndex index) {
  static const auto* generators = [] {
    auto* made = new std::array<at::Generator, kMaxDevices>;
    for (std::size_t i = 0; i < made->size(); ++i) {
      (*made)[i] = at::make_generator<Generator>(
          static_cast<c10::DeviceIndex>(i), at::Generator());
    }
    return made;
  }();
  return (*generators)[static_cast<std::size_t>(resolve_index(index))];
}

void hand_on_seed(c10::DeviceIndex index) {
  static_cast<Generator*>(default_generator(index).unsafeGetGeneratorImpl())
      ->inner();
}

at::Generator new_generator(c10::DeviceIndex index) {
  index = resolve_index(index);
  return at::make_generator<Generator>(
      index, targets_cuda("a generator")
                 ? at::globalContext()
                       .getAcceleratorHooksInterface(c10::DeviceType::CUDA)
                       .getNewGenerator(index)
                 : at::detail::createCPUGenerator());
}

at::Generator generator_in_state(const at::Generator& outer,
                                 const at::Tensor& state) {
  at::Generator inner = inner_generator(outer).clone();
  inner.set_state(state);
  return at::make_generator<Generator>(outer.device().index(),
                                       std::move(inner));
}

at::Generator inner_generator(const at::Generator& outer) {
  TORCH_CHECK(outer.device().type() == kChameleon,
              "Expected a 'chameleon' device type for generator but found '",
              outer.device().type(), "'");
  return static_cast<Generator*>(outer.unsafeGetGeneratorImpl())->inner();
}

} // namespace chameleon::backend
