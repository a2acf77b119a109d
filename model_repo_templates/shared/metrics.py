"""Queue, batch and KV-cache metrics of a Triton Python model, under the engine backend's names.

Autoscalers and the inference endpoint picker read `nv_trt_llm_*` families, which upstream creates in
its C++ engine backend only. Families, labels and histogram bounds follow that backend's reporter
(TensorRT-LLM, `custom_metrics_reporter.cc`). What a runtime does not know is absent, never 0.
"""

import collections
import threading

PERIOD_MS = 100  # the engine backend's default for `stats_check_period_ms`
TOKEN_BOUNDS = (10, 50, 100, 500, 1000)
# Updates of the gauges to one of the lengths: no scaling depends on those.
LENGTHS_EVERY = 10

# (family, description, its own label, {label value: attribute of runtime_api.Stats}); all gauges.
GAUGES = (
    (
        "nv_trt_llm_request_metrics",
        "TRT LLM request metrics",
        "request_type",
        {
            "active": "active",
            "max": "max_active",
            "scheduled": "scheduled",
            "context": "context",
            "waiting": "waiting",
        },
    ),
    (
        "nv_trt_llm_kv_cache_block_metrics",
        "TRT LLM KV cache block metrics",
        "kv_cache_block_type",
        {
            "max": "kv_max",
            "free": "kv_free",
            "used": "kv_used",
            "tokens_per": "kv_tokens_per_block",
            "reused": "kv_reused",
            "fraction": "kv_fraction",
        },
    ),
    (
        "nv_trt_llm_inflight_batcher_metrics",
        "TRT LLM inflight_batcher-specific metrics",
        "inflight_batcher_specific_metric",
        {
            "total_context_tokens": "context_tokens",
            "generation_requests": "generation",
            "micro_batch_id": "micro_batch",
            "paused_requests": "paused",
        },
    ),
    (
        "nv_trt_llm_runtime_memory_metrics",
        "TRT LLM runtime memory metrics",
        "memory_type",
        {"gpu": "gpu_bytes"},
    ),
    (
        "nv_trt_llm_general_metrics",
        "General TRT LLM metrics",
        "general_type",
        {"timestamp": "timestamp_us", "iteration_counter": "iteration"},
    ),
)
# (family, value of the label `response_metric_type`)
TOKEN_LENGTHS = (
    ("nv_llm_input_token_len", "total_input_tokens"),
    ("nv_llm_output_token_len", "total_output_tokens"),
)


class Lengths:
    """A histogram that is counted here and handed on as the series it consists of, by increments.

    Triton's own histogram takes one value a call, and a call costs as much as a response: its price
    would be paid by each request. The series have the same names, labels and values; only their
    `# TYPE` lines say counter.
    """

    def __init__(self, family, kind):
        self._family, self._label = family, {"response_metric_type": kind}
        # Cumulative, as Prometheus wants them: each bucket has what the ones before it have.
        self._new = dict.fromkeys(self._series(), 0)

    def _series(self):
        for bound in (*TOKEN_BOUNDS, "+Inf"):
            yield "bucket", str(bound)
        yield "sum", None
        yield "count", None

    def add(self, value):
        new = self._new
        for bound in TOKEN_BOUNDS:
            if value <= bound:
                new["bucket", str(bound)] += 1
        new["bucket", "+Inf"] += 1
        new["sum", None] += value
        new["count", None] += 1

    def take(self, everything):
        """[(family, labels, increment)] since the last time; with `everything` also those of 0."""
        out = []
        for (part, bound), value in self._new.items():
            if value or everything:
                labels = self._label if bound is None else {**self._label, "le": bound}
                out.append((f"{self._family}_{part}", labels, value))
                self._new[part, bound] = 0
        return out


class Exporter:
    """Copies a runtime's statistics into Triton's metrics, from a thread of its own.

    Args:
        pb_utils: Triton's Python utilities; a server without a metric API is allowed.
        model, version: values of the labels of these names.
        stats: callable that returns `runtime_api.Stats` at once.
        period_ms: shortest time between two updates.
        instance: number of this process, where several serve the model; None: there is one.
    """

    def __init__(self, pb_utils, model, version, stats, period_ms=PERIOD_MS, instance=None):
        self._pb_utils, self._stats, self._period = pb_utils, stats, period_ms / 1000
        self._labels = {"model": model, "version": str(version)}
        if instance is not None:
            # Otherwise the instances would write over each other's values.
            self._labels["instance"] = str(instance)
        # Insertion order matters at the end: Triton wants metrics gone before their family.
        self._families, self._metrics, self._values = {}, {}, {}
        self._ended, self._updates = collections.deque(), 0
        self._lengths = [Lengths(family, kind) for family, kind in TOKEN_LENGTHS]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="metrics", daemon=True)
        self.active = self._try(self._first)
        if self.active:
            self._thread.start()

    def request_ended(self, input_tokens, output_tokens):
        """Count an answer that is complete; returns at once. A number may be None: not known."""
        if self.active:
            self._ended.append((input_tokens, output_tokens))

    def close(self):
        """Stop updating and remove the metrics from the server."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=10)
        self.active = False
        self._drop()

    # ---- the thread
    def _loop(self):
        while not self._stop.wait(self._period):
            if not self._try(self._update):
                self.active = False
                return

    def _try(self, step):
        try:
            step()
        except Exception as error:
            # Serving goes on without metrics: no answer depends on them. They are removed, because
            # a figure that no longer moves would mislead an autoscaler.
            self._drop()
            self._pb_utils.Logger.log_warn(
                f"[engineroom] metrics are not exported: {type(error).__name__}: {error}"
            )
            return False
        return True

    def _first(self):
        self._update()
        for lengths in self._lengths:
            for family, labels, _ in lengths.take(everything=True):
                self._metric(family, "TRT LLM response metrics", labels, "COUNTER")

    def _update(self):
        stats = self._stats()
        for family, description, label, fields in GAUGES:
            for kind, name in fields.items():
                value = getattr(stats, name)
                # Each call goes to the server's process and back, so only for what changed.
                if value is not None and self._values.get((family, kind)) != value:
                    self._metric(family, description, {label: kind}, "GAUGE").set(float(value))
                    self._values[family, kind] = value
        self._updates += 1
        if self._ended and self._updates % LENGTHS_EVERY == 0:
            self._count()

    def _count(self):
        while self._ended:
            for lengths, value in zip(self._lengths, self._ended.popleft(), strict=True):
                if value is not None:
                    lengths.add(value)
        for lengths in self._lengths:
            for family, labels, more in lengths.take(everything=False):
                self._metric(family, "", labels, "COUNTER").increment(float(more))

    def _metric(self, family, description, labels, kind):
        key = (family, *labels.values())
        if key not in self._metrics:
            kinds = self._pb_utils.MetricFamily
            if family not in self._families:
                self._families[family] = kinds(
                    name=family, description=description, kind=getattr(kinds, kind)
                )
            self._metrics[key] = self._families[family].Metric(labels={**self._labels, **labels})
        return self._metrics[key]

    def _drop(self):
        self._metrics.clear()
        self._families.clear()
