"""The optimizer step that does not wait for the other ranks (section 4 of the paper), exact to the last bit."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

from runtime_client.decision import Rules, Verdict, decide, judge
from runtime_client.gradient_state import GradientState, own_part, state_of
from runtime_client.pending_step import GradientNorm, PendingStep
from runtime_client.schedule import PlanSchedule
from runtime_client.settling_hooks import settle_before_reading
from runtime_client.speculation import bytes_of, speculation_for, with_hyperparameters
from runtime_client.step_guard import StepGuard
from runtime_client.validation import Validation
from runtime_client.validation_errors import OptimizerUseError
from runtime_client.void_iteration import VoidIteration
from runtime_client.weights import Weights

Mode = Literal["synchronous", "post_validated"]
WINDOW = 100
"""Over how many steps rollbacks are counted."""


class SynchronousFromHereWarning(UserWarning):
    """So many steps had to be taken back that it is faster to wait for all ranks before each step."""


@dataclass(frozen=True)
class Memory:
    """What speculation costs on this rank, in bytes.

    Attributes
    ----------
    held_bytes
        Weights that the optimizer steps, and its moments.
    kept_bytes
        Kept in addition from a step to its validation.
    passing_bytes
        The most that is held in addition while a step is computed ahead.
    """

    held_bytes: int
    kept_bytes: int
    passing_bytes: int

    @property
    def kept_share(self) -> float:
        """What is kept, as a share of weights and moments."""
        return self.kept_bytes / self.held_bytes if self.held_bytes else 0.0


class PostValidatedOptimizer:
    """Steps an optimizer by the gradients of all ranks, without waiting for them where that can be avoided.

    In mode "synchronous" a step waits for the state of all ranks' gradients, then clips, steps or skips. In mode
    "post_validated" a rank whose own gradients neither clip nor contain NaN or infinity steps at once, unclipped, and
    starts its next iteration. Before that iteration's first backward the state of all ranks is there. If it asks for
    something else, all ranks take the step back, make the right one, and run the iteration again. Weights, moments,
    counters and losses are in both modes the same to the last bit.

    Call ``schedule.step``, reduce gradients over data-parallel ranks and tied weights as ever, then ``step`` and
    ``zero_grad`` of this object. A learning-rate schedule works on the optimizer inside.

    Parameters
    ----------
    optimizer
        AdamW, Adam or SGD over the parameters of the schedule's stages; another one costs a snapshot of its state.
    schedule
        What runs the iterations; it is told to look in here.
    group
        The ranks over which the norm is taken; the default group if None. All of them must make this object. A DTensor
        counts by its placements; any other gradient counts on the first rank of the group that holds its stage.
    max_norm
        Gradients are clipped to this norm; None never clips.
    norm_type
        The p of the p-norm; ``math.inf`` for the largest.
    check_finite
        True skips a step whose gradients have NaN or infinity on any rank.
    mode
        None takes what the plan was made for.
    masters
        From ``master_weights``, if the optimizer steps float32 masters of low-precision parameters.
    tied
        Parameters of this rank that are copies of another rank's, which counts their gradient.
    loss_scaler
        Scales the loss, inside the schedule's ``loss_fn``; here gradients are unscaled and the scale is updated.
    rollback_limit
        The share of the last 100 steps, taken back, above which all ranks go over to "synchronous".
    timeout_s
        How long to wait for the slowest rank.

    Raises
    ------
    OptimizerUseError
        If options or weights do not fit.
    RankGoneError, ValidationError
        If a rank does not join within the time-out.
    """

    def __init__(
        self,
        optimizer: optim.Optimizer,
        schedule: PlanSchedule,
        *,
        group: dist.ProcessGroup | None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        check_finite: bool = True,
        mode: Mode | None = None,
        masters: Mapping[nn.Parameter, nn.Parameter] | None = None,
        tied: Sequence[nn.Parameter] = (),
        loss_scaler: torch.amp.GradScaler | None = None,
        rollback_limit: float = 0.05,
        timeout_s: float = 600.0,
    ) -> None:
        self.optimizer = optimizer
        self._rules = Rules(max_norm, norm_type, check_finite)
        self._modules = {stage.stage_index: stage.submod for stage in schedule.stages}
        self._weights = Weights(optimizer, list(self._modules.values()), masters)
        self._speculation = speculation_for(self._weights)
        self._validation = Validation(group, list(self._modules), timeout_s)
        self._tied = tuple(tied)
        self._scaler = _started(loss_scaler, schedule)
        self._rollback_limit = rollback_limit
        self._rollbacks: deque[bool] = deque(maxlen=WINDOW)
        self._asked_mode = mode
        self._pending: PendingStep | None = None
        self._iteration = VoidIteration(
            list(self._modules.values()),
            schedule.stages[0].device,
            settle=self.finalize,
            pending=lambda: self._pending is not None,
        )
        self.attach(schedule)
        settle_before_reading(optimizer, self._modules.values(), self._settle_outside_iterations)

    def attach(self, schedule: PlanSchedule) -> None:
        """Go over to another schedule of the same stages, such as one with a new plan; every rank must."""
        if {stage.stage_index: stage.submod for stage in schedule.stages} != self._modules:
            raise OptimizerUseError(
                f"found a schedule of stages {[stage.stage_index for stage in schedule.stages]}, or of other modules; "
                f"needed the very modules of stages {sorted(self._modules)}"
            )
        self.finalize()
        self._iteration.due = False
        self._rollbacks.clear()
        self.mode: Mode = self._asked_mode or schedule.plan.asked.optimizer
        schedule.guard = self._iteration if self.mode == "post_validated" else StepGuard()

    def step(self) -> GradientNorm:
        """Step by the gradients that are there, at once or after waiting for all ranks; return the norm's handle.

        Raises
        ------
        ValidationError
            If it has to wait for a rank that is gone.
        """
        self.finalize()
        own = self._own_state()
        exchange = self._validation.begin(own)
        self._pending = PendingStep(exchange, self._weights)
        if self.mode == "post_validated" and decide([own], self._rules).plain:
            self._speculation.advance()
            self._pending.moved = True
            self.optimizer._opt_called = True  # what a learning-rate schedule looks for
        else:
            self.finalize()
        return GradientNorm(exchange, self._rules.norm_type)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, as soon as the last step does not need them any more."""
        if self._pending is None:
            self._weights.zero_grad(set_to_none)
        else:
            self._pending.zero_grad = set_to_none

    def finalize(self) -> None:
        """Make sure that the last step is the right one: before evaluation, saving, and at the end.

        Each rank may do so when it likes.

        Raises
        ------
        ValidationError
            If a rank is gone.
        OptimizerUseError
            If the step's gradients are not there any more.
        """
        pending = self._pending
        if pending is None:
            return
        verdict = judge(pending.exchange.states(), self._rules)
        pending.check_gradients()
        self._pending = None
        with with_hyperparameters(self.optimizer, pending.hyperparameters), self._weights.unseen_by_autograd():
            self._make_step(verdict, moved=pending.moved)
        self._update_scale(verdict)
        if pending.zero_grad is not None:
            self._weights.zero_grad(pending.zero_grad)
        self._count(verdict)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, and the masters if there are any, after the last step is made sure of."""
        self.finalize()
        masters = [weight.stepped.detach() for weight in self._weights if weight.is_copy]
        return self.optimizer.state_dict() | ({"masters": masters} if masters else {})

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` has returned."""
        self.finalize()
        self.optimizer.load_state_dict({name: value for name, value in state.items() if name != "masters"})
        copies = [weight for weight in self._weights if weight.is_copy]
        for weight, master in zip(copies, state.get("masters", []), strict=True):
            weight.stepped.copy_(master)
        self._weights.round_masters()

    @property
    def memory(self) -> Memory:
        """What the last step that did not wait has cost."""
        moments = [
            value
            for own in self.optimizer.state.values()
            for value in own.values()
            if isinstance(value, Tensor) and value.dim()
        ]
        held = sum(map(bytes_of, [*(weight.stepped for weight in self._weights), *moments]))
        return Memory(held, self._speculation.kept_bytes, self._speculation.passing_bytes)

    @property
    def rollbacks(self) -> int:
        """How many of the last 100 steps were taken back, on this rank or another."""
        return sum(self._rollbacks)

    def _own_state(self) -> GradientState:
        if self._scaler is not None:
            self._scaler.unscale_(self.optimizer)
        counted = {
            stage: [
                part
                for gradient in gradients
                if (part := own_part(gradient, counts_replicas=stage in self._validation.first_held)) is not None
            ]
            for stage, gradients in self._weights.gradients(self._modules, skip=self._tied).items()
        }
        return state_of(counted, self._rules.norm_type)

    def _make_step(self, verdict: Verdict, *, moved: bool) -> None:
        if moved and verdict.decision.plain:
            self._speculation.confirm()
            return
        if moved:
            self._speculation.take_back()
        if verdict.decision.step:
            self._weights.step(verdict.decision.scale)

    def _update_scale(self, verdict: Verdict) -> None:
        """Let the scale go the same way on all ranks: each has looked for infinity among its own gradients only."""
        if self._scaler is not None:
            for found in self._scaler._found_inf_per_device(self.optimizer).values():
                found.fill_(float(not verdict.decision.step))
            self._scaler.update()

    def _count(self, verdict: Verdict) -> None:
        if self.mode == "synchronous":
            return
        self._iteration.due = verdict.overruled
        self._rollbacks.append(verdict.overruled)
        if self.rollbacks <= self._rollback_limit * WINDOW:
            return
        self.mode = "synchronous"
        if self._validation.is_first_rank:
            warnings.warn(
                f"{self.rollbacks} of the last {len(self._rollbacks)} optimizer steps had to be clipped or skipped "
                "after they were made, and an iteration run again for each: from here on all ranks wait for each other "
                "before they step. A max_norm that gradients seldom reach would let them go on",
                SynchronousFromHereWarning,
                stacklevel=2,
            )

    def _settle_outside_iterations(self) -> None:
        if not self._iteration.running:
            self.finalize()


def _started(scaler: torch.amp.GradScaler | None, schedule: PlanSchedule) -> torch.amp.GradScaler | None:
    """Let a scaler have its first scale on every rank; else only those that have scaled a loss would."""
    if scaler is not None and scaler.is_enabled():
        scaler.scale(torch.zeros((), device=schedule.stages[0].device))
        return scaler
    return None
