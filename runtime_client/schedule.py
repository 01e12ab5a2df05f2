"""PlanSchedule: trains with a plan, in place of a schedule of torch.distributed.pipelining."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.utils import _pytree

from runtime_client.agreement import agree
from runtime_client.engine import PlanEngine
from runtime_client.errors import JobMismatchError
from runtime_client.job import batch_findings, job_findings
from runtime_client.lowering import Action, lower
from runtime_client.step_guard import StepGuard
from runtime_client.transfers import check_transfers
from runtime_client.weight_grad_store import WeightGradStore
from zbplan.plan import Plan
from zbplan.validate import check


class PlanSchedule:
    """Runs the ops of each device exactly in the plan's order.

    Parameters
    ----------
    stages
        The stages that the plan places on this rank. A stage with W in the plan and without a ``dw_builder`` of its
        own gets one, and its Linears are routed through the weight-gradient store, in place.
    plan
        The same on all ranks of the stages' group.
    loss_fn
        ``loss_fn(output, target)`` of one microbatch, on every rank; it runs where the last stage is.
    scale_grads
        True, for a loss that is a mean over its rows: gradients are those of the mean over microbatches. False, for
        a sum: gradients add up. Gradients that are there before a step stay and are added to, unscaled.
    microbatches
        What the job expects; refused if the plan has another number. None takes the plan's.

    Raises
    ------
    JobMismatchError, PlanDigestError
        On every rank, if the plan does not fit some rank, or ranks hold different plans.
    InvalidPlanError
        If the plan is not legal.
    TransferOrderError, DeadlockError
        If its transfers could not be proven to arrive.
    """

    def __init__(
        self,
        stages: PipelineStage | Sequence[PipelineStage],
        plan: Plan,
        loss_fn: Callable[..., Tensor],
        *,
        scale_grads: bool = True,
        microbatches: int | None = None,
    ) -> None:
        held = [stages] if isinstance(stages, PipelineStage) else sorted(stages, key=lambda stage: stage.stage_index)
        agree(plan.to_json().encode(), job_findings(held, plan, microbatches), group=held[0].group)
        actions, forward_actions = lower(check(plan)), lower(plan, forward_only=True)
        for listed in (actions, forward_actions):
            check_transfers(listed, plan.placement)
        self.plan = plan
        self.stages = tuple(held)
        self.guard = StepGuard()
        self._loss_fn = loss_fn
        self._store = WeightGradStore()
        self._split_backward(held, actions[held[0].group_rank])
        self._holds_last = held[-1].is_last
        self._engine = PlanEngine(
            held,
            actions,
            forward_actions,
            self._loss,
            microbatches=plan.requires.microbatches,
            scale_grads=scale_grads,
            around=self._around,
        )

    def step(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Run one iteration on a whole batch; gradients are added to the parameters' ``grad``.

        Parameters
        ----------
        args
            Inputs of stage 0, on the rank that holds it; cut in microbatches along dimension 0.
        target
            What the loss compares with, on the rank that holds the last stage; cut likewise.
        losses
            Where that rank puts the losses, one per microbatch, in the order of microbatches.
        return_outputs
            True keeps all outputs of the last stage in memory and returns them as one batch there.
        kwargs
            Further inputs of this rank's stages; tensors are cut likewise.

        Raises
        ------
        JobMismatchError
            If a tensor cannot be cut in equal microbatches, or the target is missing.
        OpError
            Naming rank, op and microbatch of an op that failed.
        StepError
            If a transfer failed, most often because another rank is gone.
        """
        batch = {f"args[{at}]": value for at, value in enumerate(args)} | kwargs | {"target": target}
        self._check_batch(batch, needs_target=True)

        def attempt() -> Any:
            self._store.discard()
            return self._engine.step(*args, target=target, losses=losses, return_outputs=return_outputs, **kwargs)

        return self.guard.run(attempt, batch)

    def eval(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Run F only, without gradients; the stages' ``eval()`` and ``train()`` are the caller's to call.

        Takes what ``step`` takes and raises what it raises. Without a target no loss is computed.
        """
        self._check_batch({f"args[{at}]": value for at, value in enumerate(args)} | kwargs | {"target": target})
        with torch.no_grad():
            return self._engine.eval(*args, target=target, losses=losses, return_outputs=return_outputs, **kwargs)

    def _check_batch(self, values: dict[str, Any], *, needs_target: bool = False) -> None:
        findings = batch_findings(values, self.plan.requires.microbatches)
        if needs_target and self._holds_last and values["target"] is None:
            findings.append("found no target; needed one on the rank that holds the last stage")
        if findings:
            raise JobMismatchError(findings)

    def _split_backward(self, stages: list[PipelineStage], actions: list[Action]) -> None:
        split = {action.stage for action in actions if action.kind == "W"}
        for stage in stages:
            owner = getattr(stage.dw_builder, "__self__", None)
            if stage.stage_index in split and (stage.dw_builder is None or isinstance(owner, WeightGradStore)):
                self._store.attach(stage.submod)
                stage.dw_builder = self._store.take

    def _loss(self, output: Any, target: Any, **kwargs: Any) -> Tensor:
        return _any_loss(output) if self.guard.void else self._loss_fn(output, target, **kwargs)

    @contextmanager
    def _around(self, action: Action) -> Iterator[None]:
        self.guard.before(action)
        with self._store.recording(action.kind == "B"):
            yield


def _any_loss(output: Any) -> Tensor:
    """Return something to start a backward from that nobody will look at."""
    leaves = [leaf for leaf in _pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    return sum((leaf.sum() for leaf in leaves), start=torch.zeros(()))
