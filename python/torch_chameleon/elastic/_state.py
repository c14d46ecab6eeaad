"""What a training is made of, and can be gone back to."""

from typing import Any

from torch_chameleon.elastic import _arming, _explaining, _keeper
from torch_chameleon.elastic._training import Training

_METHODS = ("state_dict", "load_state_dict")
_NUMBERS = "an int, a float or a bool"


class State:
    """A training that goes on from its last commit when its process dies.

    What is kept: the objects that are named here, which are whatever has
    `state_dict()` and `load_state_dict()` (modules, optimizers, schedulers,
    data loaders that know their position), and numbers; further the states of
    the random number generators of Python, torch, the device and, if it is
    imported, NumPy. Not kept: gradients, and whatever is not named.

    Objects and numbers are attributes; numbers can be set. In a process that
    comes back all have the last committed state when this returns, so it stands
    behind what makes them and before the loop. All ranks make one, after
    `init_process_group`.

    Without an elastic agent (`python -m torch_chameleon elastic`, `torchrun`)
    nobody would start the process again, and commits do nothing.

    Args:
        **objects: What is kept, by name.

    Raises:
        TypeError: An object is neither a number nor has a state.
        ValueError: There is none, a name cannot be one, or an object is not
            made as it was when its state was committed.
        RuntimeError: The launcher is gone.

    Examples:
        >>> import torch, torch_chameleon
        >>> model = torch.nn.Linear(8, 8).to("chameleon")
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> state = torch_chameleon.elastic.State(
        ...     model=model, optimizer=optimizer, step=0
        ... )
        >>> x = torch.ones(2, 8, device="chameleon")
        >>> while state.step < 3:
        ...     state.model(x).sum().backward()
        ...     state.optimizer.step()
        ...     state.optimizer.zero_grad()
        ...     state.step += 1
        ...     state.commit()
        >>> state.step
        3
    """

    _training: Training

    def __init__(self, **objects: Any):
        if not objects:
            raise ValueError("elastic.State() keeps nothing: name something")
        for name, value in objects.items():
            _check(name, value)
        training = Training(
            {k: v for k, v in objects.items() if not _is_number(v)},
            {k: v for k, v in objects.items() if _is_number(v)},
        )
        self.__dict__["_training"] = training
        memories = _keeper.find()
        if memories is not None:
            training.come_back(memories)
        _explaining.is_of(training)
        _arming.arm(training)

    def commit(self) -> None:
        """Makes this moment one that can be gone back to.

        Says what is kept, and returns. The bytes go to the keeper's memory
        while the link is idle, and at the latest before the op that changes
        them; a thread then computes checksums. The next commit waits until that
        is done on all ranks, so that none is more than a step ahead of what all
        can go back to. The host holds two copies of all that is kept. With
        `config.mirror_steps = n` only each n-th call does this.

        Raises:
            RuntimeError: Another rank ended.
            TypeError: A state cannot be kept.
        """
        self._training.commit()

    def __getattr__(self, name: str) -> Any:
        if name == "_training":  # not made yet
            raise AttributeError(name)
        kept = {**self._training.objects, **self._training.numbers}
        if name not in kept:
            raise AttributeError(
                f"elastic.State has no {name!a}; it has {', '.join(kept)}"
            )
        return kept[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._training.numbers:
            raise AttributeError(
                f"elastic.State: {name!a} is no number that was named when it "
                "was made; only those can be set"
            )
        if not _is_number(value):
            raise TypeError(
                f"elastic.State: {name} is a number ({_NUMBERS}), and cannot "
                f"be of type {type(value).__name__}"
            )
        self._training.numbers[name] = value


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, bool)  # what an index is read with


def _check(name: str, value: Any) -> None:
    if name == "commit" or name.startswith("_"):
        raise ValueError(f"elastic.State: {name!a} cannot be a name in it")
    if _is_number(value):
        return
    if isinstance(value, type) or not all(
        callable(getattr(value, method, None)) for method in _METHODS
    ):
        raise TypeError(
            f"elastic.State: {name} is of type {type(value).__name__}; what is "
            f"kept is a number ({_NUMBERS}), or has state_dict() and "
            "load_state_dict()"
        )
