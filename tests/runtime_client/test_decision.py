from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from runtime_client import OptimizerUseError
from runtime_client.decision import Decision, Rules, decide, judge
from runtime_client.gradient_state import GradientState, state_of

PLAIN, SKIP = Decision(step=True), Decision(step=False)


def states(*norms: float) -> list[GradientState]:
    """One rank per norm; NaN and infinity are not finite."""
    return [GradientState({rank: norm**2}, math.isfinite(norm)) for rank, norm in enumerate(norms)]


@pytest.mark.parametrize(
    ("norms", "rules", "decision"),
    [
        ((3, 4), Rules(), PLAIN),
        ((3, 4), Rules(max_norm=5.1), PLAIN),
        ((3, 4), Rules(max_norm=2.5), Decision(step=True, scale=2.5 / (5 + 1e-6))),
        ((3, 4), Rules(max_norm=0), Decision(step=True, scale=0.0)),
        ((3, math.nan), Rules(), SKIP),
        ((3, math.inf), Rules(max_norm=1), SKIP),
        ((3, math.nan), Rules(check_finite=False), PLAIN),
        ((3, math.inf), Rules(max_norm=1, check_finite=False), Decision(step=True, scale=0.0)),
        ((0, 0), Rules(max_norm=1), PLAIN),
    ],
)
def test_the_decision_follows_from_all_states(norms: tuple[float, ...], rules: Rules, decision: Decision) -> None:
    assert decide(states(*norms), rules) == decision


def test_nan_without_a_check_makes_every_gradient_nan() -> None:
    decision = decide(states(3, math.nan), Rules(max_norm=1, check_finite=False))
    assert decision.step
    assert math.isnan(decision.scale)
    assert not decision.plain


def test_clipping_is_that_of_torch() -> None:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(4, 5)) for _ in range(3)]
    for parameter in parameters:
        parameter.grad = torch.randn(4, 5)
    ours = [parameter.grad.clone() for parameter in parameters]
    scale = decide([state_of({0: ours}, 2.0)], Rules(max_norm=0.7)).scale
    nn.utils.clip_grad_norm_(parameters, 0.7)
    torch.testing.assert_close([gradient * scale for gradient in ours], [parameter.grad for parameter in parameters])


@pytest.mark.parametrize(
    ("norms", "overruled"),
    [
        ((0.1, 0.1), False),
        ((0.8, 0.8), True),  # only the sum clips: both have stepped
        ((2, 0.1), True),  # the second has stepped
        ((2, 2), False),  # both have waited
        ((math.nan, 0.1), True),
        ((math.nan, 2), False),
        ((math.nan, math.inf), False),
    ],
)
def test_a_verdict_overrules_ranks_that_would_have_stepped_by_themselves(
    norms: tuple[float, ...], overruled: bool
) -> None:
    assert judge(states(*norms), Rules(max_norm=1)).overruled == overruled


@pytest.mark.parametrize("rules", [{"max_norm": -1}, {"max_norm": math.nan}, {"norm_type": 0}, {"norm_type": math.nan}])
def test_rules_that_mean_nothing_are_refused(rules: dict[str, float]) -> None:
    with pytest.raises(OptimizerUseError, match=f"found {next(iter(rules))}.*needed a number"):
        Rules(**rules)
