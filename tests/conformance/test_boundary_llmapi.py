"""Which calls reach the LLM API: exact arguments of what the reference runtime cannot compute."""

from __future__ import annotations

import base64
import json

import pytest
from transformers import AutoTokenizer

from tests.conformance import wire
from tests.conformance.front import PROTOCOLS, Front
from tests.conformance.jobs import job_on_the_checkpoint
from tests.conformance.recording import STEP_MS, recording
from tests.conftest import ROOT, TINY

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("boundary")]
ADAPTER = str(ROOT / "tests/data/adapters/rank16")
PROMPT = "The import statement"
FEATURES = {
    "guided_decoding": "xgrammar", "multimodal": {},
    "lora": {"max_rank": 32, "max_adapters": 2, "adapters": [
        {"name": "sql", "source": ADAPTER, "task_id": 7, "travels": False},
    ]},
    "speculative": {
        "mode": "draft_target", "draft_model": "/models/draft", "draft_travels": False,
        "max_draft_tokens": 3,
    },
}  # fmt: skip
PROCESSOR = '''"""A logits post-processor: it changes nothing."""


class Quiet:
    def __init__(self):
        self.given = {"quiet": True}

    def __call__(self, *args):
        pass
'''
PILLOW = '''"""In Pillow's place: an image of two bytes, width and height."""


class Picture:
    mode = "RGB"

    def __init__(self, width, height):
        self.width, self.height, self.size = width, height, (width, height)

    def convert(self, mode):
        assert mode == "RGB"
        return self


class Image:
    @staticmethod
    def open(file):
        return Picture(*file.read())
'''
both = pytest.mark.parametrize("protocol", PROTOCOLS)


def serve(quantized, folder, features, release, *, step_ms=STEP_MS, **serving):
    """The lane on a release, with the modules above beside its model file."""
    name = f"boundary-{release}-{serving.get('merge_events', True)}"
    job = job_on_the_checkpoint(
        quantized("bf16"), name, {"features": features, **serving}, lanes=("llmapi",),
        limits={"max_batch_size": 8, "max_beam_width": 4}, stack={"trtllm": release},
    )  # fmt: skip
    (folder / "quiet.py").write_text(PROCESSOR)
    (folder / "PIL.py").write_text(PILLOW)

    def register(repository):
        path = repository / "tensorrt_llm/1/model.yaml"
        args = json.loads(path.read_text())
        args["logits_post_processors"] = {"quiet": "quiet:Quiet"}
        path.write_text(json.dumps(args))

    modules = [folder / "quiet.py", folder / "PIL.py"]
    env = {
        "STANDIN_PRIORITY": "1", "STANDIN_TRTLLM_VERSION": release, "STANDIN_STEP_MS": str(step_ms),
    }  # fmt: skip
    return recording(job, "llmapi", change=register, modules=modules, env=env)


@pytest.fixture(scope="module")
def llmapi(quantized, tmp_path_factory):
    with serve(quantized, tmp_path_factory.mktemp("modules"), FEATURES, "1.2.1") as made:
        made.start = made.take()
        yield made


@pytest.fixture
def front(llmapi):
    made = Front("llmapi", llmapi.server.endpoints)
    yield made
    made.grpc.close()


@pytest.fixture
def asked(llmapi, front):
    """(protocol, fields) -> (answer, the one call of generate_async)."""

    def ask(protocol, stream=False, **fields):
        llmapi.take()
        answer = front.ask(protocol, stream, **{"prompt": PROMPT, "max_tokens": 5, **fields})
        (call,) = [entry for entry in llmapi.take() if entry["call"] == "generate_async"]
        return answer, {k: v for k, v in call.items() if k not in ("call", "id")}

    return ask


IDS = AutoTokenizer.from_pretrained(TINY)(PROMPT).input_ids


def answer_text(count: int = 5, place: int = 0) -> str:
    """The double answers with the prompt's ids, from `place` on and round again."""
    ids = [IDS[(place + k) % len(IDS)] for k in range(count)]
    return AutoTokenizer.from_pretrained(TINY).decode(ids)


def call(streaming=False, inputs=None, others=None, **params):
    """What a request with nothing else than `params` becomes: ids in, ids out, text is ours."""
    minimal = {"max_tokens": 5, "end_id": 2, "stop_token_ids": [0], "detokenize": False}
    return {
        "inputs": IDS if inputs is None else inputs,
        "sampling_params": {**minimal, **params},
        "streaming": streaming,
        "others": others or {},
    }


def test_arguments_of_the_llm(llmapi):
    """LoRA, speculation and guides are arguments of the LLM, in this release's words."""
    (start,) = [entry for entry in llmapi.start if entry["call"] == "LLM"]
    arguments = start["arguments"]
    assert arguments["enable_lora"] is True
    assert arguments["lora_config"] == {
        "lora_target_modules": ["attn_q", "attn_k", "attn_v"], "max_lora_rank": 32, "max_loras": 2,
        "max_cpu_loras": 8,
    }  # fmt: skip
    speculative = arguments["speculative_config"]
    assert speculative["max_draft_len"] == 3
    assert speculative["decoding_type"] in ("DraftTarget", "Draft_Target")
    assert "/models/draft" in speculative.values()
    assert len(speculative) == 3
    assert arguments["guided_decoding_backend"] == "xgrammar"
    assert arguments["max_beam_width"] == 4
    assert arguments["kv_cache_config"]["enable_block_reuse"] is True
    assert "triton_config" not in arguments
    assert "logits_post_processors" not in arguments


@both
def test_nothing_asked_nothing_sent(asked, protocol):
    answer, got = asked(protocol)
    assert got == call()
    assert answer.text == answer_text()
    answer, got = asked(protocol, True)
    assert got == call(True)
    assert answer.text == answer_text()
    # At the double's pace each token is an event of its own.
    assert len([event for event in answer.events if event]) == 5


@both
def test_beams(asked, front, protocol):
    raw = {
        "sampling_param_use_beam_search": True, "sampling_param_best_of": 4,
        "sampling_param_length_penalty": 0.5,
    }  # fmt: skip
    answer, got = asked(protocol, n=2, raw=raw)
    assert got == call(use_beam_search=True, n=2, best_of=4, length_penalty=0.5)
    assert answer.texts == [answer_text(place=0), answer_text(place=1)]
    raw["sampling_param_best_of"] = 5
    with pytest.raises(wire.Refused, match=r"use_beam_search.*max_beam_width 4"):
        front.ask(protocol, prompt=PROMPT, max_tokens=5, raw=raw)
    with pytest.raises(wire.Refused, match="use_beam_search"):
        front.ask(
            protocol, True, prompt=PROMPT, max_tokens=5, raw={**raw, "sampling_param_best_of": 2}
        )


@both
def test_lora(asked, front, protocol):
    """By id or by name, both say the spec's adapter; others are refused, and no path of a client's."""
    want = call(
        others={
            "lora_request": {"class": "LoRARequest", "lora_name": "sql", "lora_int_id": 7,
                             "lora_path": ADAPTER}
        }
    )  # fmt: skip
    for raw in ({"lora_id": 7}, {"lora_name": "sql"}, {"lora_name": "sql", "lora_path": ADAPTER}):
        _, got = asked(protocol, raw=raw)
        got["others"]["lora_request"].pop("lora_ckpt_source", None)
        assert got == want
    for raw in ({"lora_id": 8}, {"lora_name": "x"}, {"lora_name": "sql", "lora_path": "/etc"}):
        with pytest.raises(wire.Refused, match="no adapter of this model"):
            front.ask(protocol, prompt=PROMPT, max_tokens=5, raw=raw)


@both
def test_images_by_url(asked, front, protocol):
    urls = [
        "data:image/png;base64," + base64.b64encode(bytes(size)).decode()
        for size in ([3, 2], [10, 20])
    ]
    _, got = asked(protocol, raw={"image_url": urls})
    images = [{"image": [3, 2], "mode": "RGB"}, {"image": [10, 20], "mode": "RGB"}]
    assert got == call(inputs={"prompt": PROMPT, "multi_modal_data": {"image": images}})
    for url in ("http://127.0.0.1/x.png", "file:///etc/passwd", "data:text/html,x"):
        with pytest.raises(wire.Refused, match=r"image_url\[0\]"):
            front.ask(protocol, prompt=PROMPT, max_tokens=5, raw={"image_url": [url]})


@both
def test_guides(asked, protocol):
    empty = {"json": None, "regex": None, "grammar": None, "json_object": False,
             "structural_tag": None}  # fmt: skip
    schema = '{"type": "object"}'
    for kind, text, want in (
        ("json_schema", schema, {"json": schema}),
        ("regex", "[aé]+", {"regex": "[aé]+"}),
        ("ebnf_grammar", 'root ::= "x"', {"grammar": 'root ::= "x"'}),
    ):
        _, got = asked(protocol, guide=(kind, text))
        guide = {"class": "GuidedDecodingParams", **empty, **want}
        assert got == call(guided_decoding=guide)
    _, got = asked(protocol, raw={"guided_decoding_guide_type": "json"})
    assert got["sampling_params"]["guided_decoding"]["json_object"] is True


@both
def test_priority(asked, protocol):
    _, got = asked(protocol, raw={"request_priority": 0.25})
    assert got == call(others={"priority": 0.25})


@both
def test_sampling_parameters(asked, protocol):
    fields = {
        "min_tokens": 2, "temperature": 0.5, "top_k": 7, "top_p": 0.75, "seed": 11,
        "repetition_penalty": 1.25, "presence_penalty": 0.5, "frequency_penalty": -0.5,
    }  # fmt: skip
    _, got = asked(protocol, **fields)
    assert got == call(**fields)
    _, got = asked(protocol, end_ids=[5, 6], log_probs=True, perf=True)
    assert got == call(end_id=5, stop_token_ids=[6], logprobs=1, return_perf_metrics=True)
    _, got = asked(protocol, end_ids=[-1])
    want = call(ignore_eos=True)
    del want["sampling_params"]["end_id"], want["sampling_params"]["stop_token_ids"]
    assert got == want


@both
def test_words(asked, protocol):
    """As text, without an `end_id`, beside which upstream fails on words; the end ids stop as ids.

    A stop word is looked for in the text, so the answer is asked for in steps, with the word in it."""
    _, got = asked(protocol, stop=["§"], bad=["z"])
    want = call(True, stop=["§"], bad=["z"], include_stop_str_in_output=True)
    del want["sampling_params"]["end_id"]
    want["sampling_params"]["stop_token_ids"] = [2, 0]
    assert got == want


def test_logits_post_processor(quantized, tmp_path):
    """By a name that model.yaml registers; an input of releases from 1.4 on."""
    name = "sampling_param_logits_post_processor_name"
    with serve(quantized, tmp_path, {"guided_decoding": "xgrammar"}, "1.4.0rc4") as made:
        front = Front("llmapi", made.server.endpoints)
        for protocol in PROTOCOLS:
            made.take()
            front.ask(protocol, prompt=PROMPT, max_tokens=5, raw={name: "quiet"})
            (got,) = made.take()
            params = call(logits_processor={"class": "Quiet", "quiet": True})["sampling_params"]
            assert got["sampling_params"] == params
            with pytest.raises(wire.Refused, match=f"{name}.*not registered"):
                front.ask(protocol, prompt=PROMPT, max_tokens=5, raw={name: "os.system"})
        front.grpc.close()


@pytest.mark.parametrize("merge", [True, False])
def test_merged_events(quantized, tmp_path, merge):
    """Tokens that are there at once: fewer events with `merge_events`, one a token without."""
    features = {"guided_decoding": "xgrammar"}
    with serve(quantized, tmp_path, features, "1.2.1", step_ms=0, merge_events=merge) as made:
        front = Front("llmapi", made.server.endpoints)
        for protocol in PROTOCOLS:
            answer = front.ask(protocol, True, prompt=PROMPT, max_tokens=40)
            events = [event for event in answer.events if event]
            assert len(events) < 20 if merge else len(events) == 40
            assert answer.text == answer_text(40)
        front.grpc.close()
