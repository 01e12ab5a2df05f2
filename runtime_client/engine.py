"""The engine that runs lowered plans: the one module that touches private parts of torch.distributed.pipelining.

Supported: torch 2.11 to 2.14. What each touch relies on is tested by ``tests/runtime_client/test_engine.py``.

torch dispatches the actions and keeps the tensors of each microbatch. Three things are done here instead: losses and
outputs are keyed by microbatch, transfers are posted by ``Links``, and a receive buffer lives from its receive to the
op that uses it up (torch allocates all of them before the first step, and keeps them and everything sent).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

from runtime_client.errors import JobMismatchError, OpError, StepError, TransferShapeError
from runtime_client.links import Links
from runtime_client.lowering import Action
from runtime_client.surroundings import Surroundings

Around = Callable[[Action], AbstractContextManager[None]]
"""Given an action, what it runs inside of.

An op runs there when its input has arrived; what goes before is the wait for it, under the name of its receive. A send
is over as soon as it is posted. LOSS follows the last stage's F. Forward-only steps run outside of it.
"""

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
        forward_actions: Sequence[Sequence[Action]],
        loss_fn: Callable[..., Tensor],
        *,
        microbatches: int,
        scale_grads: bool,
        around: Around,
    ) -> None:
        super().__init__(list(stages), microbatches, loss_fn=loss_fn, scale_grads=False)
        self._divisor = microbatches if scale_grads else 1
        self._around = around
        self._links = Links()
        self._observed: list[_Observed] = []
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
        self._train = self._with_sharding(listed[self.rank], reduce=True)
        self._forward = self._with_sharding(map(_torch_action, forward_actions[self.rank]), reduce=False)

    def _with_sharding(self, actions: Iterable[_Action], *, reduce: bool) -> list[_Action]:
        """Gather the parameters of an FSDP stage before its first action; reduce gradients and free after its last."""
        result = list(actions)
        for index in [stage.stage_index for stage in self._stages if isinstance(stage.submod, FSDPModule)]:
            own = [at for at, action in enumerate(result) if action.stage_index == index and action.is_compute_op]
            kinds = (["REDUCE_GRAD"] if reduce else []) + ["RESHARD"]
            result[own[-1] + 1 : own[-1] + 1] = [_Action(index, _ComputationType(kind)) for kind in kinds]
            result.insert(own[0], _Action(index, _ComputationType.UNSHARD))
        return result

    def _step_microbatches(self, *args: Any, **kwargs: Any) -> None:
        self._loss_of.clear()
        self._links.forget()
        self.fwd_recv_ops.clear()
        self.bwd_recv_ops.clear()
        # Only its own list runs here; torch would hold all, and print all when a step fails.
        self.pipeline_order_with_comms = {self.rank: self._train if self._has_backward else self._forward}
        try:
            super()._step_microbatches(*args, **kwargs)
            self._links.finish()
        except (OpError, JobMismatchError):
            raise
        except Exception as error:
            raise StepError(self.rank, error) from error
        finally:
            for observed in self._observed:
                observed.give_back()

    def _initialize_stages(self, *args: Any, **kwargs: Any) -> None:
        """Let torch find out shapes and make buffers, for one microbatch instead of all; then take over the stages.

        torch runs the stages on memory that nobody has written for that, which is none of the job's steps: running
        statistics and random numbers are brought back to where they were.
        """
        initialized = self._stages_backward_initialized or (self._stages_forward_initialized and not self._has_backward)
        if not initialized:
            self._stages_forward_initialized = False  # buffers of a forward-only step take no gradient
            before = Surroundings([stage.submod for stage in self._stages], self._stages[0].device)
            microbatches, self._n_microbatches = self._n_microbatches, 1
            try:
                super()._initialize_stages(*args, **kwargs)
            finally:
                self._n_microbatches = microbatches
                before.restore()
            self._observed = [
                _Observed(stage, self._links, self._around_named, self._n_microbatches) for stage in self._stages
            ]
        for observed in self._observed:
            observed.take_over()

    @contextmanager
    def _around_named(self, action: Action) -> Iterator[None]:
        try:
            with self._around(action) if self._has_backward else nullcontext():
                yield
        except JobMismatchError:
            raise
        except TransferShapeError as error:
            raise OpError(self.rank, str(action), error) from error
        except Exception as error:
            if action.is_transfer:
                raise  # another rank's fault, as a rule
            raise OpError(self.rank, str(action), error) from error

    def _maybe_compute_loss(
        self, stage: Any, output: Any, target_mbs: Any, mb_index: int, loss_kwargs: dict[str, Any] | None = None
    ) -> None:
        if stage.is_last and target_mbs is not None:
            with self._around_named(Action("LOSS", stage.stage_index, mb_index)):
                self._loss_of[mb_index] = self._loss_fn(output, target_mbs[mb_index], **(loss_kwargs or {}))
            if mb_index in stage.fwd_cache:
                # The backward starts from the loss; torch would keep the output until its end all the same.
                _, inputs = stage.fwd_cache[mb_index]
                stage.fwd_cache[mb_index] = ((), inputs)

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> Tensor | None:
        if not stage.is_last:
            return None
        loss = self._loss_of[mb_index]
        # A copy, so that the graph dies with its backward, and with it the storage of which some losses are a part.
        self._loss_of[mb_index] = loss.detach().clone()
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


_METHODS = (
    "forward_one_chunk",
    "backward_one_chunk",
    "backward_weight_one_chunk",
    "get_fwd_recv_ops",
    "get_bwd_recv_ops",
    "get_fwd_send_ops",
    "get_bwd_send_ops",
    "set_local_bwd_input",
)
"""What is put in front of a stage's own methods for the time of a step."""


class _Observed:
    """A stage during a step: its ops run inside ``around``, its transfers through links, its buffers one by one."""

    def __init__(self, stage: Any, links: Links, around: Around, microbatches: int) -> None:
        self._stage = stage
        self._index: int = stage.stage_index
        self._links = links
        self._around = around
        self._microbatches = microbatches
        self._own = {name: getattr(stage, name) for name in _METHODS}
        self._inputs, self._gradients = stage.args_recv_info[0], stage.grad_recv_info.get(0, ())
        self._input_moulds, self._gradient_moulds = _moulds(self._inputs), _moulds(self._gradients)
        _drop([*self._inputs, *self._gradients])

    def take_over(self) -> None:
        """Put these methods in front of the stage's own, and what its microbatches receive, until ``give_back``."""
        stage = self._stage
        stage.chunks = self._microbatches
        stage.args_recv_info = self._hollow(self._inputs)
        stage.grad_recv_info = self._hollow(self._gradients)
        for name in _METHODS:
            setattr(stage, name, getattr(self, name))

    def give_back(self) -> None:
        """Leave the stage its own methods, and no buffers."""
        for name in _METHODS:
            self._stage.__dict__.pop(name, None)
        self._stage.args_recv_info, self._stage.grad_recv_info = {}, {}

    def _hollow(self, infos: tuple[Any, ...]) -> dict[int, tuple[Any, ...]]:
        """Return what a microbatch receives, for every microbatch, without buffers."""
        return {microbatch: tuple(map(copy.copy, infos)) for microbatch in range(self._microbatches)}

    def get_fwd_recv_ops(self, microbatch: int) -> list[Any]:
        return self._receive("RECV_F", "get_fwd_recv_ops", microbatch, self._input_moulds)

    def get_bwd_recv_ops(self, microbatch: int) -> list[Any]:
        return self._receive("RECV_B", "get_bwd_recv_ops", microbatch, self._gradient_moulds)

    def get_fwd_send_ops(self, microbatch: int) -> list[Any]:
        self._send("SEND_F", "get_fwd_send_ops", microbatch)
        if not self._stage.has_backward:
            del self._stage.fwd_cache[microbatch]
        return []

    def get_bwd_send_ops(self, microbatch: int) -> list[Any]:
        return self._send("SEND_B", "get_bwd_send_ops", microbatch)

    def forward_one_chunk(self, microbatch: int, *args: Any, **kwargs: Any) -> Any:
        self._wait("RECV_F", microbatch)
        with self._around(Action("F", self._index, microbatch)):
            output = self._own["forward_one_chunk"](microbatch, *args, **kwargs)
        _drop(self._stage.args_recv_info[microbatch])
        if not self._stage.has_backward and not self._sends_output():
            del self._stage.fwd_cache[microbatch]
        return output

    def backward_one_chunk(self, microbatch: int, *, full_backward: bool, **kwargs: Any) -> None:
        self._wait("RECV_B", microbatch)
        with self._around(Action("BW" if full_backward else "B", self._index, microbatch)):
            self._own["backward_one_chunk"](microbatch, full_backward=full_backward, **kwargs)
        _drop(self._stage.grad_recv_info[microbatch])

    def backward_weight_one_chunk(self, microbatch: int, **kwargs: Any) -> None:
        with self._around(Action("W", self._index, microbatch)):
            self._own["backward_weight_one_chunk"](microbatch, **kwargs)

    def set_local_bwd_input(self, gradients: tuple[Tensor | None, ...], microbatch: int) -> None:
        """Hand over the gradients of the next stage, where that is on this rank; none is a gradient of zeros."""
        pairs = zip(gradients, self._gradient_moulds, strict=True)
        given = tuple(
            self._cast(mould).zero_() if gradient is None and mould is not None else gradient
            for gradient, mould in pairs
        )
        self._own["set_local_bwd_input"](given, microbatch)

    def _sends_output(self) -> bool:
        ranks = self._stage.stage_index_to_group_rank
        return not self._stage.is_last and ranks[self._index + 1] != ranks[self._index]

    def _receive(self, kind: str, name: str, microbatch: int, moulds: list[Tensor | None]) -> list[Any]:
        """Post a receive; what is returned is what torch itself has yet to post."""
        infos = self._stage.args_recv_info if kind == "RECV_F" else self._stage.grad_recv_info
        for info, mould in zip(infos[microbatch], moulds, strict=True):
            if mould is not None:
                info.buffer = self._cast(mould)
        self._links.receive(Action(kind, self._index, microbatch), self._own[name](microbatch))
        return []

    def _send(self, kind: str, name: str, microbatch: int) -> list[Any]:
        action = Action(kind, self._index, microbatch)
        with self._around(action):
            self._links.send(action, self._own[name](microbatch))
        return []

    def _wait(self, kind: str, microbatch: int) -> None:
        action = Action(kind, self._index, microbatch)
        if self._links.expects(action):
            with self._around(action):
                self._links.arrived(action)

    def _cast(self, mould: Tensor) -> Tensor:
        # Contiguous, as it is sent, however the tensor lay where it was made.
        return torch.empty(
            mould.size(), dtype=mould.dtype, device=self._stage.device, requires_grad=mould.requires_grad
        )


def _moulds(infos: Sequence[Any]) -> list[Tensor | None]:
    """Return for each thing received a tensor like it that takes no memory; None for what is not received."""
    buffers = [getattr(info, "buffer", None) for info in infos]
    return [
        None if buffer is None else torch.empty_like(buffer, device="meta").requires_grad_(buffer.requires_grad)
        for buffer in buffers
    ]


def _drop(infos: Iterable[Any]) -> None:
    for info in infos:
        if hasattr(info, "buffer"):
            info.buffer = None
