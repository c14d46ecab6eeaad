#include "kernels/redirect.h"

#include <map>
#include <memory>

#include <ATen/core/boxing/KernelFunction.h>
#include <torch/library.h>

#include "kernels/direct_ops.h"
#include "kernels/lists/deferred_lists.h"
#include "kernels/lists/list_ops.h"
#include "kernels/op_call.h"
#include "kernels/op_set.h"
#include "kernels/op_traits.h"

namespace chameleon::kernels {
namespace {

// Native's list ops count a version of each tensor that they write, and an
// inference tensor has none. Here that is known before the first is written.
void refuse_inference_tensors(const OpTraits& traits,
                              const torch::jit::Stack& stack) {
  if (c10::impl::tls_is_dispatch_key_excluded(
          c10::DispatchKey::ADInplaceOrView)) {
    return; // in inference mode, or whoever excluded it has counted
  }
  const std::size_t first = stack.size() - traits.argument_count;
  for (const ArgumentTraits& argument : traits.arguments) {
    const c10::IValue& value = stack[first + argument.index];
    if (!argument.writes || !value.isTensorList()) continue;
    for (const c10::IValue& element : value.toListRef()) {
      c10::TensorImpl& tensor = *element.unsafeToTensorImpl();
      if (tensor.is_inference()) tensor.bump_version(); // raises
    }
  }
}

void run(const OpTraits& traits, const c10::OperatorHandle& op,
         torch::jit::Stack* stack) {
  if (traits.counts_versions) refuse_inference_tensors(traits, *stack);
  if (traits.is_list_op && (defer_list_op(traits, op, *stack) ||
                            run_in_chunks(traits, op, *stack))) {
    return;
  }
  call_native(traits, op, stack);
}

// The boxed kernel of one op: its traits and nothing else.
class Redirect final : public c10::OperatorKernel {
 public:
  explicit Redirect(const OpTraits* traits) : traits_(traits) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                  torch::jit::Stack* stack) {
    run(*traits_, op, stack);
  }

 private:
  const OpTraits* traits_;
};

// Direct kernels adopt dense results.
bool returns_other_layout(const std::string& name) {
  return name.starts_with("aten::_nested_") ||
         name.starts_with("aten::_to_sparse");
}

std::vector<std::string>& names() {
  static auto* list = new std::vector<std::string>;
  return *list;
}

} // namespace

void register_redirects() {
  // One library a namespace; leaked, since registrations live in it.
  static auto* libraries =
      new std::map<std::string, std::unique_ptr<torch::Library>>;
  for (const c10::OperatorHandle& op : collect_op_set()) {
    const c10::OperatorName& name = op.operator_name();
    const std::string space = name.name.substr(0, name.name.find("::"));
    std::unique_ptr<torch::Library>& library = (*libraries)[space];
    if (!library) {
      library = std::make_unique<torch::Library>(torch::Library::IMPL, space,
                                                 c10::DispatchKey::PrivateUse1,
                                                 __FILE__, __LINE__);
    }
    const std::string text = c10::toString(name);
    const auto* traits = new OpTraits(op); // leaked, as the libraries are
    auto general =
        c10::BoxedKernel::makeFromFunctor(std::make_unique<Redirect>(traits));
    if (returns_other_layout(text) ||
        !register_direct(*library, text.c_str(), op, traits, general)) {
      library->impl(text.c_str(),
                    torch::CppFunction::makeFromBoxedKernel(general));
    }
    names().push_back(text);
  }
}

const std::vector<std::string>& redirected_ops() { return names(); }

} // namespace chameleon::kernels
