"""A linear program, as its rows and columns are found."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array


class LinearProgram:
    """Least cost of variables under limits on sums of them.

    Attributes:
        costs: Per variable, what one of it costs.
    """

    def __init__(self) -> None:
        self.costs: list[float] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._entries: list[tuple[int, int, float]] = []
        self._limits: list[float] = []

    def variable(self, lower=0.0, upper=np.inf, cost=0.0) -> int:
        """One more; returns its number."""
        self.costs.append(cost)
        self._lower.append(lower)
        self._upper.append(upper)
        return len(self.costs) - 1

    def at_most(self, limit: float, *terms: tuple[int, float]) -> None:
        """The sum of (variable, factor) is at most the limit."""
        row = len(self._limits)
        self._limits.append(limit)
        self._entries += [(row, column, factor) for column, factor in terms]

    def least(self) -> float | None:
        """The least cost; None: no values keep all limits.

        Raises:
            RuntimeError: The solver gave up.
        """
        rows, columns, factors = zip(*self._entries, strict=True)
        matrix = coo_array(
            (factors, (rows, columns)),
            shape=(len(self._limits), len(self.costs)),
        ).tocsr()
        solution = linprog(
            self.costs,
            A_ub=matrix,
            b_ub=self._limits,
            bounds=np.column_stack((self._lower, self._upper)),
            method="highs",
        )
        if solution.status == 2:
            return None
        if not solution.success:
            raise RuntimeError(f"the linear program: {solution.message}")
        return solution.fun
