"""Ops of a C++ extension that is compiled here and loaded after the import.

Each op is of a kind that reaches the device in a way of its own.
"""

import shutil

import pytest
import torch
from support import evicting, same_bits

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("c++") is None, reason="needs a compiler"),
]

SOURCE = """
#include <torch/library.h>
#include <torch/torch.h>

namespace {

using at::Tensor;

// A kernel for one device, which reads at addresses.
Tensor raw_sin(const Tensor& x) {
  TORCH_CHECK(x.is_cpu(), "raw_sin wants the CPU");
  Tensor dense = x.contiguous();
  Tensor y = at::empty_like(dense);
  for (int64_t i = 0; i < x.numel(); ++i) {
    y.mutable_data_ptr<float>()[i] = std::sin(dense.const_data_ptr<float>()[i]);
  }
  return y;
}

void raw_add_(Tensor& x, at::TensorList others) {
  for (const Tensor& other : others) {
    for (int64_t i = 0; i < x.numel(); ++i) {
      x.mutable_data_ptr<float>()[i] += other.const_data_ptr<float>()[i];
    }
  }
}

// Device-agnostic, beside a kernel for the CPU.
Tensor agnostic_both(const Tensor& x) { return x.sin(); }
Tensor cpu_both(const Tensor& x) { return raw_sin(x) + 1; }

Tensor decomposed(const Tensor& x, double k) { return x.sin() * k; }

Tensor middle(const Tensor& x) { return x.narrow(0, 1, x.size(0) - 2); }

std::tuple<Tensor, std::vector<Tensor>, int64_t> several(
    const Tensor& x, std::optional<Tensor> y, int64_t n) {
  return {y ? x + *y : x.clone(), x.chunk(n), n};
}

struct Squared : torch::autograd::Function<Squared> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, Tensor x) {
    ctx->save_for_backward({x});
    at::AutoDispatchBelowADInplaceOrView below;
    static auto op = c10::Dispatcher::singleton()
                         .findSchemaOrThrow("chameleon_cpp_test::squared", "")
                         .typed<Tensor(const Tensor&)>();
    return op.call(x);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list gradients) {
    return {gradients[0] * 2 * ctx->get_saved_variables()[0]};
  }
};
Tensor squared_autograd(const Tensor& x) { return Squared::apply(x); }
Tensor squared_cpu(const Tensor& x) { return x * x; }

Tensor noise(const Tensor& x, std::optional<at::Generator> g) {
  return at::empty_like(x).normal_(0, 1, g);
}

} // namespace

TORCH_LIBRARY(chameleon_cpp_test, m) {
  m.def("raw_sin(Tensor x) -> Tensor");
  m.def("raw_add_(Tensor(a!) x, Tensor[] others) -> ()");
  m.def("both(Tensor x) -> Tensor");
  m.def("decomposed(Tensor x, float k) -> Tensor", decomposed);
  m.def("middle(Tensor(a) x) -> Tensor(a)");
  m.def("several(Tensor x, Tensor? y, int n) -> (Tensor, Tensor[], int)");
  m.def("squared(Tensor x) -> Tensor");
  m.def("noise(Tensor x, Generator? g=None) -> Tensor");
  m.impl("both", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                 TORCH_FN(agnostic_both)));
}
TORCH_LIBRARY_IMPL(chameleon_cpp_test, CPU, m) {
  m.impl("raw_sin", raw_sin);
  m.impl("raw_add_", raw_add_);
  m.impl("both", cpu_both);
  m.impl("middle", middle);
  m.impl("several", several);
  m.impl("squared", squared_cpu);
  m.impl("noise", noise);
}
TORCH_LIBRARY_IMPL(chameleon_cpp_test, Autograd, m) {
  m.impl("squared", squared_autograd);
}
"""


@pytest.fixture(scope="module")
def ops(tmp_path_factory):
    from torch.utils.cpp_extension import load_inline

    load_inline(
        "chameleon_cpp_test",
        SOURCE,
        is_python_module=False,
        build_directory=str(tmp_path_factory.mktemp("extension")),
    )
    return torch.ops.chameleon_cpp_test


def draw(device, *shape):
    draws = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=draws).to(device)


def with_gradient(call):
    def run(ops, device):
        x = draw(device, 4, 3).requires_grad_()
        y = call(ops, x)
        return y, *torch.autograd.grad(y.square().sum(), x)

    return run


def in_place(ops, device):
    x, y = draw(device, 4), draw(device, 4) * 2
    ops.raw_add_(x, [y, y])
    return [x]


def view(ops, device):
    x = draw(device, 5, 2)
    y = ops.middle(x)
    assert y._base is x
    y.zero_()
    assert x._version == 1
    return x, y


def several(ops, device):
    x = draw(device, 6)
    first, parts, n = ops.several(x, None, 3)
    assert n == 3
    parts[0].zero_()  # chunks of x itself, which the schema does not say
    second, _, _ = ops.several(x, x, 2)
    return first, second, x


def noise(ops, device):
    generator = torch.Generator(device).manual_seed(3)
    torch.manual_seed(4)
    x = draw(device, 4)
    return ops.noise(x, generator), ops.noise(x)


CALLS = {
    "raw_sin": lambda ops, device: [ops.raw_sin(draw(device, 3, 4).t())],
    "in place": in_place,
    "both": lambda ops, device: [ops.both(draw(device, 4))],
    "decomposed": with_gradient(lambda ops, x: ops.decomposed(x, 3.0)),
    "squared": with_gradient(lambda ops, x: ops.squared(x)),
    "view": view,
    "several": several,
    "noise": noise,
}


@pytest.mark.parametrize("mode", ["never", "all"])
@pytest.mark.parametrize("name", CALLS)
def test_bits(ops, name, mode):
    native = CALLS[name](ops, "cpu")
    with evicting(mode):
        ours = CALLS[name](ops, "chameleon")
    for one, other in zip(native, ours, strict=True):
        assert other.is_chameleon
        assert other.stride() == one.stride()
        assert same_bits(one, other)
