"""The least times of an instance, from which its bounds are made.

For a stage and a microbatch,

- ``work`` is the least time on its device: T_F + min(T_B + T_W, T_BW), or T_F + T_BW where only BW may run;
- ``backward`` is the least time from the start of its backward op until its gradient leaves: min(T_B, T_BW), or T_BW;
- ``closing`` is the least time from the start of its backward op until all of it is done: min(T_B + T_W, T_BW), or
  T_BW.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from zbplan.instance import BW, B, BoolArray, F, Instance, IntArray, W
from zbplan.stop import Stop, never


class StoppedError(Exception):
    """A bound that takes long was not finished: nobody waits for it any more."""


class Least:
    """The least times of an instance from which the bounds are made; rows are stages, columns microbatches.

    Parameters
    ----------
    stop
        Asked now and then, where bounds take long, whether to raise ``StoppedError``.
    """

    def __init__(self, instance: Instance, stop: Stop = never) -> None:
        self.instance = instance
        self.stop = stop

    def go_on(self) -> None:
        """Raise ``StoppedError`` if it is time to stop."""
        if self.stop():
            raise StoppedError

    @cached_property
    def backward(self) -> IntArray:
        """Least ticks from the start of a backward op until its gradient leaves."""
        duration = self.instance.duration
        return self._where_splittable(np.minimum(duration[B], duration[BW]))

    @cached_property
    def closing(self) -> IntArray:
        """Least ticks from the start of a backward op until B and W, or BW, are done."""
        duration = self.instance.duration
        return self._where_splittable(np.minimum(duration[B] + duration[W], duration[BW]))

    @cached_property
    def equal(self) -> BoolArray:
        """Per stage whether all its microbatches are alike."""
        instance = self.instance
        columns = [*instance.duration, *instance.hold, *instance.release, instance.peak]
        alike: BoolArray = np.all([(column == column[:, :1]).all(axis=1) for column in columns], axis=0)
        return alike

    def _where_splittable(self, times: IntArray) -> IntArray:
        chosen: IntArray = np.where(self.instance.splittable[:, None], times, self.instance.duration[BW])
        return chosen

    @cached_property
    def work(self) -> IntArray:
        """Least ticks that a microbatch occupies a stage."""
        total: IntArray = self.instance.duration[F] + self.closing
        return total

    @cached_property
    def head(self) -> IntArray:
        """Least ticks from the start of a microbatch's first F until F of a stage can start."""
        steps = self.instance.duration[F, :-1] + self.instance.forward_lag[:, None]
        return _accumulate(steps)

    @cached_property
    def tail(self) -> IntArray:
        """Least ticks from the end of a stage's backward op, its gradient gone, until stage 0 is done with it.

        Zero for stage 0 itself.
        """
        steps = self.backward[:-1] + self.instance.backward_lag[:, None]
        if len(steps):
            steps[0] += self.closing[0] - self.backward[0]
        return _accumulate(steps)

    @cached_property
    def descent(self) -> IntArray:
        """Least ticks from the end of a stage's F until its own backward op can start."""
        forward = self.instance.duration[F, 1:] + self.instance.forward_lag[:, None]
        backward = self.backward[1:] + self.instance.backward_lag[:, None]
        return _accumulate((forward + backward)[::-1])[::-1]

    @cached_property
    def homeward(self) -> IntArray:
        """Least ticks from the start of a stage's backward op until stage 0 is done with the microbatch."""
        homeward: IntArray = self.backward + self.tail
        homeward[0] = self.closing[0]
        return homeward

    @cached_property
    def climb(self) -> IntArray:
        """Least ticks from the start of the backward op on a stage to that on stage 0."""
        return _accumulate(self.backward[1:] + self.instance.backward_lag[:, None])

    @cached_property
    def pending(self) -> IntArray:
        """The most of ``closing`` that can be left once B has run and W has not."""
        left: IntArray = np.where(
            self.instance.splittable[:, None], np.maximum(0, self.closing - self.instance.duration[B]), 0
        )
        return left

    def of_device(self, device: int) -> tuple[int, int]:
        """Return the first and the last stage of a device."""
        stages = self.instance.stages_of[device]
        return stages[0], stages[-1]

    def work_on(self, device: int) -> int:
        """Return the least ticks that a device works."""
        return int(self.work[list(self.instance.stages_of[device])].sum())

    def forward_and_backward_on(self, device: int) -> int:
        """Return the least ticks that a device works until its last gradient leaves."""
        stages = list(self.instance.stages_of[device])
        return int((self.instance.duration[F, stages] + self.backward[stages]).sum())

    def in_ms(self, ticks: int) -> str:
        """Return ticks as text for people."""
        return f"{self.instance.clock.value(int(ticks)):.6g} ms"


def _accumulate(steps: IntArray) -> IntArray:
    start = np.zeros((1, steps.shape[1]), dtype=np.int64)
    return np.concatenate([start, np.cumsum(steps, axis=0)])
