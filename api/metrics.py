"""Metrics: what Prometheus reads."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from api.resource import Status
from api.tally import Finished

_REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30, 60)
_SOLVE_S = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
_GAP = (0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


class Metrics:
    """Counts of one process; what concerns solves is read from the store, and the same at every replica."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "zbplan_requests", "Requests answered.", ("method", "route", "status"), registry=registry
        )
        self._request_s = Histogram(
            "zbplan_request_seconds", "Until the answer was sent.", ("route",), buckets=_REQUEST_S, registry=registry
        )
        self._cache = Counter("zbplan_cache", "Problems posted, by what was known.", ("kind",), registry=registry)
        self._solves = Counter("zbplan_solves", "Solves that ended, by how.", ("status",), registry=registry)
        self._solve_s = Histogram(
            "zbplan_solve_seconds", "From the start of a solve to its end.", buckets=_SOLVE_S, registry=registry
        )
        self._gaps = Histogram("zbplan_gap", "Gap of the best plan at the end.", buckets=_GAP, registry=registry)
        self._jobs = Gauge("zbplan_jobs", "Problems in the store, by status.", ("status",), registry=registry)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(method, route, status).inc()
        self._request_s.labels(route).observe(seconds)

    def submitted(self, kind: str) -> None:
        """Count a posted problem: ``exact`` (its plan was there), ``near`` (that of a similar one was) or ``none``."""
        self._cache.labels(kind).inc()

    def finished(self, solve: Finished) -> None:
        """Count a solve that ended."""
        self._solves.labels(solve.status).inc()
        self._solve_s.observe(solve.seconds)
        if solve.gap is not None:
            self._gaps.observe(solve.gap)

    def jobs(self, counts: Mapping[Status, int]) -> None:
        """Note how many problems there are of each status."""
        for status, count in counts.items():
            self._jobs.labels(status).set(count)

    def text(self) -> bytes:
        """Return the exposition."""
        return generate_latest(self._registry)
