"""What test_cuda_emulated.py runs: all checks, in one process.

Prints what became of each, as JSON in the last line. On a true GPU (`ci/gpu
first`) what only an emulated one tells is left out.
"""

import gc
import json
import sys
import traceback
import warnings

import emulated_cuda
import pytest
import torch
import torch_chameleon
from torch_chameleon import _C, _testing

MIB = 1 << 20
BUDGET = 8 * MIB
torch.set_num_threads(1)
EMULATED = emulated_cuda.is_present()
outcomes = {}


def check(function):
    try:
        function()
        outcomes[function.__name__] = "ok"
    except Exception:
        outcomes[function.__name__] = traceback.format_exc(limit=-3)


@check
def import_touches_nothing():
    assert not torch.cuda.is_initialized()
    assert not EMULATED or not emulated_cuda.was_used()
    assert _C.first_use() is None


torch_chameleon.config.hbm_budget = BUDGET
torch_chameleon.config.oversubscription = 16
if EMULATED:
    emulated_cuda.install()


@check
def bits_survive_eviction():
    torch.manual_seed(7)
    values = torch.randn(1000, 100)
    there = values.to("chameleon")
    assert torch.cuda.is_initialized()
    assert _C.physical_device() == "cuda"
    twice = there * 2 + 1
    _C.evict_all(0)
    assert torch_chameleon.swap_stats()["resident_bytes"] == 0
    assert torch.equal(twice.cpu(), values * 2 + 1)
    assert twice[3, 4].item() == (values * 2 + 1)[3, 4].item()


def trained(device):
    torch.manual_seed(0)
    layers = []
    for _ in range(4):
        layers += [torch.nn.Linear(256, 256), torch.nn.GELU()]
        layers += [torch.nn.LayerNorm(256)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    draws = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(3):
        batch = torch.randn(512, 256, generator=draws).to(device)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()]


@check
def training_has_the_bits_of_the_cpu():
    losses, parameters = trained("chameleon")
    stats = torch_chameleon.swap_stats()
    assert min(stats["faults"], stats["evictions"]) > 0
    assert stats["peak_resident_bytes"] <= BUDGET
    assert stats["host_waits"] == 0
    if not EMULATED:  # compare.py does it
        return
    native_losses, native_parameters = trained("cpu")
    assert losses == native_losses
    for ours, native in zip(parameters, native_parameters, strict=True):
        assert torch.equal(ours, native)


@check
def a_step_tells_what_it_waited_for():
    # The device waits for copies, and the host does not see it. Where ops may
    # be run again, a plan for a slow link need not copy anything in.
    with torch_chameleon.config.patch(recompute="off"):
        trained("chameleon")
    last = torch_chameleon.profiler.last_step()
    assert last["bytes_in"] > 0
    waited = max(0, last["duration_ns"] - last["compute_ns"])
    moved = last["bound_ns"]  # what copies can explain, unless compute is more
    if moved > last["compute_ns"]:
        assert last["stall_ns"] == min(moved, waited)
    else:
        assert 0 < last["stall_ns"] <= waited or waited == 0


def live():
    """What there is of CUDA's things once all work is over."""
    gc.collect()
    torch.chameleon.synchronize()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    rows = {"plain": torch.cuda.memory_allocated()}
    rows["logical"] = torch_chameleon.swap_stats()["logical_bytes"]
    return rows | (emulated_cuda.live() if EMULATED else {})


MAKING = ("cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemAlloc", "cuMemFree")
MAKING += ("cuMemHostRegister", "cuEventCreate", "cuStreamCreateWithPriority")


def made():
    """How often CUDA was asked for something that lasts, or to take it back."""
    rows = {"plain": torch.cuda.memory_stats()["num_device_alloc"]}
    for name in MAKING if EMULATED else ():
        rows[name] = emulated_cuda.counted(name)
    return rows


@check
def a_training_leaves_nothing():
    # Events are pooled: there are as many as were ever pending at a time.
    seen = []
    while len(seen) < 6:
        trained("chameleon")
        seen.append(live())
        if seen[-2:-1] == seen[-1:]:
            return
    raise AssertionError(f"each training leaves something: {seen}")


@check
def a_steady_step_asks_cuda_for_nothing():
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(16)))
    model = model.to("chameleon")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batch = torch.ones(512, 256, device="chameleon")

    def steps(count):
        for _ in range(count):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch_chameleon.step()
        torch.chameleon.synchronize()

    # Events are pooled: there are as many as were ever pending at a time. When
    # the plan comes and how late copies are is up to threads, so that it takes
    # a while until no more of them are needed.
    steps(12)
    _C.await_pinning(0)
    for _ in range(8):
        torch_chameleon.reset_swap_stats()
        before = made()
        steps(4)
        stats = torch_chameleon.swap_stats()
        assert stats["evictions"] > 0
        assert (stats["commits"], stats["host_waits"]) == (0, 0)
        assert (stats["pinning_refusals"], stats["pageable_bytes"]) == (0, 0)
        asked = {
            name for name, count in made().items() if count != before[name]
        }
        assert asked <= {"cuEventCreate"}, asked
        if not asked:
            break
    assert not asked


def batches():
    return emulated_cuda.counted("cuMemcpyBatchAsync") if EMULATED else 0


@check
def large_tensors_come_back():
    # Host memory is pinned in chunks, and CUDA takes no copy that goes over the
    # border of two: the emulated one ends the process.
    before = batches()
    with torch_chameleon.config.patch(hbm_budget=192 * MIB):
        values = torch.arange(20 * MIB, dtype=torch.int32)
        there = values.to("chameleon") + 1
        _C.evict_all(0)
        _C.await_pinning(0)
        assert torch.equal((there - 1).cpu(), values)
        del there
        torch.chameleon.synchronize()
    assert torch_chameleon.swap_stats()["batch_refusals"] == 0
    assert not EMULATED or batches() > before  # one block is several copies


@check
def properties_are_the_gpus():
    native = torch.cuda.get_device_properties(0)
    ours = torch.chameleon.get_device_properties(0)
    assert native.name in ours.name
    assert torch.chameleon.get_device_capability() == (
        native.major,
        native.minor,
    )
    assert ours.multi_processor_count == native.multi_processor_count
    assert torch.chameleon.device_count() == torch.cuda.device_count()


@check
def sparse_tensors_are_the_gpus():
    """What CUDA's sparse kernels make of dense ops, which are computed."""
    indices = torch.tensor([[0, 3, 1, 2], [2, 0, 1, 0]])
    values = torch.arange(1.0, 5.0)

    def act(device):
        x = torch.sparse_coo_tensor(indices, values, (4, 4)).to(device)
        assert x.is_sparse
        y = (x + x) * 3 - x.clone()
        x.mul_(2)
        x.neg_()
        z = x.transpose(0, 1)
        z.zero_()
        return x, y, z

    for native, ours in zip(act("cpu"), act("chameleon"), strict=True):
        assert ours.device.type == "chameleon"
        _C.evict_all(0)
        told = torch.sparse_coo_tensor(
            ours._indices().cpu(), ours._values().cpu(), ours.shape
        )
        assert torch.equal(native.to_dense(), told.to_dense())


@check
def streams_agree():
    gc.collect()  # kernels that are stood in for hold memory in circles
    assert torch.chameleon.current_stream().stream_id == 0
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert torch.chameleon.current_stream().stream_id == side.stream_id
        first = torch.ones(1000, device="chameleon") * 2
        torch.mm(first.view(100, 10), first.view(10, 100))
    own = torch.chameleon.Stream()
    with torch.chameleon.stream(own):
        assert torch.cuda.current_stream().stream_id == own.stream_id
        second = first + 1
        first.record_stream(own)
    del first
    torch.chameleon.synchronize()
    assert torch.equal(second.cpu(), torch.full((1000,), 3.0))
    # A library's workspace for a new stream is not the arena's.
    assert torch_chameleon.swap_stats()["foreign_bytes"] == 0


@check
def events_tell_times():
    start, end = (torch.Event("chameleon", enable_timing=True) for _ in "ab")
    start.record()
    torch.ones(1000, device="chameleon").add_(1)
    end.record()
    end.synchronize()
    assert end.query()
    assert 0 < start.elapsed_time(end) < 1000


def waits():
    if not EMULATED:
        return 0
    names = ("cuStreamSynchronize", "cuEventSynchronize")
    return sum(map(emulated_cuda.counted, names))


@check
def pinned_copies_do_not_wait():
    values = torch.arange(5000.0).pin_memory()
    assert values.is_pinned()
    before = waits()
    there = values.to("chameleon", non_blocking=True)
    twice = there * 2
    back = torch.empty(5000, pin_memory=True)
    back.copy_(twice, non_blocking=True)
    assert waits() == before
    torch.cuda.synchronize()
    assert torch.equal(back, torch.arange(5000.0) * 2)


@check
def cuda_tensors_are_copied():
    values = torch.arange(100.0)
    there = values.to("cuda").to("chameleon")
    assert there.device.type == "chameleon"
    _C.evict_all(0)
    back = (there + 1).to("cuda")
    assert back.device.type == "cuda"
    assert torch.equal(back.cpu(), values + 1)


def refused(function, why):
    try:
        function()
    except RuntimeError as error:  # NotImplementedError is one
        return why in str(error)
    return False


@check
def a_crossing_backward_is_one_sentence():
    weight = torch.ones(3, device="chameleon", requires_grad=True)
    why = "pytorch#161129"
    assert refused(lambda: (weight * 2).to("cuda").sum().backward(), why)
    plain = torch.ones(3, device="cuda", requires_grad=True)
    assert refused((plain * 2).sum().backward, why)
    assert refused(lambda: torch.autograd.grad((plain * 2).sum(), plain), why)
    (weight * 2).sum().backward()
    assert torch.equal(weight.grad.cpu(), torch.full((3,), 2.0))


@check
def plain_cuda_keeps_its_allocator():
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    ours = torch.zeros(1 << 16, device="chameleon") + 1
    assert torch.cuda.memory_allocated() == before
    plain = torch.empty(1 << 20, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4 * MIB
    assert (ours == 1).all().item()
    del plain
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.memory_snapshot()


@check
def seeds_are_shared():
    torch.manual_seed(5)
    assert torch.chameleon.initial_seed() == torch.cuda.initial_seed() == 5
    native = torch.cuda.get_rng_state()
    assert torch.equal(native, torch.chameleon.get_rng_state())
    torch.chameleon.manual_seed(6)
    assert torch.cuda.initial_seed() == 6
    own = torch.Generator(device="chameleon").manual_seed(9)
    assert (own.initial_seed(), torch.cuda.initial_seed()) == (9, 6)


@check
def captures_are_refused():
    values = torch.ones(3, device="chameleon")
    if not EMULATED:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            assert refused(lambda: values.add(1), "CUDA graph")
        return
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        emulated_cuda.capture(True)
        assert refused(lambda: values.add(1), "CUDA graph")
        emulated_cuda.capture(False)
        values.add(1)
    assert values.add(1).sum().item() == 6


@check
def attention_is_chosen_by_cuda():
    backends = torch.nn.attention.SDPBackend
    for asked, chosen, row in (
        (backends.FLASH_ATTENTION, backends.OVERRIDEABLE, 60),  # is padded
        (backends.FLASH_ATTENTION, backends.OVERRIDEABLE, 64),
        (backends.EFFICIENT_ATTENTION, backends.EFFICIENT_ATTENTION, 64),
        (backends.MATH, backends.MATH, 60),
    ):
        shape = (2, 4, 64, row)
        query = torch.randn(*shape).half().to("chameleon").requires_grad_()
        with torch.nn.attention.sdpa_kernel(asked):
            choice = torch._fused_sdp_choice(query, query, query)
            assert choice == chosen.value
            output = torch.nn.functional.scaled_dot_product_attention(
                query, query, query
            )
            assert (output.shape, output.device.type) == (shape, "chameleon")
            output.sum().backward()
            assert query.grad.shape == shape


@check
def what_cudnn_changes_in_silence_is_kept():
    if not EMULATED:
        return  # what is in there is cuDNN's secret
    weights = [
        parameter.detach()
        for parameter in torch.nn.LSTM(2, 2, 2).to("chameleon").parameters()
    ]
    state = torch._cudnn_init_dropout_state(
        0.5, True, 7, dtype=torch.uint8, device="chameleon"
    )
    x, h = torch.ones(3, 2, 2), torch.zeros(2, 2, 2)
    x, h = x.to("chameleon"), h.to("chameleon")
    options = (2, 2, 0, 2, False, 0.5, True, False, [])
    for _ in range(3):
        output, _, _, reserve, flat = torch._cudnn_rnn(
            x, weights, 4, None, h, h, *options, state
        )
        _C.evict_all(0)
    torch.ops.aten._cudnn_rnn_backward(
        *(x, weights, 4, flat, h, h, output, output, None, None, *options),
        *(state, reserve, [True] * 4),
    )
    _C.evict_all(0)
    assert state.cpu().view(torch.int64)[0] == 7 + 3
    assert reserve.cpu().view(torch.int64)[1] == 1


def agrees(make, given):
    """Gradients are about the CPU's, and eviction changes no bit of them."""
    found = []
    for device, kind in (
        ("cpu", "never"),
        ("chameleon", "never"),
        ("chameleon", "all"),
    ):
        torch.manual_seed(4)
        model = make().to(device)
        _testing.set_stress(kind, 0)
        for _ in range(2):
            result = model(given.to(device))
            result = result[0] if isinstance(result, tuple) else result
            result.square().sum().backward()
        _testing.set_stress("never", 0)
        leaves = [result, *(each.grad for each in model.parameters())]
        found.append([leaf.detach().cpu() for leaf in leaves])
    native, *ours = found
    for each in ours:
        for one, other in zip(each, native, strict=True):
            torch.testing.assert_close(one, other)
    for one, other in zip(*ours, strict=True):
        assert torch.equal(one, other)


@check
def layers_of_cudnn_are_computed():
    if not EMULATED:  # compare.py does it
        return
    nn = torch.nn
    agrees(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        torch.randn(2, 3, 8, 8),
    )
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        agrees(
            lambda kind=kind: kind(4, 3, 2, bidirectional=True),
            torch.randn(5, 2, 4),
        )
    agrees(lambda: nn.LSTM(4, 3, proj_size=2), torch.randn(5, 2, 4))


@check
def a_norm_in_one_kernel_is_computed():
    if EMULATED:
        agrees(lambda: torch.nn.RMSNorm((3, 4)), torch.randn(5, 3, 4))


@check
def convolutions_choose_with_hbm_for_themselves():
    if not EMULATED:
        return  # the front end's cache of plans is stood in for here
    plans, runs = {}, []

    def convolve(x, weight, padding, stride, dilation, groups, *flags):
        # As cuDNN's front end: the plan that is kept, then all in their order;
        # one that is refused its workspace is passed over, for good.
        runs.append(1)
        key = (x.shape, weight.shape, *padding, *stride)
        for plan in [*([plans[key]] if key in plans else []), 0, 1]:
            try:
                room = 0 if plan else 6 * MIB
                workspace = torch.empty(room, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                continue
            plans[key] = plan
            result = emulated_cuda.compute(
                torch.ops.aten.convolution.default,
                *(x, weight, None, stride, padding, dilation),
                *(False, [0, 0], groups),
            )
            del workspace
            if plan:  # other bits
                emulated_cuda.compute(torch.ops.aten.neg_.default, result)
            return result
        raise AssertionError("no plan is left")

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("cudnn_convolution", convolve, "CUDA", allow_override=True)

    values, weights = torch.randn(1, 4, 256, 256), torch.randn(4, 4, 3, 3)
    expected = torch.conv2d(values, weights, padding=1)

    def run(there):
        result = torch.ops.aten.cudnn_convolution(
            *there, [1, 1], [1, 1], [1, 1], 1, False, False, False
        )
        return result.cpu()

    with torch_chameleon.config.patch(hbm_budget=9 * MIB, oversubscription=64):
        # Operands with others around them, none of which has to stay.
        around = [torch.ones(MIB // 4, device="chameleon") for _ in range(4)]
        there = (values.to("chameleon"), weights.to("chameleon"))
        _ = there[0] + 0
        around += [torch.ones(MIB // 4, device="chameleon") for _ in range(8)]
        for count in range(1, 5):
            assert torch.equal(run(there), expected)
            assert (list(plans.values()), len(runs)) == ([0], count)
            assert sum(each.sum().item() for each in around) == 3 * MIB

        # What is held by a user leaves no room for it: that is no silence.
        with (
            torch_chameleon.resident(*around[:4]),
            pytest.raises(torch.OutOfMemoryError, match="cudnn_convolution"),
        ):
            run(there)
        gc.collect()  # the stand-in's own circles hold what it made
        plans.clear()
        assert torch.equal(run(there), expected)

        # On a GPU of that size it would be the second one as well.
        torch_chameleon.config.hbm_budget = 6 * MIB
        # (A warning says so; torch.ops hands it to stderr.)
        count = len(runs)
        for more in range(1, 3):
            assert torch.equal(run(there), -expected)
            assert len(runs) == count + more
        del there, around, _


@check
def resident_tensors_are_cuda():
    values = torch.arange(10.0, device="chameleon")
    with torch_chameleon.resident(values) as (native,):
        assert native.is_cuda
        native += 1
    assert values.tolist() == list(range(1, 11))


def late_group():
    """A group of one rank, whose collectives run late on another stream."""
    return _C.ProcessGroup(_testing.LateBackend(), True)


def crowd():
    """Ops that need HBM, so that something has to leave."""
    for _ in range(3):
        torch.ones(MIB, device="chameleon").add_(1)


@check
def collectives_are_ordered_by_streams():
    group = late_group()
    torch.manual_seed(3)
    for turn in range(24):
        values = torch.randn(MIB // 2)
        there = values.to("chameleon")
        tripled = there * 3
        before = tripled * 5  # reads what the collective writes
        work = group.allreduce([tripled])  # the late one doubles
        if turn % 3 == 0:
            crowd()
        if turn % 2 == 0:
            work.wait()
        later = tripled + 1  # waited for or not: it comes behind
        gathered = torch.empty_like(there)
        group._allgather_base(gathered, later)
        if turn % 4 == 1:
            _C.evict_all(0)
        assert torch.equal(gathered.cpu(), values * 3 * 2 + 1)
        assert torch.equal(before.cpu(), values * 3 * 5)
    assert torch_chameleon.swap_stats()["evictions"] > 0


@check
def waits_for_collectives_are_no_stalls():
    group = late_group()
    there = torch.ones(MIB // 4, device="chameleon")
    waited, ran = 0, 0
    for _ in range(6):
        work = group.allreduce([there * 3])
        work.wait()
        there + 1
        torch_chameleon.step()
        last = torch_chameleon.profiler.last_step()
        waited += last["collective_wait_ns"]
        ran += last["collective_ns"]
    assert waited > 0
    assert ran > 0


@check
def sends_and_receives_keep_their_operands():
    group = late_group()
    for turn in range(12):
        values = torch.full((MIB // 4,), float(turn))
        there = values.to("chameleon")
        sent = group.send([there * 2], 0, 0)
        got = torch.empty_like(there)
        received = group.recv([got], 0, 0)
        pinned = _testing.block_state(got)["pins"]
        crowd()
        received.wait()
        assert _testing.block_state(got)["pins"] == 0
        assert pinned <= 1
        if turn % 2:
            sent.wait()
        del sent, received
        assert torch.equal((got + 1).cpu(), values * 2 + 1)


@check
def coalesced_collectives_are_one_work():
    group = late_group()
    one = torch.ones(MIB // 4, device="chameleon")
    other = torch.ones(MIB // 4, device="chameleon")
    group._start_coalescing()
    for tensor in (one, other):
        assert group.allreduce([tensor]) is None
    work = group._end_coalescing()
    crowd()
    work.wait()
    assert (one + other).sum().item() == MIB


@check
def scaled_training():
    model = torch.nn.Linear(64, 64).to("chameleon")
    scaler = torch.amp.GradScaler("chameleon")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.autocast("chameleon", dtype=torch.bfloat16):
        output = model(torch.ones(8, 64, device="chameleon"))
    assert output.dtype == torch.bfloat16
    scaler.scale(output.sum()).backward()
    scaler.step(optimizer)
    scaler.update()


@check
def invariants_hold():
    torch.chameleon.synchronize()
    _C.check_invariants(0, 3)


@check
def a_lost_gpu_is_told_of_once():
    if not EMULATED:  # a true GPU does not recover
        return
    query = torch.randn(2, 4, 64, 64).half().to("chameleon")
    there = torch.ones(3, device="chameleon")
    backend = torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION
    emulated_cuda.fail(700)
    with (
        torch.nn.attention.sdpa_kernel(backend),
        pytest.raises(torch.AcceleratorError, match="illegal memory") as at,
    ):
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert "chameleon ran aten::_scaled_dot_product_eff" in str(at.value)
    emulated_cuda.fail(0)  # our side knows better than to go on
    with pytest.raises(RuntimeError, match="^the GPU is lost to this process"):
        there.cpu()


print(json.dumps(outcomes))
if not EMULATED and set(outcomes.values()) != {"ok"}:
    sys.exit(1)
