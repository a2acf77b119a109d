"""The engine lane's model files, run without a server."""

from __future__ import annotations

import json

import pytest

from tests.conftest import TINY
from tests.engine_models.triton_double import SHARED, model

ON = dict.fromkeys(("chat", "bad_words", "log_probs", "sequences", "usage", "perf_metrics", "kv_retention", "context_logits", "generation_logits", "guided_decoding", "lora", "speculative"), True)  # fmt: skip


def parameters(**changes):
    return {
        "tokenizer_dir": str(TINY),
        "add_special_tokens": "true",
        "skip_special_tokens": "true",
        "stop_ids": "[2, 0]",
        "features": json.dumps(ON),
        "max_input_len": "200",
        "max_seq_len": "256",
        "max_beam_width": "4",
        "stream_interval": "1",
        "engine_calls": "24",
        "streaming": "true",
        "tensorrt_llm_model_name": "tensorrt_llm",
        "tensorrt_llm_draft_model_name": "",
        **changes,
    }


@pytest.fixture(autouse=True)
def model_files(monkeypatch):
    monkeypatch.syspath_prepend(str(SHARED))


@pytest.fixture
def codec(model_files):
    from text_codec import TokenCodec

    return TokenCodec(str(TINY))


@pytest.fixture
def bls(codec):
    """Asks the BLS model: (engine, fields) to (responses, engine requests)."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def ask(engine, *requests, decoupled=True, **changes):
            seen = []

            def recorded(request):
                seen.append(request)
                return engine(request)

            instance = stack.enter_context(
                model("tensorrt_llm_bls", parameters(**changes), recorded, decoupled)
            )
            assert instance.execute(list(requests)) is None
            answers = [request.sender.wait() for request in requests]
            instance.workers.close(10)  # what is done after the last response
            return answers, seen

        yield ask
