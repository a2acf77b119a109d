"""A complete `tensorrt_llm/config.pbtxt` of the inflight_batcher_llm family, one scalar to a line.

Tensors come from the contract, parameters from the table of what the C++ backend reads, so that a
new one of either is tested without a change here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from engineroom.catalog import Catalog
from engineroom.catalog.triton_parameters import load_triton_parameters

VERSION = "1.2.1"
_HEAD = """\
name: "tensorrt_llm"
backend: "tensorrtllm"
max_batch_size: 64
default_model_filename: "none"
model_transaction_policy {
  decoupled: false
}
dynamic_batching {
  preferred_batch_size: [ 64 ]
  max_queue_delay_microseconds: 0
  preserve_ordering: false
  priority_levels: 2
  default_priority_level: 1
  default_queue_policy: {
    max_queue_size: 0
    timeout_action: REJECT
    default_timeout_microseconds: 0
    allow_timeout_override: false
  }
}
version_policy {
  latest {
    num_versions: 1
  }
}
optimization {
  priority: PRIORITY_DEFAULT
  input_pinned_memory {
    enable: true
  }
  gather_kernel_buffer_threshold: 0
  eager_batching: false
}
response_cache {
  enable: false
}
metric_tags {
  key: "team"
  value: "a"
}
"""
_TAIL = """\
instance_group [
  {
    name: "engines"
    count: 1
    kind: KIND_CPU
    passive: false
    host_policy: "none"
    rate_limiter {
      priority: 1
    }
  }
]
"""
FILLED = {
    "gpt_model_type": "inflight_fused_batching", "gpt_model_path": "/engines/model",
    "batch_scheduler_policy": "guaranteed_no_evict", "decoding_mode": "top_k",
    "medusa_choices": "{0}, {0, 0}", "eagle_choices": "{0}, {0, 0}", "gpu_device_ids": "0",
    "participant_ids": "1", "max_attention_window_size": "4096", "cross_kv_cache_fraction": "0.5",
    "kv_cache_free_gpu_mem_fraction": "0.9", "lora_cache_gpu_memory_fraction": "0.05",
    "gpu_weights_percent": "1.0",
}  # fmt: skip


def parameter_rows():
    return load_triton_parameters(Catalog()).rows("tensorrt_llm", "tensorrtllm", VERSION)


def filled_value(row) -> str:
    if row.key in FILLED:
        return FILLED[row.key]
    return {"bool_cpp": "true", "string": "/some/where"}.get(row.reader, "1")


def full_text() -> str:
    """The filled file."""
    family = Catalog().contract(VERSION).family("inflight_batcher_llm")["tensorrt_llm"]
    parts = [_HEAD]
    for kind in ("input", "output"):
        for tensor in family[f"{kind}s"]:
            data_type = tensor["data_type"] or "TYPE_FP32"
            if data_type.startswith("$"):
                data_type = "TYPE_FP16"
            lines = [f'  name: "{tensor["name"]}"', f"  data_type: {data_type}",
                     f"  dims: [ {', '.join(map(str, tensor['dims']))} ]"]  # fmt: skip
            if kind == "input":
                lines += ["  optional: true", "  allow_ragged_batch: false"]
            parts.append(f"{kind} {{\n" + "\n".join(lines) + "\n}\n")
    for row in parameter_rows().values():
        parts.append(
            f'parameters {{\n  key: "{row.key}"\n  value {{\n    string_value: "{filled_value(row)}"\n'
            "  }\n}\n"
        )
    return "".join(parts) + _TAIL


@dataclass(frozen=True)
class Variant:
    """The full text with one placeholder.

    Attributes:
        bare: the placeholder stands outside quotes.
        line: 1-based line of the placeholder.
    """

    text: str
    field: str
    line: int
    bare: bool


_FIELD = re.compile(r'(\s*)(\w+): ("?)([^"{\n]*?)("?)\s*$')


def variants(text: str, placeholder: str = "left_over") -> Iterator[Variant]:
    """One variant for each scalar; a string once in its quotes and once without them."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        found = _FIELD.fullmatch(line)
        if not found:
            continue
        indent, name, quote, value, _ = found.groups()
        new = f"${{{placeholder}}}"
        forms = [(f"{quote}{new}{quote}", not quote)]
        if quote:
            forms.append((new, True))
        elif value.startswith("["):
            forms = [(f"[ {new} ]", True)]
        for form, bare in forms:
            changed = [*lines]
            changed[at] = f"{indent}{name}: {form}"
            yield Variant("\n".join(changed) + "\n", name, at + 1, bare)
