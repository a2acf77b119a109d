"""Calls of the `tensorrt_llm` model from the BLS model: one request, its responses, its end.

Tensors go to the engine only if the client sent them, and only outputs that are wanted are asked
for: each costs a copy through shared memory.
"""

import collections
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

PARK_SECONDS = 2.0
_parking, _parked = threading.Lock(), collections.deque()
"""(time, responses of a call that ended), oldest first.

When a call's last response was read, Triton's stub drops its own reference to the responses from a
thread that does not hold the GIL (python_backend src/pb_stub.cc). If that is the last one, Python
objects are freed without the GIL: wrong reference counts, or a crash. So ours outlives it.
"""

# Client field -> engine tensor, one number a row.
SCALARS = {
    "min_tokens": "min_tokens",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "temperature": "temperature",
    "length_penalty": "len_penalty",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "pad_id": "pad_id",
    "beam_width": "beam_width",
    "num_return_sequences": "num_return_sequences",
    "lora_task_id": "lora_task_id",
    "runtime_top_p_min": "runtime_top_p_min",
    "runtime_top_p_decay": "runtime_top_p_decay",
    "runtime_top_p_reset_ids": "runtime_top_p_reset_ids",
    "beam_search_diversity_rate": "beam_search_diversity_rate",
    "lookahead_window_size": "lookahead_window_size",
    "lookahead_ngram_size": "lookahead_ngram_size",
    "lookahead_verification_set_size": "lookahead_verification_set_size",
    "retention_decode_priority": "retention_decode_priority",
    "retention_decode_duration_ms": "retention_decode_duration_ms",
    "return_log_probs": "return_log_probs",
    "return_context_logits": "return_context_logits",
    "return_generation_logits": "return_generation_logits",
    "return_perf_metrics": "return_perf_metrics",
    "return_num_input_tokens": "return_num_input_tokens",
    "return_num_output_tokens": "return_num_output_tokens",
}
# Passed on as they are, under the same name.
ARRAYS = frozenset((
    "lora_weights", "lora_config", "guided_decoding_guide_type", "guided_decoding_guide",
    "retention_token_range_starts", "retention_token_range_ends",
    "retention_token_range_priorities", "retention_token_range_durations_ms",
))  # fmt: skip
# Flag -> outputs that it asks for.
WANTED = {
    "return_log_probs": ("cum_log_probs", "output_log_probs"),
    "return_context_logits": ("context_logits",),
    "return_generation_logits": ("generation_logits",),
    "return_perf_metrics": (
        "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks",
        "arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns",
        "acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens",
    ),
    "return_num_input_tokens": ("num_input_tokens",),
    "return_num_output_tokens": ("num_output_tokens",),
}  # fmt: skip
_CORE = ["output_ids", "sequence_length"]


class EngineError(RuntimeError):
    """The engine answered with an error; its message."""


def inputs_of(fields, prompt, streaming):
    """Tensors of one engine request."""
    Tensor, batch = pb_utils.Tensor, len(prompt.rows)
    tensors = [
        Tensor("input_ids", prompt.input_ids()),
        Tensor("input_lengths", prompt.lengths()),
        Tensor("request_output_len", prompt.limits()),
    ]
    for name, array in (
        ("end_id", prompt.end_column()),
        ("stop_words_list", prompt.stop_list()),
        ("bad_words_list", prompt.bad_list()),
    ):
        if array is not None:
            tensors.append(Tensor(name, array))
    if prompt.bias is not None:
        tensors.append(Tensor("embedding_bias", prompt.bias))
    if streaming:
        tensors.append(Tensor("streaming", np.ones((1, 1), np.bool_)))
    for name, array in fields.arrays.items():
        if name in SCALARS:
            tensors.append(Tensor(SCALARS[name], array.reshape(batch, 1)))
        elif name in ARRAYS:
            tensors.append(Tensor(name, array))
    tensors += [tensor for name, tensor in fields.opaque.items() if name in ARRAYS]
    return tensors


def outputs_of(fields, sequences):
    """Names of the outputs that this request needs, and of those that the client gets."""
    extras = []
    for flag, names in WANTED.items():
        if flag in fields.arrays and fields.flag(flag):
            extras.extend(names)
    core = list(_CORE)
    if len(fields.arrays["max_tokens"]) > 1:
        core.append("batch_index")
    if sequences > 1:
        core.append("sequence_index")
    return core + extras, frozenset(extras)


def ask(model, decoupled, ident, tensors, outputs):
    """The engine's responses, one after the other; waits for the first."""
    request = pb_utils.InferenceRequest(
        model_name=model, request_id=ident, inputs=tensors, requested_output_names=outputs
    )
    return _held(request.exec(decoupled=True)) if decoupled else iter((request.exec(),))


def _held(responses):
    try:
        yield from responses
    finally:
        _parked.append((time.monotonic(), responses))
        _drop_old()


def _drop_old():
    oldest = time.monotonic() - PARK_SECONDS
    with _parking:  # between a look and a drop, another worker could make the first one a young one
        while _parked and _parked[0][0] < oldest:
            _parked.popleft()


def tensors_of(responses):
    """Each response as {output name: tensor}.

    Raises:
        EngineError: the engine answered with an error.
    """
    for response in responses:
        if response.has_error():
            raise EngineError(response.error().message())
        found = {tensor.name(): tensor for tensor in response.output_tensors()}
        if found:  # the end alone comes as a response without tensors
            yield found


def single_ids(responses):
    """Token ids of each response to a request for one sequence.

    Raises:
        EngineError: the engine answered with an error.
    """
    for response in responses:
        if response.has_error():
            raise EngineError(response.error().message())
        ids = length = None
        for tensor in response.output_tensors():
            name = tensor.name()
            if name == "output_ids":
                ids = tensor.as_numpy()
            elif name == "sequence_length":
                length = tensor.as_numpy()
        if ids is not None:
            yield ids.reshape(-1)[: length.item()].tolist()


def stop(model, decoupled, ident):
    """Cancel a running engine request: `stop` with its id. One that has ended is no error.

    Source: NVIDIA/TensorRT-LLM triton_backend model_instance_state.cc, handleStopRequest. The other
    inputs are there because the model declares them as mandatory.
    """
    zero = np.zeros((1, 1), np.int32)
    tensors = [
        pb_utils.Tensor(name, zero) for name in ("input_ids", "input_lengths", "request_output_len")
    ]
    tensors.append(pb_utils.Tensor("stop", np.ones((1, 1), np.bool_)))
    request = pb_utils.InferenceRequest(
        model_name=model, request_id=ident, inputs=tensors, requested_output_names=[]
    )
    if decoupled:
        for _ in _held(request.exec(decoupled=True)):
            pass
    else:
        request.exec()


def rows_of(tensors):
    """Sequences of one response: [(batch index, sequence index, token ids)].

    Beams come together, [1, beams, length]; n sequences come apart and say their index, which is
    absent where there is one.
    """
    ids, lengths = tensors["output_ids"].as_numpy(), tensors["sequence_length"].as_numpy()
    if ids.shape[0] == 1:
        batch, first = _index(tensors, "batch_index"), _index(tensors, "sequence_index")
        if ids.shape[1] == 1:
            return [(batch, first, ids[0, 0, : lengths.flat[0]].tolist())]
        return [
            (batch, first + i, row[:length].tolist())
            for i, (row, length) in enumerate(zip(ids[0], lengths.reshape(-1).tolist()))
        ]
    # A whole batch in one response.
    lengths = lengths.reshape(ids.shape[:2]).tolist()
    return [
        (i, j, ids[i, j, :length].tolist())
        for i, row in enumerate(lengths)
        for j, length in enumerate(row)
    ]


def _index(tensors, name):
    tensor = tensors.get(name)
    return 0 if tensor is None else int(tensor.as_numpy().flat[0])
