"""Every topic about Triton model repositories, as one entry of the list in `run`.

Later rules of the same topic win where two speak about one field of the figures.
"""

from __future__ import annotations

from engineroom.checks.evidence import triton_fallback, triton_template

RULES = (
    *triton_template.RULES,
    *triton_fallback.RULES,
)
