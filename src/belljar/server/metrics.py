"""What Prometheus reads at /metrics, in a registry of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from belljar.model import Result
from belljar.network import Egress

if TYPE_CHECKING:
    from belljar.server.server import Server

_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "belljar_requests",
            "HTTP requests",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.refused = Counter(
            "belljar_refused",
            "Runs that were not begun",
            ("tenant", "code"),
            registry=self.registry,
        )
        self.runs = Counter(
            "belljar_runs",
            "Runs that ended",
            ("tenant", "language", "engine", "status"),
            registry=self.registry,
        )
        self.gone = Counter(
            "belljar_clients_gone", "Runs stopped since nobody waited", registry=self.registry
        )
        self.seconds = Histogram(
            "belljar_run_seconds", "From start to answer", registry=self.registry, buckets=_BUCKETS
        )
        self.queued_seconds = Histogram(
            "belljar_queued_seconds", "In the queue", registry=self.registry, buckets=_BUCKETS
        )
        self.cpu_seconds = Counter(
            "belljar_cpu_seconds", "CPU time of runs", ("tenant",), registry=self.registry
        )
        self.egress = Counter(
            "belljar_egress",
            "Attempts of code to reach something",
            ("tenant", "verdict"),
            registry=self.registry,
        )
        self.egress_bytes = Counter(
            "belljar_egress_bytes",
            "Bytes that went through the gateway",
            ("tenant", "direction"),
            registry=self.registry,
        )
        self._running = Gauge("belljar_running", "Runs under way", registry=self.registry)
        self._waiting = Gauge("belljar_waiting", "Runs in the queue", registry=self.registry)
        self._pooled = Gauge(
            "belljar_pooled", "Sandboxes waiting", ("engine", "environment"), registry=self.registry
        )

    def ended(self, tenant: str, result: Result) -> None:
        self.runs.labels(tenant, result.language, result.engine, result.status).inc()
        self.seconds.observe(result.duration_ms / 1000)
        self.cpu_seconds.labels(tenant).inc(max(0.0, result.usage.cpu_ms / 1000))

    def tried(self, egress: Egress, tenant: str) -> None:
        self.egress.labels(tenant, egress.verdict).inc(egress.count)
        self.egress_bytes.labels(tenant, "sent").inc(egress.bytes_sent)
        self.egress_bytes.labels(tenant, "received").inc(egress.bytes_received)

    def text(self, server: Server) -> bytes:
        self._running.set(server.admission.running)
        self._waiting.set(server.admission.waiting)
        self._pooled.clear()
        for engine, environments in server.jar.waiting().items():
            for environment, count in environments.items():
                self._pooled.labels(engine, environment).set(count)
        return generate_latest(self.registry)
