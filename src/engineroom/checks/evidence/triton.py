"""Every topic about Triton model repositories, as one entry of the list in `run`.

Later rules of the same topic win where two speak about one field of the figures.
"""

from __future__ import annotations

from engineroom.checks.evidence import (
    disaggregated,
    request_names,
    triton_batching,
    triton_fallback,
    triton_kv,
    triton_launch,
    triton_layout,
    triton_llmapi,
    triton_log,
    triton_output,
    triton_requests,
    triton_sequence,
    triton_template,
    triton_text,
    triton_tokenizer,
)

RULES = (
    *triton_template.RULES,
    *triton_fallback.RULES,
    *triton_text.RULES,
    *triton_output.RULES,
    *triton_tokenizer.RULES,
    *triton_batching.RULES,
    *triton_layout.RULES,
    *triton_llmapi.RULES,
    *triton_launch.RULES,
    *triton_log.RULES,
    *triton_kv.RULES,
    *triton_requests.RULES,
    *request_names.RULES,
    *triton_sequence.RULES,
    *disaggregated.RULES,
)
