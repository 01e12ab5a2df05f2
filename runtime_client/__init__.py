"""The runtime client: gets a plan onto every rank and trains with it on torch.distributed.pipelining.

What it offers is imported when it is first used, so that fetching a plan into a file needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "FetchError": "runtime_client.errors",
    "GradientNorm": "runtime_client.pending_step",
    "JobMismatchError": "runtime_client.errors",
    "OpError": "runtime_client.errors",
    "OptimizerUseError": "runtime_client.validation_errors",
    "PlanCacheWarning": "runtime_client.obtain",
    "PlanDigestError": "runtime_client.errors",
    "PlanFallbackWarning": "runtime_client.obtain",
    "PlanSchedule": "runtime_client.schedule",
    "PlanSoFarWarning": "runtime_client.service",
    "PostValidatedOptimizer": "runtime_client.post_validated",
    "RankGoneError": "zbplan.errors",
    "StepError": "runtime_client.errors",
    "SynchronousFromHereWarning": "runtime_client.post_validated",
    "TraceError": "runtime_client.errors",
    "TransferOrderError": "runtime_client.errors",
    "TransferShapeError": "runtime_client.errors",
    "UnsplitStageWarning": "runtime_client.preflight",
    "UntrainedStageWarning": "runtime_client.preflight",
    "ValidationError": "runtime_client.validation_errors",
    "WeightsInBWarning": "runtime_client.preflight",
    "broadcast": "runtime_client.start_up",
    "fetch": "runtime_client.start_up",
    "master_weights": "runtime_client.weights",
    "reference_optimizer_step": "runtime_client.reference_optimizer",
    "reference_step": "runtime_client.reference",
    "split": "runtime_client.weight_grad_store",
}
"""The module that each name comes from."""

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
