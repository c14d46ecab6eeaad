"""What a user sees of a state: its lines, and what it says of wrong ones."""

import enum
import random
import re
import sys
import threading

import pytest
import torch
import torch_chameleon
from returning_rank import rank_fixture  # noqa: F401
from support import same_bits, values
from torch_chameleon import elastic
from torch_chameleon.elastic._group import Group
from torch_chameleon.elastic._training import Training

DEVICES = ["cpu", "chameleon"]


def make(device="chameleon"):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8),
        torch.nn.Dropout(0.3),
        torch.nn.BatchNorm1d(8),
        torch.nn.Linear(8, 8),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 10)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def train(state):
    """A step that draws from all generators."""
    device = next(state.model.parameters()).device
    x = values(device, 4, 8, seed=state.step) + random.random()
    state.model(x * torch.rand(1).to(device)).square().mean().backward()
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.scheduler.step()
    state.step += 1


def tensors(state):
    found = dict(state.model.state_dict())
    for number, each in state.optimizer.state_dict()["state"].items():
        found |= {f"{number}.{key}": value for key, value in each.items()}
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_it_goes_on_with_the_same_bits(rank, device):
    state = elastic.State(**make(device), step=0)
    random.seed(0)
    for _ in range(6):
        train(state)
    expected = tensors(state)

    random.seed(0)
    first = rank.state(**make(device), step=0)
    for _ in range(3):
        train(first)
        first.commit()
    train(first)  # lost
    rank.settle()
    second = rank.state(**make(device), step=0)
    assert second.step == 3
    while second.step < 6:
        train(second)
    found = tensors(second)
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert found[key].device == tensor.device, key
        assert same_bits(found[key], tensor), key
    assert second.scheduler.get_last_lr() == state.scheduler.get_last_lr()
    assert rank.memory.ledger.lost == 0


def test_numpy_goes_on_if_it_is_imported(rank):
    numpy = pytest.importorskip("numpy")
    state = rank.state(step=0)
    numpy.random.rand(3)
    state.commit()
    expected = numpy.random.rand(3)
    rank.settle()
    rank.state(step=0)
    assert (numpy.random.rand(3) == expected).all()


def test_numbers_keep_their_types(rank):
    state = rank.state(step=3, loss=0.5, done=False)
    state.step, state.loss, state.done = 1 << 70, float("inf"), True
    state.commit()
    rank.settle()
    back = rank.state(step=3, loss=0.5, done=False)
    assert (back.step, back.loss, back.done) == (1 << 70, float("inf"), True)
    assert back.done is True


def test_what_changes_after_a_commit_is_not_in_it(rank):
    layer = torch.nn.Linear(4, 4).to("chameleon")
    state = rank.state(layer=layer, step=0)
    expected = layer.weight.detach().clone()
    state.commit()
    state.step = 7
    with torch.no_grad():
        layer.weight.zero_()
    rank.settle()
    back = rank.state(layer=torch.nn.Linear(4, 4).to("chameleon"), step=0)
    assert back.step == 0
    assert same_bits(back.layer.weight, expected)


def test_parameters_stay_the_same_objects(rank):
    layer = torch.nn.Linear(4, 4).to("chameleon")
    rank.state(layer=layer).commit()
    rank.settle()
    other = torch.nn.Linear(4, 4).to("chameleon")
    weight, bias = other.weight, other.bias
    rank.state(layer=other)
    assert other.weight is weight
    assert other.bias is bias
    assert same_bits(weight, layer.weight)


def test_strides_of_an_optimizer_s_state_are_kept(rank):
    def made():
        layer = torch.nn.Conv2d(4, 4, 3).to("chameleon")
        layer = layer.to(memory_format=torch.channels_last)
        return layer, torch.optim.AdamW(layer.parameters())

    layer, optimizer = made()
    state = rank.state(layer=layer, optimizer=optimizer)
    layer(values("chameleon", 1, 4, 4, 4)).sum().backward()
    optimizer.step()
    state.commit()
    rank.settle()
    other, other_optimizer = made()
    rank.state(layer=other, optimizer=other_optimizer)
    ours = other_optimizer.state[other.weight]["exp_avg"]
    theirs = optimizer.state[layer.weight]["exp_avg"]
    assert ours.stride() == theirs.stride() == layer.weight.stride()
    assert same_bits(ours, theirs)


class Loader:
    """Knows its position, and more that is not tensors alone."""

    def __init__(self):
        self.state = {"at": 0}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_other_objects_get_what_they_gave(rank):
    loader = Loader()
    table = torch.arange(6.0, device="chameleon").view(2, 3).t()
    loader.state = {
        "at": 5,
        "name": "ä",
        7: [None, True, (1, 2.5), {"deep": [torch.ones(2, dtype=torch.bool)]}],
        "table": table,
        "empty": torch.empty(0, 3, dtype=torch.bfloat16),
        "nothing": {},
        "scalar": torch.tensor(3),
        "expanded": torch.ones(1).expand(4),
    }
    rank.state(loader=loader).commit()
    rank.settle()
    back = rank.state(loader=Loader()).loader.state
    assert list(back) == list(loader.state)
    for key in ("table", "empty", "scalar", "expanded"):
        assert same_bits(back[key], loader.state[key])
        assert back[key].device == loader.state[key].device
    assert back["table"].stride() == table.stride()
    deep = back[7][3]["deep"][0]
    assert same_bits(deep, loader.state[7][3]["deep"][0])
    assert back[7][:3] == loader.state[7][:3]
    assert (back["at"], back["name"], back["nothing"]) == (5, "ä", {})


def test_a_module_s_extra_state_is_kept(rank):
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def get_extra_state(self):
            return {"calls": self.calls}

        def set_extra_state(self, state):
            self.calls = state["calls"]

    counting = Counting()
    counting.calls = 4
    rank.state(counting=counting).commit()
    rank.settle()
    assert rank.state(counting=Counting()).counting.calls == 4


def test_without_an_agent_commits_do_nothing(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    state = elastic.State(loader=Loader(), step=0)
    state.step += 1
    state.commit()
    assert state.step == 1


def test_only_every_nth_commit_is_kept(rank):
    with torch_chameleon.config.patch(mirror_steps=3):
        state = rank.state(step=0)
    for _ in range(8):
        state.step += 1
        state.commit()
    rank.settle()
    assert rank.newest.generation == 2
    assert rank.state(step=0).step == 6
    assert rank.memory.ledger.lost == 2


def test_mirror_steps_are_those_of_all_ranks(rank, monkeypatch):
    monkeypatch.setattr(Group, "gather", lambda *_: [[1], [3]])
    with pytest.raises(ValueError, match=r"mirror_steps .* it is \[1, 3\]"):
        rank.state(step=0)


@pytest.mark.parametrize("steps", [0, -1, "x", "", 1.5])
def test_a_wrong_number_of_mirror_steps(steps):
    with pytest.raises(
        ValueError, match="^mirror_steps = .* must be a whole number from 1 to"
    ):
        torch_chameleon.config.mirror_steps = steps
    assert torch_chameleon.config.mirror_steps == 1


@pytest.mark.parametrize(
    ("objects", "error", "sentence"),
    [
        ({}, ValueError, "keeps nothing"),
        ({"commit": 1}, ValueError, "'commit' cannot be a name"),
        ({"_x": 1}, ValueError, "'_x' cannot be a name"),
        ({"x": "text"}, TypeError, "x is of type str; what is kept is a num"),
        ({"x": None}, TypeError, "x is of type NoneType"),
        ({"x": torch.ones(1)}, TypeError, "x is of type Tensor"),
        ({"x": torch.nn.Linear}, TypeError, "x is of type type"),
        ({"x": [1]}, TypeError, "x is of type list"),
        ({"x": 1j}, TypeError, "is a number (an int, a float or a bool), or"),
    ],
)
def test_what_cannot_be_kept(objects, error, sentence):
    with pytest.raises(error, match=re.escape(sentence)):
        elastic.State(**objects)


def test_attributes_that_are_wrong():
    state = elastic.State(loader=Loader(), step=0)
    with pytest.raises(AttributeError, match="no 'stap'; it has loader, step"):
        state.stap  # noqa: B018
    with pytest.raises(AttributeError, match="'other' is no number"):
        state.other = 1
    with pytest.raises(AttributeError, match="'loader' is no number"):
        state.loader = Loader()
    with pytest.raises(
        TypeError, match=r"step is a number \(an int, .* cannot be of type str"
    ):
        state.step = "1"
    with pytest.raises(TypeError, match="cannot be of type Tensor"):
        state.step = torch.tensor(1)
    assert state.step == 0


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (torch.ones(2).to_sparse(), r"loader\.x is a Tensor on cpu, of layout"),
        (torch.ones(2, device="meta"), r"loader\.x is a Tensor on meta"),
        (random.Random(), r"loader\.x is a Random; a state_dict\(\) can be"),
        ([1, {2: Loader()}], r"loader\.x\.1\.2 is a Loader"),
        ({Color.RED: 1}, r"loader\.x\.Color\.RED is a Color"),
        (threading.Lock(), r"loader\.x is a lock"),
    ],
)
def test_a_state_that_cannot_be_kept(rank, value, sentence):
    loader = Loader()
    loader.state = {"at": 1, "x": value}
    with pytest.raises(TypeError, match=sentence):
        rank.state(loader=loader).commit()


@pytest.mark.parametrize(
    "value", [Color.RED, (1, (Color.RED,)), {Color.RED: 1}]
)
def test_a_state_that_cannot_be_kept_any_more(rank, value):
    state = rank.state(loader=Loader(), step=0)
    state.step = 1
    state.commit()
    state.loader.state["x"] = value
    with pytest.raises(TypeError, match=r"loader\.x.* is a "):
        state.commit()
    rank.settle()
    assert rank.state(loader=Loader(), step=0).step == 1


def test_a_script_that_makes_other_things(rank):
    rank.state(layer=torch.nn.Linear(4, 4), step=0).commit()
    rank.settle()
    sentence = (
        r"layer\.weight was \(4, 4\) of torch\.float32 when it was committed, "
        r"and is \(4, 5\) of torch\.float32"
    )
    with pytest.raises(ValueError, match=sentence):
        rank.state(layer=torch.nn.Linear(5, 4), step=0)
    with pytest.raises(ValueError, match=r"layer\.bias was .* is no tensor"):
        rank.state(layer=torch.nn.Linear(4, 4, bias=False), step=0)
    with pytest.raises(ValueError, match=r"and is \(4,\) of torch\.bfloat16"):
        rank.state(layer=torch.nn.Linear(4, 4).bfloat16(), step=0)


@pytest.mark.parametrize(
    ("names", "now"),
    [
        (("other", "step"), "other, step (a number)"),
        (("layer",), "layer"),
        (("step",), "step (a number)"),
        (("layer", "epoch"), "epoch (a number), layer"),
        (
            ("layer", "step", "epoch"),
            "epoch (a number), layer, step (a number)",
        ),
    ],
)
def test_a_script_that_names_others(rank, names, now):
    rank.state(layer=torch.nn.Linear(4, 4), step=0).commit()
    rank.settle()
    sentence = (
        f"layer, step (a number) were committed, and {now} are named; a script"
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        rank.state(
            **{
                name: 0 if name in ("step", "epoch") else torch.nn.Linear(4, 4)
                for name in names
            }
        )


def test_a_script_that_makes_another_optimizer(rank):
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(layer.parameters())
    rank.state(optimizer=optimizer).commit()
    rank.settle()
    with pytest.raises(
        ValueError,
        match=r"optimizer is SGD, whose group 0 has the option 'dampening'; "
        r"what was committed had amsgrad, betas",
    ):
        rank.state(optimizer=torch.optim.SGD(layer.parameters()))


def test_options_that_were_added_while_it_trained_come_back(rank):
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters())
    state = rank.state(optimizer=optimizer)
    optimizer.param_groups[0]["seen"] = 3
    state.commit()
    rank.settle()
    other = torch.optim.SGD(layer.parameters())
    rank.state(optimizer=other)
    assert other.param_groups[0]["seen"] == 3


class Manager:
    """Stands for torchft's."""

    def __init__(self):
        self.steps = 0

    def register_state_dict_fn(self, key, load_state_dict, state_dict):
        self.load, self.save = load_state_dict, state_dict

    def state_dict(self):
        return {"step": self.steps}

    def load_state_dict(self, state):
        self.steps = state["step"]


def test_a_replica_that_heals_is_what_another_one_is(rank):
    models = [torch.nn.Linear(3, 2).to("chameleon") for _ in range(2)]
    managers = [Manager(), Manager()]
    ours, theirs = (
        rank.state(model=model, manager=manager, step=0)
        for model, manager in zip(models, managers, strict=True)
    )
    theirs.step = managers[1].steps = 5
    managers[0].load(managers[1].save())
    assert ours.step == 5
    assert same_bits(models[0].weight, models[1].weight)
    assert managers[0].steps == 0  # torchft's own affair


def test_a_replica_that_heals_needs_no_room_for_two(rank):
    made = []
    for _ in range(2):
        layer = torch.nn.Linear(512, 256).to("chameleon")
        adamw = torch.optim.AdamW(layer.parameters())
        manager = Manager()
        rank.state(layer=layer, adamw=adamw, manager=manager)
        layer(torch.ones(1, 512, device="chameleon")).sum().backward()
        adamw.step()
        adamw.zero_grad()
        made.append((layer, adamw, manager))
    (ours, adamw, manager), (theirs, _, other) = made
    state = other.save()
    assert {x.device.type for x in state["layer"].values()} == {"cpu"}
    assert state["layer"]._metadata
    expected = theirs.weight.detach().cpu()
    with torch.no_grad():
        theirs.weight.zero_()  # it goes on
    torch.chameleon.reset_peak_memory_stats()
    before = torch.chameleon.memory_allocated()
    manager.load(state)
    assert torch.chameleon.max_memory_allocated() == before
    assert same_bits(ours.weight.cpu(), expected)
    assert adamw.state[ours.weight]["exp_avg"].device.type == "chameleon"


@pytest.mark.parametrize(("theirs", "lost"), [(1, 2), (3, 1), (4, 0), (9, 0)])
def test_steps_that_others_have_are_not_lost(rank, theirs, lost):
    state = rank.state(manager=Manager(), step=0)
    for _ in range(2):
        state.commit()
    rank.settle()
    rank.memory.ledger.reached = 4
    manager, other = Manager(), Training({}, {"step": 0})
    rank.state(manager=manager, step=0)
    assert rank.memory.ledger.lost == 2
    other.steps = theirs
    manager.load(other.share())
    assert rank.memory.ledger.lost == lost
    manager.load(other.share())  # again, after a step that was not done
    assert rank.memory.ledger.lost == lost
    assert rank.memory.ledger.reached == theirs


def test_there_is_no_manager_without_a_lighthouse(monkeypatch):
    monkeypatch.delenv("TORCHFT_LIGHTHOUSE", raising=False)
    with pytest.raises(RuntimeError, match="no launcher has a lighthouse"):
        elastic.manager()
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "http://localhost:1")
    monkeypatch.setitem(sys.modules, "torchft", None)
    with pytest.raises(RuntimeError, match="torchft cannot be imported"):
        elastic.manager()
