#include "backend/torch/generator.h"

#include <array>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GeneratorImpl.h>

#include "backend/torch/device.h"

namespace chameleon::backend {
namespace {

class Generator final : public c10::GeneratorImpl {
 public:
  Generator(c10::DeviceIndex index, at::Generator inner)
      : GeneratorImpl(c10::Device(kChameleon, index),
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner_(std::move(inner)) {}

  void set_current_seed(uint64_t seed) override {
    inner_.set_current_seed(seed);
  }
  // The CPU's have no offset, and torch asks every device but the CPU for one
  // when it copies or pickles a generator.
  void set_offset(uint64_t offset) override {
    if (offset != 0 || !inner_.device().is_cpu()) inner_.set_offset(offset);
  }
  uint64_t get_offset() const override {
    return inner_.device().is_cpu() ? 0 : inner_.get_offset();
  }
  uint64_t current_seed() const override { return inner_.current_seed(); }
  uint64_t seed() override { return inner_.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    inner_.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner_.unsafeGetGeneratorImpl()->get_state();
  }
  const at::Generator& inner() const { return inner_; }

 private:
  GeneratorImpl* clone_impl() const override {
    return new Generator(device().index(), inner_.clone());
  }
  at::Generator inner_;
};

} // namespace

const at::Generator& default_generator(c10::DeviceIndex index) {
  // CPU's default generator is one per process, so one device shares it.
  static const auto* generator = new at::Generator(
      at::make_generator<Generator>(0, at::detail::getDefaultCPUGenerator()));
  resolve_index(index);
  return *generator;
}

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<Generator>(resolve_index(index),
                                       at::detail::createCPUGenerator());
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
