"""What follows from the states of gradients: step, step clipped, or skip; the same on all that know them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime_client.gradient_state import GradientState, global_norm
from runtime_client.validation_errors import OptimizerUseError

EPSILON = 1e-6
"""Added to the norm before dividing by it, as ``torch.nn.utils.clip_grad_norm_`` does."""


@dataclass(frozen=True)
class Rules:
    """When gradients are clipped, and when they are not used at all."""

    max_norm: float | None = None
    norm_type: float = 2.0
    check_finite: bool = True

    def __post_init__(self) -> None:
        if self.max_norm is not None and not self.max_norm >= 0:
            raise OptimizerUseError(f"found max_norm {self.max_norm}; needed a number of at least 0, or None")
        if not self.norm_type > 0:
            raise OptimizerUseError(f"found norm_type {self.norm_type}; needed a number above 0, or inf")


@dataclass(frozen=True)
class Decision:
    """Whether to step, and what to multiply the gradients by; exactly 1 leaves them alone."""

    step: bool
    scale: float = 1.0

    @property
    def plain(self) -> bool:
        """Whether it is the step that needs no other rank: taken and unclipped."""
        return self.step and self.scale == 1.0


@dataclass(frozen=True)
class Verdict:
    """What all ranks must do.

    Attributes
    ----------
    decision
        The same for all.
    overruled
        Whether some rank, judging by its own state, would have stepped unclipped, and must not.
    """

    decision: Decision
    overruled: bool


def decide(states: Sequence[GradientState], rules: Rules) -> Decision:
    """Decide by the states of all ranks; by those of fewer, "not plain" is final and "plain" is a guess."""
    if rules.check_finite and not all(state.finite for state in states):
        return Decision(step=False)
    if rules.max_norm is None:
        return Decision(step=True)
    scale = rules.max_norm / (global_norm(states, rules.norm_type) + EPSILON)
    return Decision(step=True, scale=1.0 if scale >= 1 else scale)


def judge(states: Sequence[GradientState], rules: Rules) -> Verdict:
    """Decide by the states of all ranks, and tell whether that goes against what some rank has guessed."""
    decision = decide(states, rules)
    return Verdict(decision, not decision.plain and any(decide([state], rules).plain for state in states))
