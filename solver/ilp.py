"""The paper's integer linear program (Appendix G) in PuLP, for HiGHS and CBC.

The variables are E, the end of every op, and O, whether one op of a device runs before another. Objective and
constraints carry the paper's numbers. What goes beyond it:

- several stages per device, every per-stage and per-microbatch time, ``peak``, and BW where it is not dominated
  (a binary variable makes B last as long as BW and W take no time right behind it);
- O is a constant where dependencies, or the sequence of equal microbatches, fix it (``device_ops``);
- the ∞ of equation 6 is, per pair, the least number that excludes nothing;
- the objective is cut at a known bound and at the incumbent, which is also the start.

Solvers compute with floats. Their orders are simulated anew, and their bounds are taken a little lower: ``MARGIN``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pulp
from pulp.apis import coin_api

from solver.axis import Axis
from solver.device_ops import DeviceOps, Op
from solver.outcome import Outcome
from zbplan.instance import BW, UNLIMITED, B, F, Instance, Orders, W
from zbplan.simulate import measure
from zbplan.tighten import tighten

MARGIN = 5e-7
"""The part of a bound that is given up for the solver's tolerances; half of what counts as a proven gap."""

LARGEST = 1 << 24
"""Parts that the objective takes at most, about: with 2^33 both solvers were seen to call optimal what was not."""

Expression = Any
"""A PuLP variable or expression, or a number."""


@dataclass(frozen=True)
class IlpOutcome(Outcome):
    """The same, with the solver's log: it must show that the start was accepted."""

    log: str


class Program:
    """An instance as Appendix G's integer linear program.

    Parameters
    ----------
    incumbent
        Legal orders: the start, and an upper limit for every time.
    bound
        A proven lower bound in ticks.
    """

    def __init__(self, instance: Instance, incumbent: Orders, bound: int = 0) -> None:
        self.ops = DeviceOps(instance)
        self.incumbent = self.ops.without_dominated(incumbent)
        self.axis = _axis_of(instance, measure(instance, tighten(instance, incumbent)).iteration)
        self.instance = self.axis.scaled
        self._start = tighten(self.instance, self.incumbent)
        self._upper = measure(self.instance, self._start).iteration
        self._lowest = min(self._upper, self.axis.cut(bound))
        self.problem = pulp.LpProblem("zero_bubble", pulp.LpMinimize)
        self.end: dict[Op, pulp.LpVariable] = {}
        self._order: dict[tuple[Op, Op], Expression] = {}
        self._fused: dict[tuple[int, int], pulp.LpVariable] = {}

    def build(self) -> pulp.LpProblem:
        """Return the complete program."""
        self._minimize_iteration()
        self._define_ends()
        self._send_forward()
        self._send_backward()
        self._weigh_after_backward()
        self._run_one_op_at_a_time()
        self._fit_memory()
        self._glue_fused_weights()
        self._set_start()
        return self.problem

    def _minimize_iteration(self) -> None:
        """Define the objective, cut at the bound and at the incumbent."""
        self.iteration = self.problem.add_variable("iteration", self._time(self._lowest), self._time(self._upper))
        self.problem += self.iteration

    def _define_ends(self) -> None:
        """E, and equation 3: the longest span of a device, from the start of its first F; or else the makespan."""
        for device in range(self.instance.devices):
            ops = self.ops.on(device)
            for op in ops:
                self.end[op] = self.problem.add_variable(
                    "E_{}_{}_{}".format(*op), self._time(self._earliest[op]), self._time(self._latest[op])
                )
            begin: Expression = 0
            if self.instance.post_validated:
                begin = self._begin(device, ops)
            for op in ops:
                if not any(self.ops.must_precede(op, other) for other in ops):
                    self.problem += self.iteration >= self.end[op] - begin

    def _begin(self, device: int, ops: list[Op]) -> Expression:
        firsts = [op for op in ops if not any(self.ops.must_precede(other, op) for other in ops)]
        if len(firsts) == 1:
            return self.end[firsts[0]] - self._duration(firsts[0])
        begin = self.problem.add_variable(f"begin_{device}", 0)
        for op in firsts:
            self.problem += begin <= self.end[op] - self._duration(op)
        begin.setInitialValue(self._time(self._start.start[self.incumbent.offsets[device]]))
        return begin

    def _send_forward(self) -> None:
        """Equation 4: F after F on the stage before, and the transfer."""
        for stage, lag in enumerate(self.instance.forward_lag.tolist()):
            for microbatch in range(self.instance.microbatches):
                self._follow((F, stage, microbatch), (F, stage + 1, microbatch), lag)

    def _send_backward(self) -> None:
        """Equation 5: B after B on the stage behind, and the transfer; and after its own F."""
        for stage in range(self.instance.stages):
            for microbatch in range(self.instance.microbatches):
                self._follow((F, stage, microbatch), (B, stage, microbatch))
        for stage, lag in enumerate(self.instance.backward_lag.tolist()):
            for microbatch in range(self.instance.microbatches):
                self._follow((B, stage + 1, microbatch), (B, stage, microbatch), lag)

    def _weigh_after_backward(self) -> None:
        """W after its B."""
        for op in self.end:
            if op[0] == W:
                self._follow((B, *op[1:]), op)

    def _follow(self, first: Op, second: Op, lag: int = 0) -> None:
        self.problem += self.end[second] >= self.end[first] + self._time(lag) + self._duration(second)

    def _run_one_op_at_a_time(self) -> None:
        """Equation 6, for both sequences of every open pair; the next of equal microbatches follows in any case."""
        for device in range(self.instance.devices):
            for first, second in self.ops.pairs(device):
                order = self.before(first, second)
                self._exclude(first, second, 1 - order)
                self._exclude(second, first, order)
            for op in self.ops.on(device):
                after = (*op[:2], op[2] + 1)
                if after in self.end and self.ops.must_precede(op, after):
                    self._follow(op, after)

    def _exclude(self, first: Op, second: Op, released: Expression) -> None:
        """Let ``second`` follow ``first`` unless ``released`` is one."""
        longest = max(self._durations(second))
        infinity = self._time(max(0, self._latest[first] + longest - self._earliest[second]))
        self.problem += self.end[second] >= self.end[first] + self._duration(second) - infinity * released

    def _fit_memory(self) -> None:
        """Equation 7: what earlier ops leave live, and what the op takes itself, within the limit."""
        for device in range(self.instance.devices):
            if self.instance.room[device] == UNLIMITED:
                continue
            ops = self.ops.on(device)
            lowest = min(int(self.instance.peak[stage].min()) for stage in self.instance.stages_of[device])
            for op in ops:
                if self._taken(op) or self._peak(op) > lowest:
                    self._fit_one(device, op, ops)

    def _fit_one(self, device: int, op: Op, ops: list[Op]) -> None:
        room = int(self.instance.room[device])
        unit = max(1, room)
        live = pulp.lpSum(self._change(other) / unit * self.before(other, op) for other in ops if other != op)
        fused = self.fused(*op[1:])
        own = self._taken(op) * (1 - fused) if op[0] == B else self._taken(op)
        spared = self._most_live(ops) * fused if op[0] == W else 0
        self.problem += live + own / unit + self._peak(op) / unit - spared / unit <= room / unit

    def _glue_fused_weights(self) -> None:
        """W of a BW stands right behind its B."""
        for (stage, microbatch), fused in self._fused.items():
            backward, weight = (B, stage, microbatch), (W, stage, microbatch)
            slack = self._time(self._latest[weight] - self._earliest[backward])
            self.problem += self.end[weight] <= self.end[backward] + slack * (1 - fused)
            for other in self.ops.on(int(self.instance.device_of[stage])):
                if other not in (backward, weight):
                    difference = self.before(backward, other) - self.before(weight, other)
                    self.problem += difference <= 1 - fused
                    self.problem += difference >= fused - 1

    def before(self, first: Op, second: Op) -> Expression:
        """Return O: 1 if one op of a device runs before another; a constant where it is known."""
        if self.ops.must_precede(first, second):
            return 1
        if self.ops.must_precede(second, first):
            return 0
        if (first, second) not in self._order:
            variable = self.problem.add_variable("O_{}_{}_{}_{}_{}_{}".format(*first, *second), cat=pulp.LpBinary)
            self._order[first, second] = variable
            self._order[second, first] = 1 - variable
        return self._order[first, second]

    def fused(self, stage: int, microbatch: int) -> Expression:
        """Return 1 if BW runs in place of B and W; a constant where it is known."""
        if not self.ops.choice[stage, microbatch]:
            return 0
        if (stage, microbatch) not in self._fused:
            self._fused[stage, microbatch] = self.problem.add_variable(f"BW_{stage}_{microbatch}", cat=pulp.LpBinary)
        return self._fused[stage, microbatch]

    @cached_property
    def _scale(self) -> float:
        """Parts of the axis per unit of the program's time: about one op, so that tolerances are small."""
        return float(max(1, np.median(self.instance.duration[F])))

    def _time(self, parts: int) -> float:
        return int(parts) / self._scale

    def _durations(self, op: Op) -> list[int]:
        """Return the durations that an op may have: apart, and as part of a BW."""
        kind, stage, microbatch = op
        apart = int(self.instance.duration[kind, stage, microbatch])
        whole = int(self.instance.duration[BW, stage, microbatch]) if kind == B else 0
        if kind == F or (self.ops.has_weight(stage) and not self.ops.choice[stage, microbatch]):
            return [apart]
        return [apart, whole] if self.ops.has_weight(stage) else [whole]

    def _duration(self, op: Op) -> Expression:
        apart, *whole = map(self._time, self._durations(op))
        return apart + (whole[0] - apart) * self.fused(*op[1:]) if whole else apart

    @cached_property
    def _earliest(self) -> dict[Op, int]:
        """The least end of every op, in parts: its microbatch's way to it."""
        earliest: dict[Op, int] = {}
        for microbatch in range(self.instance.microbatches):
            time = 0
            for op, lag in self._way(microbatch):
                time += lag + min(self._durations(op))
                earliest[op] = time
            for stage in range(self.instance.stages):
                if self.ops.has_weight(stage):
                    weight = (W, stage, microbatch)
                    earliest[weight] = earliest[B, stage, microbatch] + min(self._durations(weight))
        return earliest

    @cached_property
    def _latest(self) -> dict[Op, int]:
        """The greatest end of every op, in parts, in some best schedule.

        Every F and B lies within the span of the device of stage 0, and so do the microbatch's ops after it; W within
        its own device's span, which begins before its F ends.
        """
        latest: dict[Op, int] = {}
        for microbatch in range(self.instance.microbatches):
            time = self._upper
            for op, lag in reversed(list(self._way(microbatch))):
                latest[op] = time
                time -= lag + min(self._durations(op))
            for stage in range(self.instance.stages):
                late = 2 * self._upper if self.instance.post_validated else self._upper
                latest[W, stage, microbatch] = late
        return latest

    def _way(self, microbatch: int) -> Iterator[tuple[Op, int]]:
        """Yield a microbatch's F and B in sequence, each with the lag before it."""
        instance = self.instance
        for stage, lag in enumerate([0, *instance.forward_lag.tolist()]):
            yield (F, stage, microbatch), lag
        for stage, lag in reversed(list(enumerate([*instance.backward_lag.tolist(), 0]))):
            yield (B, stage, microbatch), lag

    def _taken(self, op: Op) -> int:
        kind, stage, microbatch = op
        return int(self.instance.hold[kind, stage, microbatch]) if kind == F or self.ops.has_weight(stage) else 0

    def _change(self, op: Op) -> int:
        """ΔM: how much more is live after an op than before it."""
        kind, stage, microbatch = op
        kind = BW if kind == B and not self.ops.has_weight(stage) else kind
        return int(self.instance.hold[kind, stage, microbatch]) - int(self.instance.release[kind, stage, microbatch])

    def _peak(self, op: Op) -> int:
        return int(self.instance.peak[op[1], op[2]])

    def _most_live(self, ops: list[Op]) -> int:
        return sum(self._taken(op) + self._peak(op) for op in ops)

    def _set_start(self) -> None:
        """Give every variable its value in the incumbent."""
        numbered = self.ops.numbered(self.incumbent)
        self.iteration.setInitialValue(self._time(self._upper))
        for (first, second), order in self._order.items():
            if isinstance(order, pulp.LpVariable):
                order.setInitialValue(int(numbered.position[first] < numbered.position[second]))
        for cell, fused in self._fused.items():
            fused.setInitialValue(int(cell in numbered.fused))
        for op, variable in self.end.items():
            at = int(self.incumbent.offsets[self.instance.device_of[op[1]]]) + numbered.position[op] // 2
            variable.setInitialValue(self._time(self._start.end[at]))

    def orders(self) -> Orders:
        """Return the orders of the solution that the variables hold: an op stands behind all that run before it."""
        return Orders.of([self._orders_on(device) for device in range(self.instance.devices)])

    def _orders_on(self, device: int) -> list[int]:
        ops = self.ops.on(device)
        rank = {op: sum(self._is_one(self.before(other, op)) for other in ops if other != op) for op in ops}
        codes = []
        for op in sorted(ops, key=lambda op: (rank[op], self.ops.depth(op))):
            kind, stage, microbatch = op
            fused = self._is_one(self.fused(stage, microbatch)) or not self.ops.has_weight(stage)
            if kind != W or not fused:
                codes.append(self.instance.code(BW if kind == B and fused else kind, stage, microbatch))
        return codes

    @staticmethod
    def _is_one(value: Expression) -> bool:
        return bool(round(value if isinstance(value, int) else pulp.value(value)))

    def bound(self, objective: float) -> int:
        """Return the ticks below which the objective cannot be, given the bound in the program's time."""
        if not np.isfinite(objective):
            return 0
        return self.axis.bound(objective * (1 - MARGIN) * self._scale)


def _axis_of(instance: Instance, longest: int) -> Axis:
    """Return a time axis whose numbers are small enough for solvers that compute with floats."""
    parts = Axis(instance, longest, LARGEST).parts
    return Axis(instance, longest, max(1, LARGEST // parts))


def solve_ilp(
    instance: Instance,
    incumbent: Orders,
    *,
    bound: int = 0,
    time_limit_s: float,
    solver: str = "highs",
    threads: int = 2,
) -> IlpOutcome:
    """Solve the program with ``highs`` or ``cbc`` until the time is up or the gap is closed.

    Raises
    ------
    pulp.PulpSolverError
        If the solver is missing or fails.
    """
    program = Program(instance, incumbent, bound)
    problem = program.build()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        run = {"highs": _run_highs, "cbc": _run_cbc}[solver]
        objective = run(problem, log, time_limit_s, threads)
        text = log.read_text(errors="replace") if log.exists() else ""
    if problem.sol_status == pulp.LpSolutionOptimal and not problem.isMIP():
        objective = float(pulp.value(problem.objective))
    found = problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    return IlpOutcome(
        orders=program.orders() if found and program.iteration.value() is not None else None,
        bound=max(bound, program.bound(objective)),
        status=pulp.LpSolution[problem.sol_status],
        log=text,
    )


def _run_highs(problem: pulp.LpProblem, log: Path, time_limit_s: float, threads: int) -> float:
    """Run HiGHS with a start, which PuLP's own ``warmStart`` does not pass on; return its bound."""
    import highspy

    solver = pulp.HiGHS(msg=False, timeLimit=time_limit_s, threads=threads)
    solver.createAndConfigureSolver(problem)
    model = problem.solverModel
    for option, value in (("log_to_console", False), ("log_file", str(log)), ("output_flag", True)):
        model.setOptionValue(option, value)
    solver.buildSolverModel(problem)
    start = highspy.HighsSolution()
    start.col_value = [variable.varValue for variable in problem.variables()]
    model.setSolution(start)
    solver.callSolver(problem)
    problem.assignStatus(*solver.findSolutionValues(problem))
    information = model.getInfo()
    if information.primal_solution_status != highspy.kSolutionStatusFeasible:
        problem.sol_status = pulp.LpSolutionNoSolutionFound
    return float(information.mip_dual_bound)


def _run_cbc(problem: pulp.LpProblem, log: Path, time_limit_s: float, threads: int) -> float:
    """Run CBC with a start; return its bound, which stands in the log alone."""
    bundled = getattr(coin_api, "pulp_cbc_path", None)
    solver = pulp.COIN_CMD(
        path=bundled, msg=False, timeLimit=time_limit_s, threads=threads, warmStart=True, logPath=str(log)
    )
    problem.solve(solver)
    for line in reversed(log.read_text(errors="replace").splitlines()):
        if line.startswith(("Lower bound:", "Objective value:")):
            return float(line.split(":")[1])
    return -np.inf
