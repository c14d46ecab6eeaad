"""tests/gpu: what a lease of a GPU runs, with something else in its place."""

import itertools
import json
import os
import pathlib
import subprocess
import sys
import time

import emulated_cuda
import emulated_cudnn
import pytest
from support import ROOT, needs_testing

pytestmark = needs_testing

GPU = ROOT / "tests" / "gpu"
sys.path.insert(0, str(GPU))

import lease_results as results_of  # noqa: E402
import places  # noqa: E402
import rows  # noqa: E402
from deadline import Deadline, Journal, Step  # noqa: E402


def python(name, code, limit_s=20.0, **more):
    return Step(
        name,
        [sys.executable, "-X", "faulthandler", "-c", code],
        limit_s,
        **more,
    )


def lines_of(folder):
    text = (folder / "results.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def ends_of(folder):
    return {row["step"]: row for row in lines_of(folder) if "rc" in row}


# ---- steps within a deadline


@pytest.fixture
def quick(monkeypatch):
    """A deadline that waits no longer than a test may take."""
    monkeypatch.setattr("deadline.RESERVE_S", 0.0)
    monkeypatch.setattr("deadline.GRACE_S", 0.3)
    monkeypatch.setattr("deadline.KILL_S", 0.3)
    monkeypatch.setattr("deadline.LEAST_S", 0.05)


def test_a_step_that_sleeps_costs_its_limit_only(quick, tmp_path):
    deadline = Deadline(tmp_path, 20)
    journal = tmp_path / "journal"
    sleeps = python(
        "sleeps",
        f"import time; open({str(journal)!r}, 'w').write('naps\\n')\n"
        "time.sleep(100)",
        0.5,
        journal=journal,
    )
    start = time.monotonic()
    deadline.run(sleeps)
    assert time.monotonic() - start < 5
    deadline.run(python("after", "print('{\"answer\": 42}')"))
    ends = ends_of(tmp_path)
    assert ends["sleeps"]["rc"] is None
    assert ends["sleeps"]["too_long"]
    assert ends["sleeps"]["doing"] == "naps"
    assert ends["sleeps"]["crash"][0] == "Fatal Python error: Aborted"
    assert any("in <module>" in line for line in ends["sleeps"]["crash"])
    assert ends["after"]["rc"] == 0
    assert any(row.get("answer") == 42 for row in lines_of(tmp_path))


def test_a_step_that_ignores_signals_is_killed(quick, tmp_path):
    Deadline(tmp_path, 20).run(
        Step(
            "stays",
            [
                "/bin/sh",
                "-c",
                "trap '' ABRT TERM; sleep 9 & wait; wait; sleep 9",
            ],
            0.2,
        )
    )
    assert ends_of(tmp_path)["stays"]["too_long"]


def test_a_step_that_aborts_goes_on_behind_what_killed_it(quick, tmp_path):
    journal, ended = tmp_path / "journal", tmp_path / "ended"
    code = f"""
import os, pathlib, sys
sys.path.insert(0, {str(GPU)!r})
from deadline import Journal
journal = Journal(pathlib.Path({str(journal)!r}))
for name in "abc":
    if name not in journal.known:
        journal.begin(name)
        if name == "b":
            os.abort()
        print('{{"did": "%s"}}' % name, flush=True)
"""
    Deadline(tmp_path, 20).run(
        python("aborts", code, journal=journal, tries=3, ended=ended)
    )
    found = lines_of(tmp_path)
    assert [row["did"] for row in found if "did" in row] == ["a", "c"]
    died, came_back = [row for row in found if "rc" in row]
    assert (died["rc"], died["doing"]) == (-6, "b")
    assert came_back["rc"] == 0
    assert ended.exists()
    assert Journal(journal).known == {"a", "b", "c"}


def test_garbage_goes_to_the_log(quick, tmp_path):
    code = r"""
import sys
out = sys.stdout.buffer
out.write(b'{"half": \n{]\n\xff\xfe\x00\n[1]\n')
out.write(b'{"self": 1, "step": "x", "t": 2}\n{"operators": 5}\n')
out.write(b'{"a":' * 100000 + b"\n" + b"no end")
"""
    results = results_of.Results(tmp_path, results_of.machine("cpu", {}))
    Deadline(tmp_path, 20, results.add).run(python("garbage", code))
    found = lines_of(tmp_path)
    assert [row["step"] for row in found] == ["garbage"] * 3
    assert (found[0]["self"], found[2]["rc"]) == (1, 0)
    assert results.all["steps"]["garbage"]["rc"] == 0
    log = (tmp_path / "log.txt").read_text()
    assert "garbage: [1]\n" in log
    assert "garbage: no end\n" in log


def test_what_has_no_time_is_left_out(quick, tmp_path):
    deadline = Deadline(tmp_path, 0.6)
    start = time.monotonic()
    deadline.run(python("first", "import time; time.sleep(100)"))
    deadline.run(python("second", "pass"))
    assert time.monotonic() - start < 5
    found = {row["step"]: row for row in lines_of(tmp_path)}
    assert found["first"]["too_long"]
    assert found["second"]["left_out"] == "no time was left"


def test_steps_run_at_a_time(quick, tmp_path):
    waits, comes = tmp_path / "waits", tmp_path / "comes"
    code = (
        "import pathlib, sys, time\n"
        "pathlib.Path({0!r}).touch()\n"
        "while not pathlib.Path({1!r}).exists(): time.sleep(0.01)"
    )
    pair = (str(waits), str(comes))
    Deadline(tmp_path, 20).run(
        python("one", code.format(*pair)),
        python("two", code.format(*pair[::-1])),
    )
    assert {row["rc"] for row in ends_of(tmp_path).values()} == {0}


def test_a_program_that_is_not_there(quick, tmp_path):
    Deadline(tmp_path, 20).run(Step("none", ["/no/such/program"], 5))
    assert ends_of(tmp_path)["none"]["rc"] == 127


# ---- results


def test_results_are_merged_and_say_what_failed(tmp_path):
    machine = {**results_of.machine("cpu", {}), "commit": "first"}
    first = results_of.Results(tmp_path, machine)
    for row, ms in (("tiny/in_memory/0", 1.0), ("tiny/chameleon/2", 2.0)):
        first.begin_point(row, 7)
        first.add({"step": row, "t": 0, "point": {"ms": ms, "peak_bytes": 9}})
        first.add({"step": row, "t": 0, "rc": 0})
    counts = {"same": 3, "different": 0, "unstable": 0}
    for _ in range(2):
        first.add({"step": "operators here", "t": 0, "operators": counts})
    assert first.failed == {}
    again = results_of.Results(tmp_path, {**machine, "commit": "second"})
    assert again.peak_bytes("tiny") == 9
    again.begin_point("tiny/chameleon/2", 5)
    died = {"rc": -6, "seconds": 1.0, "doing": None}
    again.add({"step": "tiny/chameleon/2", "t": 0, **died})
    assert again.all["operators"]["same"] == 6
    again.add({"step": "operators here", "t": 0, "operators": counts})
    again.add({"step": "bits", "t": 0, "left_out": "no time was left"})
    [file] = tmp_path.glob("*.json")
    kept = json.loads(file.read_text())
    assert file.name == "cpu.json"
    assert not kept["machine"]["is_gpu"]
    assert kept["points"]["tiny in_memory 0"]["commit"] == "first"
    assert kept["operators"]["same"] == 3
    # It was measured before it died, a lease ago.
    assert again.failed == {"tiny/chameleon/2": "ended with -6"}
    assert kept["steps"]["bits"] == {"left_out": "no time was left"}


def test_what_was_found_is_kept_by_its_name(tmp_path):
    results = results_of.Results(tmp_path, results_of.machine("cpu", {}))
    pin = {"finding": "pin", "threads": 4, "pin_gb_s": 2.0}
    results.add({"step": "pin", "t": 0, **pin})
    watched = {"finding": "silent_writers", "calls": 9}
    results.add({"step": "silent_writers", "t": 0, **watched})
    row = "two/tiny/chameleon/1MB"
    for side in ("one", "other"):
        results.add({"step": f"{row} {side}", "t": 0, "point": {"ms": 3.0}})
    results.begin_point("tiny/chameleon/2", 5)
    busy = {"both_ms": 1.0}
    for told in ({"point": {"ms": 2.0}}, {"link_busy": busy}):
        results.add({"step": "tiny/chameleon/2", "t": 0, **told})
    why = "not here: torchao is not installed"
    results.begin_point("tiny/torchao_offload/2", 5)
    row_of = {"step": "tiny/torchao_offload/2", "t": 0}
    results.add({**row_of, "point": {"error": why}})
    kept = json.loads((tmp_path / "cpu.json").read_text())
    assert kept["pin"] == [{"threads": 4, "pin_gb_s": 2.0}]
    assert kept["silent_writers"] == [{"calls": 9}]
    assert kept["bits"] == {}
    assert kept["two"] == {
        f"{row} one": {"ms": 3.0},
        f"{row} other": {"ms": 3.0},
    }
    assert kept["points"].keys() == {
        "tiny chameleon 2",
        "tiny torchao_offload 2",
    }
    assert kept["points"]["tiny chameleon 2"]["link_busy"] == busy
    assert results.left_out == {"tiny/torchao_offload/2": why}
    assert results.failed == {}


def test_what_is_known_is_not_measured_again(tmp_path):
    machine = results_of.machine("cpu", {})
    before, now = tmp_path / "before", tmp_path / "now"
    before.mkdir()
    now.mkdir()
    points = {"tiny in_memory 0": {"ms": 1.0, "peak_bytes": 7}}
    (before / "cpu.json").write_text(json.dumps({"points": points}))
    results = results_of.Results(now, machine, before)
    assert results.peak_bytes("tiny") == 7
    assert results.peak_bytes("vit_l") == 0
    for row in ("tiny/checkpoint/1MB", "tiny/chameleon/1MB"):
        results.begin_point(row, 10**6)
        results.add({"step": row, "t": 0, "point": {"ms": 1.0}})
    # What needs no more takes the same; chameleon uses what it gets.
    in_less = results.fits_in_less
    assert in_less("tiny/checkpoint/2MB", 2 * 10**6) == "1MB"
    assert in_less("tiny/checkpoint/0.5MB", 5 * 10**5) is None
    assert in_less("tiny/chameleon/2MB", 2 * 10**6) is None


def test_no_row_is_left_out_in_silence():
    counts = set()
    for place in places.PLACES:
        every = list(itertools.chain(*rows.by_worth(place)))
        counts.add(len(set(every)))
        kinds = {row.partition("/")[0] for row in every}
        assert rows.NOT_THERE[place].keys() <= kinds
        assert rows.LEFT_OUT[place].keys() <= set(rows.WORKLOADS)
    assert len(counts) == 1


def test_names_of_rows_are_known():
    training = ROOT / "tests" / "benchmarks" / "training"
    trainings = (training / "benchmark_trainings.py").read_text()
    ways = (training / "ways.py").read_text()
    workloads = (GPU / "lease_workloads.py").read_text()
    for name in rows.WORKLOADS:
        assert f"def {name}(device):" in workloads
    for place in places.PLACES:
        for row in itertools.chain(*rows.by_worth(place)):
            kind, _, which = row.partition("/")
            if kind == "two" or row.count("/") == 2:
                name, way, _ = (which if kind == "two" else row).split("/")
                assert f'    "{name}": ' in trainings
                assert f'    "{way}": ' in ways
            else:
                assert kind in rows.KINDS
            if kind == "bits" and which:
                assert set(which.split(",")) <= set(rows.WORKLOADS)
    assert rows.NOT_THERE.keys() == rows.LEFT_OUT.keys() == set(places.PLACES)


# ---- a lease


def leased(tmp_path, place, *given, seconds=200, programs="/none"):
    done = subprocess.run(
        [
            *(sys.executable, GPU / "lease.py", "--on", place),
            *("--seconds", str(seconds), "--out", tmp_path / "out"),
            *("--bin", programs, *given),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    return done


def kept_of(tmp_path, place):
    return json.loads((tmp_path / "out" / f"{place}.json").read_text())


@pytest.mark.slow
def test_a_lease_of_the_cpu(tmp_path):
    given = ("bits/adamw_fused", "operators/neg", "tiny/in_memory/0")
    given += (
        "scripts/wgan_tensor_types",
        "tiny/chameleon/2",
        "tiny/chameleon/1MB",
        "tiny/micro_batch/2",
        "tiny/expandable_segments/0",
        "two/tiny/chameleon/1MB",
        "optimizer_ops",
        "pin",
    )
    done = leased(tmp_path, "cpu", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = kept_of(tmp_path, "cpu")
    runs = kept["bits"]["adamw_fused"]["here"]
    assert [run["k"] for run in runs] == [1.0, 2.0, 4.0, 4.0]
    assert all(run["compared"] > 0 == len(run["different"]) for run in runs)
    assert all(run["evictions"] > 0 for run in runs[1:])
    assert kept["operators"]["same"] > 0 == kept["operators"]["different"]
    script = kept["scripts"]["wgan_tensor_types"]
    assert script["stable"] == script["lines"] > 0
    assert script["resident"]["different"] == 0
    assert script["evicted"]["different"] == 0 < script["evicted"]["evictions"]
    points = kept["points"]
    roomy, ours = points["tiny in_memory 0"], points["tiny chameleon 2"]
    assert ours["losses"] == roomy["losses"]
    assert ours["peak_bytes"] <= ours["budget_bytes"]
    assert ours["in_gb"] > 0
    assert points["tiny chameleon 0"]["commits"] == 0  # it was needed for k = 2
    assert points["tiny chameleon 1MB"]["budget_bytes"] == 10**6
    assert points["tiny micro_batch 2"]["steps"] == 6
    split = ("compute_ms", "stall_ms", "other_ms", "rerun_ms", "settled")
    split += ("held_host_bytes", "host_bytes", "link_busy", "plan")
    assert all(key in ours for key in split)
    assert "settled" not in roomy
    two = [kept["two"][f"{given[8]} {side}"] for side in ("one", "other")]
    assert two[0]["losses"] == two[1]["losses"] == roomy["losses"]
    for row in ("tiny/expandable_segments/0", "optimizer_ops", "pin"):
        assert f"left out: {row}: " in done.stdout
    table = subprocess.run(
        [ROOT / "ci" / "gpu", "table", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert table.returncode != 0
    assert "no measurement of a GPU: cpu.json" in table.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload",
    [name for name in rows.WORKLOADS if name not in rows.LEFT_OUT["cpu"]],
)
def test_trainings_have_native_bits(workload, tmp_path):
    done = leased(tmp_path, "cpu", f"bits/{workload}")
    assert done.returncode == 0, done.stdout + done.stderr
    sides = kept_of(tmp_path, "cpu")["bits"][workload]
    assert sides["native"][0]["unstable"] == []
    assert len(sides["here"]) == 4
    assert all(run["compared"] > 0 for run in sides["here"])
    assert all(run["evictions"] > 0 for run in sides["here"][1:])


@pytest.mark.slow
def test_operators_have_native_bits(tmp_path):
    done = leased(tmp_path, "cpu", "operators")
    assert done.returncode == 0, done.stdout + done.stderr
    counts = kept_of(tmp_path, "cpu")["operators"]
    assert counts["same"] > 400 > counts["different"] + counts["unstable"] == 0


@pytest.mark.slow
def test_a_lease_ends_in_its_seconds(tmp_path):
    start = time.monotonic()
    done = leased(tmp_path, "cpu", seconds=12)
    assert time.monotonic() - start < 12
    kept = kept_of(tmp_path, "cpu")
    left = [name for name, row in kept["steps"].items() if "left_out" in row]
    assert "llama_7b/chameleon/1MB" in left
    assert "left out: rest here: no time was left" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(
    not emulated_cuda.can_be_built(), reason=emulated_cuda.NEEDS
)
def test_a_lease_of_an_emulated_gpu(tmp_path, request):
    folder = request.config.cache.mkdir("emulated_cuda")
    library = emulated_cuda.built(pathlib.Path(folder))
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "emulated_cuda.so").symlink_to(library)
    for probe in ("driver_probe", "pin_probe"):
        driver = ROOT / "backend/runtime/cuda/cuda_driver.cpp"
        subprocess.run(
            [
                *("c++", "-std=c++20", "-O1", f"-I{ROOT}", "-isystem"),
                *(emulated_cuda.cuda_headers(), GPU / f"{probe}.cpp", driver),
                *("-ldl", "-lpthread", "-o", programs / probe),
            ],
            check=True,
        )
    given = ("probe", "pin", "optimizer_ops", "operators/neg")
    given += ("llama_1.3b/chameleon/2", "scripts")
    given += ("bits/adamw_foreach,lstm,deterministic_llama",)
    done = leased(tmp_path, "emulated", *given, programs=programs)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = kept_of(tmp_path, "emulated")
    assert {row["probe"] for row in kept["probe"]} >= {"driver", "link", "pin"}
    for workload in ("adamw_foreach", "lstm", "deterministic_llama"):
        assert len(kept["bits"][workload]["here"]) == 4
    assert kept["bits"]["deterministic_llama"]["native"][0]["unstable"] == []
    assert {row["threads"] for row in kept["pin"]} == {1, 4, 16}
    assert all(row["pinned_chunks"] == row["chunks"] for row in kept["pin"])
    adamw = [x for x in kept["optimizer_ops"] if x["optimizer"] == "adamw"]
    assert all(row["are_bits_equal"] for row in adamw)
    assert "left out: scripts: " in done.stdout
    assert kept["operators"]["same"] > 0
    row = kept["points"]["llama_1.3b chameleon 2"]
    assert row["peak_bytes"] <= row["budget_bytes"]
    assert row["in_gb"] > 0
    assert row["commits"] == row["cuda_mallocs"] == row["host_waits"] == 0
    assert row["pageable_bytes"] == row["foreign_bytes"] == 0
    assert not kept["machine"]["is_gpu"]


@pytest.mark.slow
@pytest.mark.skipif(
    not emulated_cuda.can_be_built(), reason=emulated_cuda.NEEDS
)
def test_what_cudnn_writes_in_silence_is_found(request):
    folder = request.config.cache.mkdir("emulated_cuda")
    library = emulated_cuda.built(pathlib.Path(folder))
    done = subprocess.run(
        [sys.executable, GPU / "silent_writers.py", "--on", "emulated"],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            **places.common_environment("emulated"),
            **places.environment("emulated", library),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    found = {(op, argument) for op, argument in row["changed"]}
    assert found == emulated_cudnn.UNANNOUNCED
    assert row["unknown"] == []


@pytest.mark.slow
def test_no_op_writes_in_silence():
    done = subprocess.run(
        [sys.executable, GPU / "silent_writers.py", "--on", "cpu"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["calls"] > 10_000
    assert row["unknown"] == []
    assert ["aten::native_batch_norm", "running_mean"] in row["changed"]
