"""torch_chameleon.config: a view of the C++ option table."""

import pytest
import torch
import torch_chameleon
from torch_chameleon import _C, _config, config

MIB = 1 << 20


def declared():
    return {
        key: option
        for key, option in vars(_config.Config).items()
        if isinstance(option, _config._Option)
    }


def test_declared_keys_match_the_table():
    kinds = {"bytes": "_Bytes", "number": "_Number", "count": "_Count"}
    table = {
        spec["key"]: kinds.get(spec["kind"], "_Text")
        for spec in _C.option_specs()
    }
    ours = {key: type(option).__name__ for key, option in declared().items()}
    assert ours == table


def test_every_key_has_an_environment_variable():
    for spec in _C.option_specs():
        assert spec["environment"] == f"CHAMELEON_{spec['key'].upper()}"
        assert spec["help"]


def test_environment_is_read(fresh):
    code = "import torch_chameleon as t; print(t.config.hbm_budget)"
    assert fresh(code, CHAMELEON_HBM_BUDGET="3MiB") == str(3 * MIB)


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (100 * MIB, 100 * MIB),
        ("100MiB", 100 * MIB),
        ("0.5GiB", 512 * MIB),
        ("200 mb", 200_000_000),
        (1e8, 100_000_000),
    ],
)
def test_bytes(value, read):
    with config.patch(hbm_budget=value):
        assert config.hbm_budget == read
        assert type(config.hbm_budget) is int


def test_none_means_derive_it():
    with config.patch(host_budget="1GiB"):
        assert config.host_budget == 1 << 30
        config.host_budget = None
        assert config.host_budget is None


def test_numbers():
    with config.patch(oversubscription=2):
        assert config.oversubscription == 2.0
        assert type(config.oversubscription) is float


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hbm_budget", "8 apples"),
        ("hbm_budget", -1),
        ("hbm_budget", True),
        ("hbm_budget", [1]),
        ("oversubscription", "much"),
        ("oversubscription", -2),
        ("oversubscription", float("nan")),
        ("policy", "magic"),
        ("physical_device", "abacus"),
    ],
)
def test_bad_value(key, value):
    before = getattr(config, key)
    with pytest.raises(ValueError, match=key) as caught:
        setattr(config, key, value)
    assert str(value) in str(caught.value)
    assert getattr(config, key) == before


def test_bad_choice_names_what_is_allowed():
    with pytest.raises(ValueError, match="lru"):
        config.policy = "magic"


UNKNOWN = {
    "get": lambda: config.hbm_bugdet,
    "set": lambda: setattr(config, "hbm_bugdet", 1),
    "patch": lambda: config.patch(hbm_bugdet=1),
}


@pytest.mark.parametrize("act", UNKNOWN)
def test_unknown_key(act):
    with pytest.raises(AttributeError, match="hbm_budget") as caught:
        UNKNOWN[act]()
    assert "hbm_bugdet" in str(caught.value)


def test_no_deletion():
    with pytest.raises(AttributeError, match="set it to None"):
        del config.hbm_budget


def test_patch_restores():
    before = config.hbm_budget, config.oversubscription
    with config.patch(hbm_budget="64MiB", oversubscription=8) as inside:
        assert inside is config
        assert config.hbm_budget == 64 * MIB
        with config.patch(hbm_budget="32MiB"):
            assert config.hbm_budget == 32 * MIB
        assert config.hbm_budget == 64 * MIB
    assert (config.hbm_budget, config.oversubscription) == before


def test_patch_restores_after_an_exception():
    before = config.hbm_budget
    with pytest.raises(KeyError), config.patch(hbm_budget="64MiB"):
        raise KeyError
    assert config.hbm_budget == before


@pytest.mark.parametrize("order", [1, -1])
def test_patch_is_all_or_nothing(order):
    before = dict(config)
    values = {"hbm_budget": "64MiB", "policy": "magic", "host_budget": "1GiB"}
    patch = config.patch(**dict(list(values.items())[::order]))
    with pytest.raises(ValueError, match="policy"), patch:
        pass
    assert dict(config) == before


def test_patch_does_not_depend_on_the_order_of_keys():
    """A limit below what is live is refused, the product counts."""
    held = torch.empty(96 * MIB, dtype=torch.uint8, device="chameleon")
    with config.patch(oversubscription=2.0):
        for keys in (
            {"hbm_budget": "16MiB", "oversubscription": 8.0},
            {"oversubscription": 8.0, "hbm_budget": "16MiB"},
        ):
            with config.patch(**keys):
                assert config.hbm_budget == 16 * MIB
    del held


def test_limit_below_what_is_live_is_refused():
    held = torch.empty(96 * MIB, dtype=torch.uint8, device="chameleon")
    before = dict(config)
    with pytest.raises(ValueError, match="hbm_budget"):
        config.hbm_budget = "1MiB"
    assert dict(config) == before
    del held


def test_patch_decorates():
    @config.patch(hbm_budget="64MiB")
    def inside():
        """Documented."""
        return config.hbm_budget

    assert inside() == inside() == 64 * MIB
    assert inside.__doc__ == "Documented."
    assert config.hbm_budget != 64 * MIB


def test_one_patch_can_be_entered_twice():
    before = config.hbm_budget
    patch = config.patch(hbm_budget="64MiB")
    with patch, patch:
        pass
    assert config.hbm_budget == before


def test_fixed_at_first_use():
    torch.empty(1, device="chameleon")
    with pytest.raises(ValueError, match="physical_device") as caught:
        config.physical_device = "cuda"
    assert _C.first_use() in str(caught.value)


def test_listings():
    keys = [spec["key"] for spec in _C.option_specs()]
    assert set(keys) <= set(dir(config))
    assert [key for key, _ in config] == keys
    text, table = repr(config), config.markdown_table()
    for spec in _C.option_specs():
        assert spec["key"] in text
        assert f"| `{spec['key']}` | {spec['default']} |" in table
        assert spec["environment"] in table


def test_same_object_under_both_names():
    assert torch_chameleon.config is _config.config
