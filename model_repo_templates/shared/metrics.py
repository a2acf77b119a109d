"""Queue, batch and KV-cache metrics of a Triton Python model, under the engine backend's names.

Autoscalers and the inference endpoint picker read `nv_trt_llm_*` families, which upstream creates in
its C++ engine backend only. Families, labels and histogram bounds follow that backend's reporter
(TensorRT-LLM, `custom_metrics_reporter.cc`). What a runtime does not know is absent, never 0.
"""

import collections
import threading

PERIOD_MS = 100  # the engine backend's default for `stats_check_period_ms`
TOKEN_BOUNDS = [10.0, 50.0, 100.0, 500.0, 1000.0]

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
# (family, description, value of the label `response_metric_type`)
TOKEN_HISTOGRAMS = (
    ("nv_llm_input_token_len", "TRT LLM response metrics", "total_input_tokens"),
    ("nv_llm_output_token_len", "TRT LLM response metrics", "total_output_tokens"),
)


class Exporter:
    """Copies a runtime's statistics into Triton's metrics, from a thread of its own.

    Args:
        pb_utils: Triton's Python utilities; a server without a metric API is allowed.
        model, version: values of the labels of these names.
        stats: callable that returns `runtime_api.Stats` at once.
        period_ms: shortest time between two updates.
    """

    def __init__(self, pb_utils, model, version, stats, period_ms=PERIOD_MS):
        self._pb_utils, self._stats, self._period = pb_utils, stats, period_ms / 1000
        self._labels = {"model": model, "version": str(version)}
        # Insertion order matters at the end: Triton wants metrics gone before their family.
        self._families, self._metrics, self._values = {}, {}, {}
        self._ended = collections.deque()
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
        for family, description, kind in TOKEN_HISTOGRAMS:
            self._metric(family, description, "response_metric_type", kind, TOKEN_BOUNDS)

    def _update(self):
        stats = self._stats()
        for family, description, label, fields in GAUGES:
            for kind, name in fields.items():
                value = getattr(stats, name)
                # Each call goes to the server's process and back, so only for what changed.
                if value is not None and self._values.get((family, kind)) != value:
                    self._metric(family, description, label, kind).set(float(value))
                    self._values[family, kind] = value
        while self._ended:
            for (family, _, kind), count in zip(
                TOKEN_HISTOGRAMS, self._ended.popleft(), strict=True
            ):
                if count is not None:
                    self._metrics[family, kind].observe(float(count))

    def _metric(self, family, description, label, kind, bounds=None):
        if (family, kind) not in self._metrics:
            kinds = self._pb_utils.MetricFamily
            if family not in self._families:
                self._families[family] = kinds(
                    name=family,
                    description=description,
                    kind=kinds.GAUGE if bounds is None else kinds.HISTOGRAM,
                )
            more = {} if bounds is None else {"buckets": bounds}
            self._metrics[family, kind] = self._families[family].Metric(
                labels={**self._labels, label: kind}, **more
            )
        return self._metrics[family, kind]

    def _drop(self):
        self._metrics.clear()
        self._families.clear()
