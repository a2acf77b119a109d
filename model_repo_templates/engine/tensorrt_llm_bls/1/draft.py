"""Speculative decoding with a draft model: it proposes tokens, the target verifies them.

One prompt, one sequence, not streamed. Each round is two engine requests, so this pays only where
the target is much slower than the draft. Modes inside of the engine (Medusa, EAGLE, lookahead) need
none of this.
"""

import numpy as np
import triton_python_backend_utils as pb_utils
from engine import inputs_of, outputs_of, rows_of, tensors_of
from request_fields import Fields

# Client fields that the draft model gets, too.
_DRAFT_FIELDS = frozenset((
    "min_tokens", "top_k", "top_p", "temperature", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "seed", "pad_id",
))  # fmt: skip


def draft_and_verify(ask, draft, ident, fields, prompt):
    """Responses of the target, one a round, as `engine.tensors_of` gives them.

    Args:
        ask: as `Job._ask`. `draft`: name of the draft's model.
    """
    ids, left = list(prompt.rows[0]), prompt.max_tokens[0]
    ahead, logits = fields.number("num_draft_tokens"), fields.flag("use_draft_logits")
    outputs, _ = outputs_of(fields, 1)
    ends = frozenset(prompt.ends[0])
    while left > 0:
        extra, drafted = [], 0
        if ahead and left > 1:
            extra, drafted = _propose(
                ask, draft, ident, fields, prompt, ids, min(ahead, left - 1), logits
            )
        tensors = inputs_of(fields, prompt.on(ids, drafted + 1), False) + extra
        new = []
        for found in tensors_of(ask(ident, tensors, outputs)):
            new += rows_of(found)[0][2]
            yield found
        ids += new
        left -= len(new)
        if not new or not ends.isdisjoint(new):
            return


def _propose(ask, draft, ident, fields, prompt, ids, count, logits):
    """(tensors for the target, number of tokens) of one call of the draft model."""
    arrays = {name: array for name, array in fields.arrays.items() if name in _DRAFT_FIELDS}
    if logits:
        arrays["return_generation_logits"] = np.ones((1, 1), np.bool_)
    outputs = ["output_ids", "sequence_length", *(["generation_logits"] if logits else [])]
    tensors = inputs_of(Fields(arrays=arrays), prompt.on(ids, count), False)
    drafted, found = [], {}
    for found in tensors_of(ask(ident, tensors, outputs, draft)):
        drafted += rows_of(found)[0][2]
    if not drafted:
        return [], 0
    extra = [pb_utils.Tensor("draft_input_ids", np.array([drafted], np.int32))]
    if logits and "generation_logits" in found:
        array = found["generation_logits"].as_numpy()[:, 0, : len(drafted)]
        extra.append(pb_utils.Tensor("draft_logits", np.ascontiguousarray(array)))
    return extra, len(drafted)
