"""Malformed, oversized and hostile requests: an error that names the field, and nobody else notices."""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.conformance import wire
from tests.conformance.mix import FRONTS, Names

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("features")]
FRONT_NAMES = ["bls", "ensemble", "llmapi"]
PROMPT = "Return a list of"
DEEP = "[" * 50_000


def field(names: Names, neutral: str) -> str:
    """A request field by its neutral name, as this front calls it."""
    if names.model == "tensorrt_llm":
        return {
            "top_p": "sampling_param_top_p", "n": "sampling_param_n", "bad": "sampling_param_bad",
            "repetition_penalty": "sampling_param_repetition_penalty",
        }.get(neutral, getattr(names, neutral, neutral))  # fmt: skip
    other = {"bad": "bad_words", "n": "num_return_sequences"}
    return other.get(neutral, getattr(names, neutral, neutral))


# neutral field -> hostile values that JSON can carry; the error must name the field.
VALUES: list[tuple[str, Any]] = [
    ("max_tokens", -1),
    ("max_tokens", 0),
    ("max_tokens", 2**31 - 1),
    ("min_tokens", -3),
    ("min_tokens", 400),
    ("temperature", -0.5),
    ("temperature", 1e38 * 10),
    ("top_p", 1.5),
    ("top_p", -0.1),
    ("top_k", -5),
    ("n", 0),
    ("n", 100_000),
    ("repetition_penalty", -1.0),
    ("stop", [f"w{i}" for i in range(10_000)]),
    ("stop", ["x" * 1_000_000]),
    ("bad", [f"w{i}" for i in range(10_000)]),
    ("prompt", ""),
    ("prompt", "word " * 5_000),
    ("messages", "not json"),
    ("messages", '{"role": "user"}'),
    ("messages", '[{"role": "user"}]'),
    ("messages", DEEP),
    ("guided_decoding_guide", ("json_schema", '{"type": 5}')),
    ("guided_decoding_guide", ("json_schema", "not json")),
    ("guided_decoding_guide", ("regex", "(")),
    ("guided_decoding_guide", ("ebnf_grammar", "root ::= missing")),
    ("guided_decoding_guide_type", ("nonsense", "x")),
]


def body_of(names: Names, neutral: str, value: Any) -> dict[str, Any]:
    body: dict[str, Any] = {names.prompt: PROMPT, names.max_tokens: 4}
    if neutral == "messages":
        del body[names.prompt]
    if neutral.startswith("guided"):
        kind, guide = value
        body |= {"guided_decoding_guide_type": kind, "guided_decoding_guide": guide}
    else:
        body[field(names, neutral)] = value
    return body


# Costly to compile, and no mistake: answered or refused, but soon.
HEAVY = [
    ("regex", "((a{1,900}){1,900}){1,900}"),
    ("regex", "(.*a){40}"),
    ("regex", "(a|b|ab)*{3,}" + "(c?){300}" + "c" * 300),
    ("json_schema", json.dumps({"type": "array", "items": {"type": "string", "maxLength": 10**9},
                                "minItems": 10**6})),
    ("ebnf_grammar", "root ::= " + " ".join(["(a | b)?"] * 2_000) + '\na ::= "x"\nb ::= "x" a'),
]  # fmt: skip
SOON = 20  # seconds; on a quiet machine each takes less than one


@pytest.fixture(scope="module")
def bystander(features_servers):
    """front -> a check that streams running beside the hostile requests keep their text."""

    def watch(front: str, hostile: Any) -> None:
        names, server = FRONTS[front], features_servers(front).server
        port = server.endpoints.http
        calm = {names.prompt: "The import statement", names.max_tokens: 40, names.stream: True}
        want = wire.text(wire.http_stream(port, names.model, calm))
        found, stop = [], threading.Event()

        def keep() -> None:
            while not stop.is_set():
                found.append(wire.text(wire.http_stream(port, names.model, calm)))

        threads = [threading.Thread(target=keep) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            hostile(server, names)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert len(found) >= 3
        assert set(found) == {want}

    return watch


@pytest.mark.parametrize("front", FRONT_NAMES)
def test_each_hostile_value_is_refused_by_name(bystander, front):
    def hostile(server: Any, names: Names) -> None:
        wrong = []
        for neutral, value in VALUES:
            name = field(names, neutral)
            for stream in (False, True):
                body = body_of(names, neutral, value)
                try:
                    if stream:
                        wire.http_stream(
                            server.endpoints.http, names.model, {**body, names.stream: True}
                        )
                    else:
                        wire.http_generate(server.endpoints.http, names.model, body)
                    wrong.append(f"{name}={str(value)[:40]} stream={stream}: accepted")
                except wire.Refused as error:
                    if name not in str(error):
                        wrong.append(f"{name}={str(value)[:40]}: {str(error)[:200]}")
                    if "Traceback" in str(error):
                        wrong.append(f"{name}: traceback")
        assert not wrong, "\n".join(wrong)

    bystander(front, hostile)


@pytest.mark.parametrize("front", FRONT_NAMES)
def test_what_only_grpc_can_carry(bystander, front):
    def hostile(server: Any, names: Names) -> None:
        grpc = wire.Grpc(server.endpoints.grpc)
        plain = {names.prompt: PROMPT, names.max_tokens: 4}
        cases = [
            (names.temperature, np.array([float("nan")], np.float32)),
            (names.temperature, np.array([float("inf")], np.float32)),
            (names.prompt, np.array([b"\xff\xfe broken"], np.object_)),
            (names.stop, np.array([b"\xc3"], np.object_)),
        ]
        for name, value in cases:
            with pytest.raises(wire.Refused, match=name):
                grpc.ask(names.model, {**plain, name: value})
        grpc.close()

    bystander(front, hostile)


@pytest.mark.parametrize("front", FRONT_NAMES)
def test_broken_bodies_and_wrong_types(bystander, front):
    """Triton's own parser answers these; what counts is that it answers, and goes on."""

    def hostile(server: Any, names: Names) -> None:
        good = {names.prompt: PROMPT, names.max_tokens: 4}
        bodies: list[bytes] = [
            b"", b"{", b"[]", b"null", b"\xff\xff", DEEP.encode(),
            json.dumps({**good, names.max_tokens: "ten"}).encode(),
            json.dumps({**good, names.max_tokens: [1, 2, 3]}).encode(),
            json.dumps({**good, names.max_tokens: {"a": 1}}).encode(),
            json.dumps({**good, names.stream: "yes"}).encode(),
            json.dumps({**good, names.seed: -1}).encode(),
            b'{"text_input": "x", "%s": NaN}' % names.temperature.encode(),
        ]  # fmt: skip
        for body in bodies:
            connection = http.client.HTTPConnection("127.0.0.1", server.endpoints.http, timeout=20)
            connection.request("POST", f"/v2/models/{names.model}/generate", body)
            answer = connection.getresponse()
            raw = answer.read()
            connection.close()
            assert 400 <= answer.status < 600, (body[:60], raw[:200])
            assert b"Traceback" not in raw

    bystander(front, hostile)


@pytest.mark.parametrize("front", FRONT_NAMES)
def test_heavy_guides_end_soon(bystander, front):
    def hostile(server: Any, names: Names) -> None:
        for guide in HEAVY:
            body = body_of(names, "guided_decoding_guide", guide)
            started, refusal = time.monotonic(), "guided_decoding_guide"
            try:
                wire.http_generate(server.endpoints.http, names.model, body)
            except wire.Refused as error:
                refusal = str(error)
            assert "guided_decoding_guide" in refusal, guide[1][:40]
            assert time.monotonic() - started < SOON, guide[1][:40]

    bystander(front, hostile)
