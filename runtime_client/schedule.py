"""PlanSchedule: trains with a plan, in place of a schedule of torch.distributed.pipelining."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.utils import _pytree

from runtime_client.agreement import agree
from runtime_client.engine import Around, PlanEngine
from runtime_client.errors import JobMismatchError
from runtime_client.job import (
    Signature,
    batch_findings,
    job_findings,
    reduction_findings,
    signature_findings,
    signature_of,
)
from runtime_client.lowering import Action, lower
from runtime_client.split_backward import SplitBackward
from runtime_client.step_guard import StepGuard
from runtime_client.tracing import Tracer
from runtime_client.transfers import check_transfers
from zbplan.plan import Plan
from zbplan.record import canonical_json
from zbplan.trace import Trace
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
    starts
        With which layer of the model each stage begins, as the job built them; needed, and refused if it is another
        cut, where the plan cut the layers (``plan.requires.starts``).
    data_parallel_group
        The ranks that hold the same stages and train on other data: ``step`` leaves the average of their gradients.
        Not for stages under FSDP2, which average on their own, right behind their last op.
    overlap_grad_reduce
        True starts to average each parameter as soon as its gradient is final, and runs the W behind the last other
        op of this rank parameter by parameter, so that most are final early (paper, Appendix A). Sums keep their bits.
    trace
        True notes when each op really runs, for ``trace()``.

    Attributes
    ----------
    plan, stages
        As given; stages in forward order.
    loss_fn
        As given; may be replaced between two steps.

    Warns
    -----
    UnsplitStageWarning, WeightsInBWarning
        If a stage runs more in B than the plan expects: right, but slower.
    UntrainedStageWarning
        In the first step, if no gradient can reach any parameter of a stage that has some to train.

    Raises
    ------
    JobMismatchError, PlanDigestError
        On every rank, if the plan does not fit some rank, or ranks hold different plans.
    InvalidPlanError
        If the plan is not legal.
    TransferOrderError, DeadlockError
        If its transfers could not be proven to arrive.
    RankGoneError
        If a rank does not join within the group's time-out.
    """

    def __init__(
        self,
        stages: PipelineStage | Sequence[PipelineStage],
        plan: Plan,
        loss_fn: Callable[..., Tensor],
        *,
        scale_grads: bool = True,
        microbatches: int | None = None,
        starts: Sequence[int] | None = None,
        data_parallel_group: dist.ProcessGroup | None = None,
        overlap_grad_reduce: bool = False,
        trace: bool = False,
    ) -> None:
        held = [stages] if isinstance(stages, PipelineStage) else sorted(stages, key=lambda stage: stage.stage_index)
        findings = job_findings(held, plan, microbatches, starts)
        findings += reduction_findings(held, data_parallel_group, overlap_grad_reduce)
        # Ranks that each planned for themselves hold one plan, though its search took them different times.
        content = canonical_json(plan.model_dump(mode="json", exclude={"provenance"}))
        agree(content.encode(), findings, group=held[0].group)
        actions, forward_actions = lower(check(plan)), lower(plan, forward_only=True)
        for listed in (actions, forward_actions):
            check_transfers(listed, plan.placement)
        self.plan = plan
        self.stages = tuple(held)
        self.guard = StepGuard()
        self.loss_fn = loss_fn
        ops = [action for action in actions[held[0].group_rank] if not action.is_transfer]
        self._backward = SplitBackward(held, ops, data_parallel_group, overlap_grad_reduce)
        self._tracer = Tracer(held[0].device, overlap_grad_reduce=overlap_grad_reduce) if trace else None
        self._observers: list[Around] = []
        self._signature: Signature = {}
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
            If a tensor cannot be cut in equal microbatches or has another shape than in the first step, or the target
            is missing.
        OpError
            Naming rank, op and microbatch of an op that failed.
        StepError
            If a transfer failed, most often because another rank is gone.
        """
        batch = {f"args[{at}]": value for at, value in enumerate(args)} | kwargs | {"target": target}
        self._check_batch(batch, needs_target=True)

        def attempt() -> Any:
            self._backward.forget()
            with self._traced_step(args):
                outputs = self._engine.step(
                    *args, target=target, losses=losses, return_outputs=return_outputs, **kwargs
                )
                self._backward.finish()
            return outputs

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

    @contextmanager
    def observed(self, observer: Around) -> Iterator[None]:
        """Run everything that the steps inside the block do inside of ``observer(action)``.

        Parameters
        ----------
        observer
            Given an action, a context manager: ``action.kind`` is F, B, W, BW or LOSS, whose input has arrived by then
            (F and LOSS of the last stage follow each other), SEND_F or SEND_B, which end when they are posted, or
            RECV_F or RECV_B, which is the wait for what is received; ``action.stage`` and ``action.microbatch`` say of
            what. ``eval`` is not observed.
        """
        self._observers.append(observer)
        try:
            yield
        finally:
            self._observers.remove(observer)

    def trace(self) -> Trace:
        """Return the latest steps (up to 32) since the last call, of all ranks: every rank of the group must call.

        ``Path("trace.json").write_text(schedule.trace().to_json())`` saves them for ``zbplan trace``.

        Raises
        ------
        TraceError
            On every rank, if ranks noted other steps since the last call, or none.
        JobMismatchError
            On every rank, if some rank's schedule was not made with ``trace=True``.
        RankGoneError
            If a rank does not join within the group's time-out.
        """
        group, notes_nothing = self.stages[0].group, "found a PlanSchedule that notes nothing; needed trace=True"
        agree(b"", [] if self._tracer else [f"{notes_nothing} on every rank"], group=group)
        assert self._tracer is not None  # noqa: S101 - agreed on just above
        return self._tracer.collect(self.plan, group)

    def _traced_step(self, args: tuple[Any, ...]) -> AbstractContextManager[None]:
        if self._tracer is None:
            return nullcontext()
        return self._tracer.step(args[0] if args else None, counts=lambda: not self.guard.void)

    def _check_batch(self, values: dict[str, Any], *, needs_target: bool = False) -> None:
        findings = batch_findings(values, self.plan.requires.microbatches)
        if needs_target and self._holds_last and values["target"] is None:
            findings.append("found no target; needed one on the rank that holds the last stage")
        signature = signature_of({name: value for name, value in values.items() if name != "target"})
        findings += signature_findings(signature, self._signature or signature)
        if findings:
            raise JobMismatchError(findings)
        self._signature = signature

    def _loss(self, output: Any, target: Any, **kwargs: Any) -> Tensor:
        return _any_loss(output) if self.guard.void else self.loss_fn(output, target, **kwargs)

    @contextmanager
    def _around(self, action: Action) -> Iterator[None]:
        self.guard.before(action)
        with ExitStack() as stack:
            if not action.is_transfer:
                stack.enter_context(self._backward.during(action))
            if self._tracer is not None:
                stack.enter_context(self._tracer.during(action))
            for observer in self._observers:
                stack.enter_context(observer(action))
            yield


def _any_loss(output: Any) -> Tensor:
    """Return something to start a backward from that nobody will look at."""
    leaves = [leaf for leaf in _pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    return sum((leaf.sum() for leaf in leaves), start=torch.zeros(()))
