"""torch.nn.utils: clipping, parametrizations, pruning, packed sequences."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations, parametrize, prune, rnn

from conformance.harness.pagers import PAGERS
from conformance.harness.suite import Suite


def net(device):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)
    ).to(device)


def inputs(device):
    torch.manual_seed(1)
    return torch.randn(5, 2, 8).to(device)


def gradients(device):
    made = net(device)
    made(inputs(device)).square().sum().backward()
    return list(made.parameters())


def clip_norms(device):
    left = []
    for norm in (1.0, 2.0, 0.5, float("inf")):
        for foreach in (True, False):
            parameters = gradients(device)
            total = utils.clip_grad_norm_(
                parameters, 0.3, norm_type=norm, foreach=foreach
            )
            left.append((total, [p.grad for p in parameters]))
    return left


def clip_norm_refuses_what_is_not_finite(device):
    parameters = gradients(device)
    parameters[0].grad[0, 0, 0] = float("nan")
    return utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)


def total_norm_apart(device):
    parameters = gradients(device)
    grads = [p.grad for p in parameters]
    total = utils.get_total_norm(grads, foreach=True)
    utils.clip_grads_with_norm_(parameters, 0.1, total, foreach=True)
    return total, grads


def clip_values(device):
    left = []
    for foreach in (True, False):
        parameters = gradients(device)
        utils.clip_grad_value_(parameters, 0.05, foreach=foreach)
        left.append([p.grad for p in parameters])
    return left


def vectors(device):
    made = net(device)
    flat = utils.parameters_to_vector(made.parameters())
    utils.vector_to_parameters(flat * 2, made.parameters())
    return flat, list(made.parameters())


class Symmetric(nn.Module):
    """The upper triangle decides."""

    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)

    def right_inverse(self, x):
        return x.triu()


def trained(device, made, x, steps=3):
    optimizer = torch.optim.SGD(made.parameters(), 0.1, foreach=True)
    for _ in range(steps):
        optimizer.zero_grad()
        made(x).square().sum().backward()
        optimizer.step()
    return made(x), dict(made.state_dict())


def parametrized(device):
    torch.manual_seed(0)
    made = nn.Linear(4, 4).to(device)
    parametrize.register_parametrization(made, "weight", Symmetric())
    x = torch.randn(3, 4).to(device)
    left = trained(device, made, x)
    with parametrize.cached():
        same = made.weight is made.weight
    made.weight = torch.ones(4, 4, device=device)
    parametrize.remove_parametrizations(made, "weight")
    return left, same, list(made.parameters())


def weight_norms(device):
    torch.manual_seed(0)
    x = torch.randn(3, 4).to(device)
    left = []
    for dim in (0, 1, None):
        made = parametrizations.weight_norm(nn.Linear(4, 5).to(device), dim=dim)
        left.append(trained(device, made, x))
    with pytest.warns(FutureWarning):
        old = utils.weight_norm(nn.Linear(4, 5).to(device))
    left.append(trained(device, old, x))
    utils.remove_weight_norm(old)
    return left, list(old.parameters())


def spectral_norms(device):
    torch.manual_seed(0)
    x = torch.randn(3, 4).to(device)
    new = parametrizations.spectral_norm(nn.Linear(4, 5).to(device))
    old = utils.spectral_norm(nn.Linear(4, 5).to(device), n_power_iterations=2)
    left = trained(device, new, x), trained(device, old, x)
    utils.remove_spectral_norm(old)
    return left, new.eval()(x), list(old.parameters())


def orthogonal(device):
    torch.manual_seed(0)
    x = torch.randn(3, 4).to(device)
    left = []
    for name in ("matrix_exp", "cayley", "householder"):
        made = parametrizations.orthogonal(
            nn.Linear(4, 4).to(device), orthogonal_map=name
        )
        left.append(trained(device, made, x))
    return left


def pruned(device):
    torch.manual_seed(0)
    made = nn.Linear(6, 4).to(device)
    prune.l1_unstructured(made, "weight", amount=0.3)
    prune.random_unstructured(made, "bias", amount=2)
    prune.ln_structured(made, "weight", amount=1, n=2, dim=0)
    prune.random_structured(made, "weight", amount=1, dim=1)
    x = torch.randn(3, 6).to(device)
    left = trained(device, made, x)
    prune.remove(made, "weight")
    other = nn.Linear(6, 4).to(device)
    prune.custom_from_mask(other, "weight", torch.eye(4, 6).to(device))
    twins = [nn.Linear(3, 3).to(device) for _ in range(2)]
    prune.global_unstructured(
        [(twin, "weight") for twin in twins],
        pruning_method=prune.L1Unstructured,
        amount=5,
    )
    return (
        left,
        list(made.parameters()),
        other.weight,
        [twin.weight for twin in twins],
    )


def packed_sequences(device):
    torch.manual_seed(0)
    sequences = [torch.randn(n, 3).to(device) for n in (2, 5, 3)]
    padded = rnn.pad_sequence(sequences, batch_first=True, padding_value=-1)
    lengths = torch.tensor([2, 5, 3])
    packed = rnn.pack_padded_sequence(
        padded, lengths, batch_first=True, enforce_sorted=False
    )
    other = rnn.pack_sequence(sequences, enforce_sorted=False)
    back, sizes = rnn.pad_packed_sequence(packed, total_length=7)
    return (
        padded,
        tuple(packed),
        tuple(other),
        back,
        sizes,
        rnn.unpad_sequence(padded, lengths, batch_first=True),
        rnn.unpack_sequence(other),
        tuple(packed.double()),
        packed.is_cuda,
        str(packed.data.device),
    )


def packed_through_layers(device):
    torch.manual_seed(0)
    made = nn.LSTM(3, 4, 2, bidirectional=True).to(device)
    sequences = [
        torch.randn(n, 3).to(device).requires_grad_() for n in (2, 5, 3)
    ]
    packed = rnn.pack_sequence(sequences, enforce_sorted=False)
    result, (h, c) = made(packed)
    data, lengths = rnn.pad_packed_sequence(result)
    data.square().sum().backward()
    return data, lengths, h, c, [s.grad for s in sequences]


def packed_to_the_device(device):
    """A packed sequence moves whole; its lengths stay on the CPU."""
    packed = rnn.pack_sequence(
        [torch.ones(2, 3), torch.ones(4, 3)], enforce_sorted=False
    ).to(device)
    back = packed.to("cpu")
    return (
        packed.data,
        packed.batch_sizes,
        packed.sorted_indices.clone(),
        packed.unsorted_indices.clone(),
        torch.equal(back.data, packed.data.cpu()),
    )


def fused_layers(device):
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
    norm.running_mean.uniform_()
    conv, norm = conv.to(device).eval(), norm.to(device).eval()
    fused = utils.fuse_conv_bn_eval(conv, norm)
    x = torch.randn(1, 2, 5, 5).to(device)
    return fused(x), norm(conv(x)), list(fused.parameters())


def skipped_initialisation(device):
    made = utils.skip_init(nn.Linear, 3, 4, device=device)
    return made.weight.shape, str(made.weight.device)


def copies_and_averages(device):
    """Deep copies, state dicts and averaged models."""
    made = net(device)
    average = torch.optim.swa_utils.AveragedModel(made)
    moving = torch.optim.swa_utils.AveragedModel(
        made, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2)
    average.update_parameters(made)
    moving.update_parameters(made)
    twin = copy.deepcopy(made)
    twin.load_state_dict(average.module.state_dict())
    return (
        list(average.parameters()),
        list(moving.parameters()),
        list(twin.parameters()),
    )


CASES = [
    clip_norms,
    clip_norm_refuses_what_is_not_finite,
    total_norm_apart,
    clip_values,
    vectors,
    parametrized,
    weight_norms,
    spectral_norms,
    orthogonal,
    pruned,
    packed_sequences,
    packed_through_layers,
    packed_to_the_device,
    fused_layers,
    skipped_initialisation,
    copies_and_averages,
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pager", PAGERS)
def test_case(case, pager):
    suite = Suite("nn.utils")
    suite.case(case.__name__, "run", torch.float32, [case], [pager])
    suite.verify()
