"""Fixtures of the boundary tests of the engine lane: the server with its double, and asking it."""

from __future__ import annotations

import pytest

from tests.conformance.front import PROTOCOLS, Front
from tests.conformance.jobs import job_on_the_checkpoint
from tests.conformance.recording import add_draft_model, recording

PROMPT = "The import statement"
FEATURES = {
    # Context logits are not built together with draft tokens; the reference runtime computes them.
    "guided_decoding": "xgrammar", "generation_logits": True, "lora": {},
    "speculative": {
        "mode": "draft_target", "draft_model": "/x", "draft_travels": False, "max_draft_tokens": 3,
    },
}  # fmt: skip
LIMITS = {"max_batch_size": 8, "max_beam_width": 4}
both = pytest.mark.parametrize("protocol", PROTOCOLS)
fronts_of_it = pytest.mark.parametrize("front", ["bls", "ensemble"])


def one(kind, value):
    """A number where the engine's config takes the second dimension off, by `reshape`."""
    return (kind, [1], [value])


def cell(kind, value):
    """A value where it does not."""
    return (kind, [1, 1], [[value]])


@pytest.fixture(scope="session")
def boundary_job(quantized):
    return job_on_the_checkpoint(
        quantized("fp8"), "boundary", {"features": FEATURES, "priority_levels": 3},
        limits=LIMITS, lanes=("llmapi", "engine"),
    )  # fmt: skip


@pytest.fixture(scope="session")
def engine(boundary_job):
    with recording(boundary_job, "engine", change=add_draft_model) as made:
        yield made


@pytest.fixture
def asked(engine):
    """(front, protocol, fields) -> (answer, [(model, {tensor: (dtype, shape, values)})])."""
    fronts = {}

    def ask(name, protocol, stream=False, **fields):
        if name not in fronts:
            fronts[name] = Front(name, engine.server.endpoints)
        engine.take()
        answer = fronts[name].ask(protocol, stream, prompt=PROMPT, max_tokens=5, **fields)
        calls = [
            (
                entry["model"],
                {k: (t["dtype"], t["shape"], t["values"]) for k, t in entry["tensors"].items()},
            )
            for entry in engine.take()
        ]
        return answer, calls

    yield ask
    for front in fronts.values():
        front.grpc.close()


@pytest.fixture(scope="session")
def minimal(plain):
    """What every request sends: the prompt, its length, the limit, and the model's two end ids."""
    ids = plain.tokenizer(PROMPT).input_ids
    return {
        "input_ids": ("int32", [1, len(ids)], [ids]),
        "input_lengths": one("int32", len(ids)),
        "request_output_len": one("int32", 5),
        "end_id": one("int32", 2),
        "stop_words_list": ("int32", [1, 2, 1], [[[0], [1]]]),
    }


def answer_text(plain, place: int = 0, count: int = 5) -> str:
    """The double answers with the prompt's ids, from `place` on and round again."""
    ids = plain.tokenizer(PROMPT).input_ids
    return plain.text([ids[(place + k) % len(ids)] for k in range(count)])
