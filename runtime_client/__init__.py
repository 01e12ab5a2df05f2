"""The runtime client: gets a plan onto every rank and trains with it on torch.distributed.pipelining.

What it offers is imported when it is first used, so that fetching a plan into a file needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "FetchError": "errors",
    "GradientNorm": "pending_step",
    "JobMismatchError": "errors",
    "OpError": "errors",
    "OptimizerUseError": "validation_errors",
    "PlanCacheWarning": "obtain",
    "PlanDigestError": "errors",
    "PlanFallbackWarning": "obtain",
    "PlanSchedule": "schedule",
    "PlanSoFarWarning": "service",
    "PostValidatedOptimizer": "post_validated",
    "RankGoneError": "errors",
    "StepError": "errors",
    "SynchronousFromHereWarning": "post_validated",
    "TraceError": "errors",
    "TransferOrderError": "errors",
    "TransferShapeError": "errors",
    "UnsplitStageWarning": "preflight",
    "UntrainedStageWarning": "preflight",
    "ValidationError": "validation_errors",
    "WeightsInBWarning": "preflight",
    "broadcast": "start_up",
    "fetch": "start_up",
    "master_weights": "weights",
    "reference_optimizer_step": "reference_optimizer",
    "reference_step": "reference",
    "split": "weight_grad_store",
}
"""The module that each name comes from."""

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
