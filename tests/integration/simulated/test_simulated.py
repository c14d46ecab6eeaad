"""physical_device = "simulated": whole programs without data."""

import ast
import json
import shutil

import pytest
import simulated_process


@pytest.fixture(scope="module")
def simulated():
    """One process for all tests; `apart` gives each call its own."""
    with simulated_process.one_for_all() as run:
        yield run


@pytest.fixture
def apart(fresh):
    return simulated_process.one_for_each(fresh)


# ---- time ------------------------------------------------------------------


def test_a_product_takes_its_roofline_time(simulated):
    # 2 * 4096^3 / 700e12 s and 3 us to launch; the sum of 2^24 elements reads
    # 2^25 bytes at 4e12.
    printed = simulated("""
a = torch.empty(4096, 4096, dtype=torch.bfloat16, device="chameleon")
print(timed(lambda: a @ a), timed(lambda: torch.sum(a)))
""")
    product, total = map(float, printed[0].split())
    assert product == pytest.approx(1e3 * 2 * 4096**3 / 700e12 + 3e-3, abs=1e-6)
    assert total == pytest.approx(1e3 * (2**25 + 2) / 4e12 + 3e-3, abs=1e-6)


def test_the_profile_decides(apart):
    printed = apart("""
config.simulated_gpu = dict(base="rtx4090", memory="48GiB", name="mine",
    launch_ns=0, fp16=320e12, compute_fraction=1, flash_attention=False)
a = torch.empty(4096, 4096, dtype=torch.float16, device="chameleon")
print(timed(lambda: a @ a))
print(swap_stats()["hbm_budget"] >> 30, swap_stats()["host_budget"])
print(torch.chameleon.get_device_name())
""")
    expected = 1e3 * 2 * 4096**3 / 320e12
    assert float(printed[0]) == pytest.approx(expected, abs=1e-6)
    assert printed[1] == f"48 {(64 << 30) // 100 * 80}"
    assert printed[2].startswith("Chameleon (simulated base=rtx4090, memory=")


def test_tf32_follows_the_users_setting(simulated):
    printed = simulated("""
a = torch.empty(4096, 4096, device="chameleon")
print(timed(lambda: a @ a))
torch.backends.cuda.matmul.allow_tf32 = True
print(timed(lambda: a @ a))
torch.backends.cuda.matmul.allow_tf32 = False
""")
    fp32, tf32 = ((float(line) - 3e-3) for line in printed)
    assert fp32 / tf32 == pytest.approx(494.7 / 66.9, rel=1e-3)


def test_profile_is_fixed_at_first_use(apart):
    printed = apart("""
for value in (dict(memory="1GiB"), dict(base="h200", memroy="1GiB"), "h300"):
    try: config.simulated_gpu = value
    except ValueError as error: print(error)
torch.empty(1, device="chameleon")
try: config.simulated_gpu = "h100"
except ValueError as error: print(error)
print(config.simulated_gpu)
""")
    assert printed[0].startswith(
        'simulated_gpu = "memory=1GiB": missing: host_memory, hbm_bandwidth'
    )
    assert printed[1].startswith(
        'simulated_gpu = "base=h200, memroy=1GiB": there is no figure "memroy"'
    )
    assert printed[2].startswith('simulated_gpu = "h300": must be one of h200')
    assert printed[3].startswith(
        'simulated_gpu = "h100": it was fixed as "h200" when the device was '
        "first used"
    )
    assert printed[4] == "h200"


def test_events_need_to_have_passed(simulated):
    printed = simulated("""
start, end = (torch.Event("chameleon", enable_timing=True) for _ in "12")
start.record()
torch.empty(1 << 30, device="chameleon").zero_()
end.record()
print(end.query())
try: start.elapsed_time(end)
except RuntimeError as error: print(str(error).splitlines()[0])
end.synchronize()
print(end.query(), start.elapsed_time(end))
""")
    assert printed[0] == "False"
    assert printed[1].startswith("Both events must be completed")
    expected = 1e3 * 2**32 / 4e12 + 3e-3
    passed, elapsed = printed[2].split()
    assert passed == "True"
    assert float(elapsed) == pytest.approx(expected, abs=1e-6)


# ---- whole programs --------------------------------------------------------

_SMALL = """
from llama import Llama
torch.set_default_dtype(torch.bfloat16)
with torch.device("chameleon"):
    model = Llama(4, 256, 4, 704, 1000)
    tokens = torch.randint(0, 1000, (4, 256))
optimizer = torch.optim.AdamW(model.parameters(), fused=FUSED)
def step():
    model(tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
times = [timed(step) for _ in range(2)]
peak = swap_stats()["peak_resident_bytes"]
config.hbm_budget = peak // 2
torch.chameleon.synchronize()
torch_chameleon.reset_swap_stats()
times += [timed(step) for _ in range(3)]
print(times)
print(swap_stats())
"""


@pytest.mark.parametrize(
    "fused", ["True", pytest.param("False", marks=pytest.mark.slow)]
)
def test_a_training_is_the_same_every_time(apart, fused):
    code = _SMALL.replace("FUSED", fused)
    first = apart(code)
    assert apart(code) == first
    times = ast.literal_eval(first[0])
    stats = ast.literal_eval(first[1])
    assert times[1] < times[2]  # half the memory: copies
    assert stats["bytes_in"] > 0
    assert stats["bytes_out"] > 0
    assert stats["stall_ns"] > 0
    assert stats["peak_resident_bytes"] <= stats["hbm_budget"]
    # What the device did is what the clock says, to the nanosecond of each.
    busy = stats["compute_ns"] + stats["stall_ns"]
    assert busy == pytest.approx(1e6 * sum(times[2:]), rel=1e-3)


@pytest.mark.parametrize(
    "make",
    [
        "torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True)",
        "torch.optim.SGD(p, lr=0.1, momentum=0.9)",
        "torch.optim.Adam(p, fused=True)",
        "torch.optim.Adam(p, foreach=False, amsgrad=True)",
        "torch.optim.AdamW(p, foreach=True)",
        "torch.optim.Adagrad(p, fused=False)",
        "torch.optim.Adafactor(p)",
        "torch.optim.LBFGS(p, max_iter=2)",
    ],
)
def test_optimizers(simulated, make):
    printed = simulated(f"""
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1),
    nn.Flatten(), nn.Linear(8 * 36, 10)).to("chameleon")
p = model.parameters()
optimizer = {make}
x = torch.randn(4, 3, 8, 8, device="chameleon")
y = torch.zeros(4, dtype=torch.long, device="chameleon")
def loss():
    optimizer.zero_grad()
    value = nn.functional.cross_entropy(model(x), y)
    value.backward()
    return value
for _ in range(2): optimizer.step(loss)
print(loss().item(), {{v.device.type for v in model.parameters()}})
""")
    assert printed[-1] == "0.0 {'chameleon'}"


def test_grad_scaler_autocast_clipping_and_checkpoint(simulated):
    printed = simulated("""
from torch.utils.checkpoint import checkpoint
model = nn.Linear(16, 16, device="chameleon")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("chameleon")
for _ in range(2):
    with torch.autocast("chameleon", dtype=torch.float16):
        x = torch.randn(4, 16, device="chameleon", requires_grad=True)
        out = checkpoint(model, x, use_reentrant=False)
    scaler.scale(out.float().sum()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
print(out.dtype, model.weight.grad.device)
""")
    assert printed == ["torch.float16 chameleon:0"]


# ---- kernels ---------------------------------------------------------------


def test_attention_is_the_profiles(simulated, apart):
    # Flash keeps the layout of its query, the efficient kernel makes
    # (batch, length, heads, size); mathematics holds the scores.
    code = """
def run(**options):
    q = torch.empty(2, 4, 128, 64, device="chameleon",
                    dtype=options.pop("dtype"), requires_grad=True)
    out = nn.functional.scaled_dot_product_attention(q, q, q, **options)
    out.sum().backward()
    print(out.grad_fn.name()[:25], out.stride(1) == 64, q.grad.shape == q.shape)
mask = torch.ones(128, 128, dtype=torch.bool, device="chameleon")
run(dtype=torch.bfloat16, is_causal=True)
run(dtype=torch.bfloat16, attn_mask=mask)
run(dtype=torch.float32)
run(dtype=torch.float64)
"""
    fused = "ScaledDotProductFusedAtte"
    assert simulated(code) == [
        f"{fused} False True",
        f"{fused} True True",
        f"{fused} True True",
        "UnsafeViewBackward0 False True",
    ]
    base = 'config.simulated_gpu = dict(base="h200", {}=0)'
    only_efficient = apart(base.format("flash_attention") + code)
    assert only_efficient[0] == f"{fused} True True"


def test_attention_backward_has_its_workspace(simulated):
    # Gradients of query in float, a float a row, in blocks of 128 rows.
    printed = simulated("""
q = torch.empty(2, 4, 256, 64, device="chameleon", dtype=torch.bfloat16,
                requires_grad=True)
out = nn.functional.scaled_dot_product_attention(q, q, q)
gradient = torch.empty_like(out)
torch.chameleon.synchronize()
torch_chameleon.reset_swap_stats()
before = swap_stats()["resident_bytes"]
torch.autograd.grad(out, q, gradient)
print(swap_stats()["peak_resident_bytes"] - before)
""")
    tensor = 2 * 4 * 256 * 64
    workspace = 2 * 4 * 256 * (64 + 1) * 4
    # `gradient` and three results of 2 bytes an element, then the workspace.
    assert int(printed[0]) == 4 * 2 * tensor + workspace


def test_convolutions_keep_channels_last(simulated):
    printed = simulated("""
conv = nn.Conv2d(3, 8, 3, padding=1).to("chameleon")
x = torch.empty(2, 3, 16, 16, device="chameleon", requires_grad=True)
print(conv(x).is_contiguous())
last = x.to(memory_format=torch.channels_last)
out = conv(last)
print(out.is_contiguous(memory_format=torch.channels_last))
g, = torch.autograd.grad(out.sum(), last)
print(g.is_contiguous(memory_format=torch.channels_last))
""")
    assert printed == ["True"] * 3


def test_a_convolution_chooses_with_hbm_for_itself(apart):
    # As on CUDA: its first call in a size, where others leave too little.
    printed = apart("""
torch_chameleon.config.oversubscription = 64
conv = nn.Conv2d(16, 16, 3, padding=1).to("chameleon")
x = torch.empty(4, 16, 64, 64, device="chameleon") # 1 MiB
others = []
def figures(budget):
    torch_chameleon.config.hbm_budget = budget
    others[:] = [torch.empty(1 << 18, device="chameleon") + 1 for _ in range(7)]
    with torch.no_grad():
        for _ in range(3):
            before = swap_stats()["evictions"]
            conv(x)
            print(swap_stats()["evictions"] - before)
figures("64MiB")
figures("10MiB")
""")
    assert printed[:3] == ["0"] * 3
    assert int(printed[3]) >= 6
    assert printed[4:] == ["0"] * 2


def test_in_place_and_out_grow_their_storage(simulated):
    printed = simulated("""
out = torch.empty(0, device="chameleon")
torch.add(torch.ones(1000, device="chameleon"), 1, out=out)
print(out.shape, out.untyped_storage().nbytes())
x = torch.empty(4, device="chameleon")
x.resize_(2000)
print(x.add_(1).untyped_storage().nbytes())
""")
    assert printed == ["torch.Size([1000]) 4000", "8000"]


def test_ops_without_a_shape_say_so(simulated):
    printed = simulated("""
try: torch.histogram(torch.empty(9, device="chameleon"), 3)
except NotImplementedError as error: print(str(error).splitlines()[0])
try:
    with torch_chameleon.resident(torch.ones(2, device="chameleon")): pass
except RuntimeError as error: print(str(error).splitlines()[0])
""")
    assert printed == [
        "aten::histogram.bin_ct: a simulated device needs to know the shape of "
        "its result, and PyTorch has no Meta kernel for it; run it on CPU "
        "tensors instead",
        "torch_chameleon.resident: a simulated device holds no bytes that "
        "native code could work on; set torch_chameleon.config.physical_device "
        'to "cpu"',
    ]


# ---- values ----------------------------------------------------------------


def test_reads_give_zeros_and_warn_once(apart):
    printed = apart("""
warnings.simplefilter("always")
x = torch.ones(3, 4).to("chameleon")
with warnings.catch_warnings(record=True) as seen:
    print(x.cpu().sum().item(), x[1].tolist(), x.t().cpu().shape)
    print(x.max().item(), bool((x > 0).all()))
print([str(w.message).split(":")[0] for w in seen])
""")
    assert printed == [
        "0.0 [0.0, 0.0, 0.0, 0.0] torch.Size([4, 3])",
        "0.0 False",
        "['a copy to the CPU']",
    ]


def test_reads_raise_on_request(apart):
    printed = apart(
        """
x = torch.ones(3, device="chameleon")
for read in (x.cpu, x.sum().item, x.nonzero):
    try: read()
    except RuntimeError as error: print(str(error).splitlines()[0][:30])
""",
        CHAMELEON_SIMULATED_READS="raise",
    )
    assert printed == [
        "a copy to the CPU: it needs va",
        "item(): it needs values, and a",
        "aten::nonzero: it needs values",
    ]


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_recurrent_layers_train(simulated, kind):
    printed = simulated(f"""
layer = nn.{kind}(4, 8, 2, bidirectional=True).to("chameleon")
x = torch.empty(5, 3, 4, device="chameleon", requires_grad=True)
layer(x)[0].sum().backward()
same = [p.grad.shape == p.shape for p in layer.parameters()]
print(list(x.grad.shape), all(same))
""")
    assert printed == ["[5, 3, 4] True"]


def test_packed_sequences_have_their_true_sizes(simulated):
    printed = simulated("""
from torch.nn.utils import rnn
x = torch.empty(5, 3, 4, device="chameleon", requires_grad=True)
packed = rnn.pack_padded_sequence(x, [5, 3, 1])
print(list(packed.data.shape), packed.batch_sizes)
out, _ = nn.LSTM(4, 4).to("chameleon")(packed)
out, lengths = rnn.pad_packed_sequence(out)
out.sum().backward()
print(list(out.shape), lengths, list(x.grad.shape))
index = torch.tensor([1, 0, 1])
print(list(x[index].shape), list(x[:, index > 0].shape))
""")
    assert printed == [
        "[9, 4] tensor([3, 2, 2, 1, 1])",
        "[5, 3, 4] tensor([5, 3, 1]) [5, 3, 4]",
        "[3, 3, 4] [5, 2, 4]",
    ]


def test_sizes_that_depend_on_values(simulated):
    printed = simulated("""
x = torch.empty(3, 4, device="chameleon")
print(*(list(each.shape) for each in (
    x.nonzero(), x[x > 0], x.masked_select(x > 0), *torch.unique(
        x, return_inverse=True, return_counts=True),
    torch.bincount(torch.empty(5, dtype=torch.long, device="chameleon")),
    torch.where(x > 0)[0])))
x[x > 0] = 1.0
print(torch.equal(x, x), torch.equal(x, x[:2]))
""")
    assert printed == [
        "[12, 2] [12] [12] [12] [3, 4] [12] [1] [12]",
        "True False",
    ]


# ---- plans and files ---------------------------------------------------------


def test_a_plan_says_what_is_kept_moved_and_run_again(apart):
    rows = apart("""
import json
import shutil
torch.set_default_dtype(torch.bfloat16)
with torch.device("chameleon"):
    model = nn.Sequential(*(
        each for _ in range(8)
        for each in (nn.Linear(1024, 1024, bias=False), nn.GELU())))
    x = torch.empty(8192, 1024)
optimizer = torch.optim.SGD(model.parameters())
for recompute in ("off", "auto"):
    config.hbm_budget, config.recompute = "140MiB", recompute
    for _ in range(5):
        torch_chameleon.reset_swap_stats()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_chameleon.step()
    plan = torch_chameleon.profiler.last_step()["plan"]
    print(json.dumps([plan, swap_stats()]))
""")
    # 17 results of 16 MiB (the square's waits for the mean), 8 weights and the
    # data.
    made, carried = 17 << 24, (17 << 24) + (8 << 21) + (1 << 24)
    (off, _), (auto, stats) = map(json.loads, rows)
    for plan in (off, auto):
        shares = ("kept_bytes", "moved_bytes", "rerun_bytes")
        of_layers = {
            key: sum(layer[key] for layer in plan["layers"])
            for key in (*shares, "rerun_ops", "ops")
        }
        assert sum(of_layers[key] for key in shares) == made
        assert of_layers["ops"] == 17
        for key in ("rerun_bytes", "rerun_ops"):
            assert of_layers[key] == plan[key]
        # Gradients are not carried, but may move.
        assert sum(plan[key] for key in shares) >= carried
    assert off["rerun_bytes"] == off["rerun_ops"] == 0
    assert off["moved_bytes"] > auto["moved_bytes"] > 0
    assert stats["rerun_ops"] == auto["rerun_ops"] > 0
    assert auto["rerun_bytes"] == auto["rerun_ops"] << 24
    assert stats["dropped_bytes"] >= auto["rerun_bytes"]


def test_nothing_is_saved(apart, tmp_path):
    """Zeros must not take the place of a checkpoint."""
    path, host = tmp_path / "last.pt", tmp_path / "host.pt"
    path.write_text("precious")
    printed = apart(f"""
import safetensors.torch
import torch.distributed.checkpoint as dcp
x = torch.ones(2, device="chameleon")
for save in (
    torch.save,
    torch_chameleon.save_safetensors,
    safetensors.torch.save_file,
    lambda tensors, path: dcp.save(
        tensors, checkpoint_id=path + ".folder", no_dist=True
    ),
):
    try: save({{"x": x}}, {str(path)!r})
    except BaseException as error:  # dcp's own is no Exception
        print("holds no bytes that could be saved" in str(error))
    else: print("saved")
torch.save(torch.ones(2), {str(host)!r})
""")
    assert printed == ["True"] * 4
    shutil.rmtree(f"{path}.folder", ignore_errors=True)
    assert path.read_text() == "precious"
    assert host.stat().st_size > 0
    assert sorted(tmp_path.iterdir()) == [host, path]
