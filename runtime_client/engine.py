"""The engine that runs lowered plans: the one module that touches private parts of torch.distributed.pipelining.

Supported: torch 2.11 to 2.14. What each touch relies on is tested by ``tests/runtime_client/test_engine.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

from runtime_client.errors import OpError, StepError
from runtime_client.lowering import Action

Around = Callable[[Action], AbstractContextManager[None]]
"""Given an op, what it runs inside of; waiting for its input is over by then. LOSS follows the last stage's F."""

_COMPUTATION = {
    "F": _ComputationType.FORWARD,
    "B": _ComputationType.BACKWARD_INPUT,
    "W": _ComputationType.BACKWARD_WEIGHT,
    "BW": _ComputationType.FULL_BACKWARD,
    "SEND_F": _ComputationType.SEND_F,
    "RECV_F": _ComputationType.RECV_F,
    "SEND_B": _ComputationType.SEND_B,
    "RECV_B": _ComputationType.RECV_B,
}


class PlanEngine(_PipelineScheduleRuntime):
    """torch's runtime for lists of actions, with losses and outputs keyed by microbatch.

    torch's own keeps both in the order in which the last stage ran them, and takes microbatch i for entry i.

    The gradient is scaled on the loss, not on the parameters at the end of the step (torch's ``scale_grads``), which
    would scale a weight that two stages of one rank share twice, and gradients kept from earlier steps once more.
    """

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        actions: Sequence[Sequence[Action]],
        loss_fn: Callable[..., Tensor],
        *,
        microbatches: int,
        scale_grads: bool,
        around: Around,
    ) -> None:
        super().__init__(list(stages), microbatches, loss_fn=loss_fn, scale_grads=False)
        self._divisor = microbatches if scale_grads else 1
        self._around = around
        self._loss_of: dict[int, Tensor] = {}
        self._output_order = [
            action.microbatch
            for action in actions[self.rank]
            if action.kind == "F" and action.stage == self._num_stages - 1
        ]
        for stage in stages:
            # torch 2.11 warms up with a message to the neighbour stage, which with V may be on the same rank.
            stage._get_init_p2p_neighbors_ops = list
        listed = {device: [_torch_action(action) for action in own] for device, own in enumerate(actions)}
        self._prepare_schedule_with_comms(listed, format="compute_comms")
        # Only its own list runs here; torch would hold all, and print all when a step fails.
        self.pipeline_order_with_comms = {device: [] for device in listed} | {self.rank: listed[self.rank]}

    def _step_microbatches(self, *args: Any, **kwargs: Any) -> None:
        self._loss_of.clear()
        with _observed(self._stages, self._around_named):
            try:
                super()._step_microbatches(*args, **kwargs)
            except OpError:
                raise
            except Exception as error:
                raise StepError(self.rank, error) from error

    @contextmanager
    def _around_named(self, action: Action) -> Iterator[None]:
        try:
            with self._around(action):
                yield
        except Exception as error:
            raise OpError(self.rank, str(action), error) from error

    def _maybe_compute_loss(
        self, stage: Any, output: Any, target_mbs: Any, mb_index: int, loss_kwargs: dict[str, Any] | None = None
    ) -> None:
        if stage.is_last:
            with self._around_named(Action("LOSS", stage.stage_index, mb_index)):
                self._loss_of[mb_index] = self._loss_fn(output, target_mbs[mb_index], **(loss_kwargs or {}))

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> Tensor | None:
        if not stage.is_last:
            return None
        loss = self._loss_of[mb_index]
        self._loss_of[mb_index] = loss.detach()  # so that the microbatch's graph dies with its backward
        return loss / self._divisor

    def _update_losses(self, stages: Any, losses: list[Tensor] | None) -> None:
        if self._loss_of and losses is not None:
            losses[:] = [self._loss_of[microbatch] for microbatch in range(self._n_microbatches)]
        self._loss_of.clear()

    def _merge_outputs(self, output_chunks: list[Any]) -> Any:
        by_microbatch = dict(zip(self._output_order, output_chunks, strict=True))
        return super()._merge_outputs([by_microbatch[microbatch] for microbatch in range(self._n_microbatches)])


def _torch_action(action: Action) -> _Action:
    return _Action(action.stage, _COMPUTATION[action.kind], action.microbatch)


@contextmanager
def _observed(stages: Sequence[PipelineStage], around: Around) -> Iterator[None]:
    """Run every F, B, W and BW of the stages inside ``around``, until the block ends."""
    for stage in stages:
        _observe(stage, around)
    try:
        yield
    finally:
        for stage in stages:
            del stage.forward_one_chunk, stage.backward_one_chunk, stage.backward_weight_one_chunk


def _observe(stage: Any, around: Around) -> None:
    index = stage.stage_index
    forward, backward, weight = stage.forward_one_chunk, stage.backward_one_chunk, stage.backward_weight_one_chunk

    def forward_one_chunk(microbatch: int, *args: Any, **kwargs: Any) -> Any:
        with around(Action("F", index, microbatch)):
            return forward(microbatch, *args, **kwargs)

    def backward_one_chunk(microbatch: int, *, full_backward: bool, **kwargs: Any) -> None:
        with around(Action("BW" if full_backward else "B", index, microbatch)):
            backward(microbatch, full_backward=full_backward, **kwargs)

    def backward_weight_one_chunk(microbatch: int, **kwargs: Any) -> None:
        with around(Action("W", index, microbatch)):
            weight(microbatch, **kwargs)

    stage.forward_one_chunk = forward_one_chunk
    stage.backward_one_chunk = backward_one_chunk
    stage.backward_weight_one_chunk = backward_weight_one_chunk
