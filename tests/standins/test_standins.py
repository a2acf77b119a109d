"""The test doubles of the engine: what they answer and record, without a server."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.standins import fake_triton

HERE = Path(__file__).parent
OUTPUTS = (
    "output_ids", "sequence_length", "batch_index", "sequence_index", "cum_log_probs",
    "output_log_probs", "context_logits", "generation_logits", "num_input_tokens",
    "num_output_tokens", "arrival_time_ns", "acceptance_rate",
)  # fmt: skip


@pytest.fixture
def engine(monkeypatch):
    """engine(decoupled, **environment) -> a function from tensors to the responses sent."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake_triton.module())
    path = HERE / "tensorrtllm/model.py"
    spec = importlib.util.spec_from_file_location("standin_engine", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def make(decoupled=True, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        model = module.TritonPythonModel()
        outputs = [{"name": "context_logits", "data_type": "TYPE_FP16"}]
        config = {"decoupled": decoupled, "parameters": {}, "output": outputs}
        model.initialize({"model_config": json.dumps(config), "model_name": "tensorrt_llm"})

        def ask(outputs=OUTPUTS, ident="r1", **tensors):
            request = fake_triton.Request(
                {name: np.asarray(value) for name, value in tensors.items()}, ident, outputs
            )
            model.execute([request])
            return request.sender.sent

        return ask

    return make


def prompt(ids, count=3, **more):
    rows = np.array(ids, np.int32)
    lengths = np.full((len(rows), 1), rows.shape[1], np.int32)
    return {
        "input_ids": rows,
        "input_lengths": lengths,
        "request_output_len": np.full((len(rows), 1), count, np.int32),
        **more,
    }


TRUE = np.array([[True]])


def test_streams_a_token_a_response_and_ends_with_the_last(engine):
    sent = engine()(**prompt([[7, 8]]), streaming=TRUE)
    assert [r.tensors["output_ids"].tolist() for r, _ in sent] == [[[[7]]], [[[8]]], [[[7]]]]
    assert [flags for _, flags in sent] == [0, 0, 1]
    assert set(sent[0][0].tensors) == {"output_ids", "sequence_length"}


def test_whole_answers_repeat_the_prompt_unless_it_is_excluded(engine):
    ask = engine(decoupled=False, STANDIN_IDS="[5]")
    ((response, flags),) = ask(**prompt([[7, 8]]))
    assert response.tensors["output_ids"].tolist() == [[[7, 8, 5, 5, 5]]]
    assert (response.tensors["sequence_length"].tolist(), flags) == ([[5]], 1)
    ((response, _),) = ask(**prompt([[7, 8]]), exclude_input_in_output=TRUE)
    assert response.tensors["output_ids"].tolist() == [[[5, 5, 5]]]


def test_steps_and_the_most_tokens(engine):
    sent = engine(STANDIN_STEP=2, STANDIN_TOKENS=3)(**prompt([[1, 2, 3, 4]], 9), streaming=TRUE)
    assert [r.tensors["output_ids"].tolist() for r, _ in sent] == [[[[1, 2]]], [[[3]]]]


def test_batches_and_sequences_answer_one_by_one_with_their_index(engine):
    ask = engine()
    two = np.array([[2], [2]], np.int32)
    tensors = prompt([[1, 2], [3, 4]], 2)
    sent = ask(
        **tensors, num_return_sequences=two, exclude_input_in_output=np.array([[1], [1]], bool)
    )
    found = [
        (
            r.tensors["batch_index"].item(),
            r.tensors["sequence_index"].item(),
            r.tensors["output_ids"].reshape(-1).tolist(),
        )
        for r, _ in sent
    ]
    assert found == [(0, 0, [1, 2]), (0, 1, [2, 1]), (1, 0, [3, 4]), (1, 1, [4, 3])]
    assert [flags for _, flags in sent] == [0, 0, 0, 1]


def test_beams_share_a_response(engine):
    beams = np.array([[2]], np.int32)
    ((response, _),) = engine()(
        **prompt([[1, 2]], 2), beam_width=beams, exclude_input_in_output=TRUE
    )
    assert response.tensors["output_ids"].tolist() == [[[1, 2], [2, 1]]]
    assert response.tensors["sequence_length"].tolist() == [[2, 2]]


def test_what_was_asked_for_comes_and_only_to_those_who_take_it(engine):
    flags = {
        f"return_{name}": TRUE
        for name in ("log_probs", "context_logits", "generation_logits", "perf_metrics",
                     "num_input_tokens", "num_output_tokens")
    }  # fmt: skip
    ((response, _),) = engine()(**prompt([[1, 2]], 2), **flags)
    got = response.tensors
    assert got["output_log_probs"].tolist() == [[[-0.125, -0.25]]]
    assert got["cum_log_probs"].tolist() == [[-0.375]]
    assert (got["context_logits"].shape, got["context_logits"].dtype) == ((1, 2, 4), np.float16)
    assert got["generation_logits"].shape == (1, 1, 2, 4)
    assert (got["num_input_tokens"].item(), got["num_output_tokens"].item()) == (2, 2)
    assert got["arrival_time_ns"].dtype == np.int64
    ((response, _),) = engine()(("output_ids", "sequence_length"), **prompt([[1]], 1), **flags)
    assert set(response.tensors) == {"output_ids", "sequence_length"}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (prompt([[1], [2]]), "a batch over 1"),
        (prompt([[1]], streaming=TRUE), "streaming needs"),
        (prompt([[1]], 0), "request_output_len must be at least 1"),
    ],
)
def test_refusals(engine, tensors, message):
    ((response, flags),) = engine(decoupled=False)(**tensors)
    assert message in response.error.message()
    assert flags == 1


def test_stop_requests_get_an_empty_answer(engine):
    assert engine()(**prompt([[1]]), stop=TRUE) == [(None, 1)]
    ((response, _),) = engine()(ident="", **prompt([[1]]), stop=TRUE)
    assert "needs the id" in response.error.message()


def test_every_request_is_recorded(engine, tmp_path):
    ask = engine(STANDIN_RECORD=tmp_path / "calls.jsonl")
    guide = np.array([[b"caf\xc3\xa9", b"\xff"]], np.object_)
    ask(("output_ids",), "r9", **prompt([[1, 2]], 1), guided_decoding_guide=guide)
    (line,) = (tmp_path / "calls.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["request_id"], entry["model"]) == ("r9", "tensorrt_llm")
    assert entry["tensors"]["input_ids"] == {"dtype": "int32", "shape": [1, 2], "values": [[1, 2]]}
    assert entry["tensors"]["guided_decoding_guide"] == {
        "dtype": "BYTES", "shape": [1, 2], "values": [["café", {"latin-1": "ÿ"}]],
    }  # fmt: skip
    assert entry["requested_outputs"] == ["output_ids"]
    assert entry["parameters"] == {"priority": 3}


@pytest.fixture
def trtllm(monkeypatch, tmp_path):
    """The `tensorrt_llm` double, with its record in tmp_path/calls.jsonl."""
    for name in [n for n in sys.modules if n.split(".")[0] == "tensorrt_llm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("STANDIN_RECORD", str(tmp_path / "calls.jsonl"))
    monkeypatch.syspath_prepend(str(HERE))
    import tensorrt_llm
    import tensorrt_llm.llmapi

    yield tensorrt_llm
    for name in [n for n in sys.modules if n.split(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


def outputs_of(result):
    async def collect():
        return [
            (o.outputs[0].text, o.outputs[0].text_diff, o.outputs[0].finish_reason)
            async for o in result
        ]

    return asyncio.run(collect())


def test_llm_streams_cumulative_text_and_answers_whole(trtllm):
    llm = trtllm.LLM(model="m", max_batch_size=4)
    params = trtllm.SamplingParams(max_tokens=3)
    assert outputs_of(llm.generate_async("a b", params, streaming=True)) == [
        ("a ", "a ", None),
        ("a b ", "b ", None),
        ("a b a ", "a ", "length"),
    ]
    assert outputs_of(llm.generate_async([5, 6], params)) == [("5 6 5 ", "5 6 5 ", "length")]


def test_llm_several_sequences_log_probs_and_metrics(trtllm):
    params = trtllm.SamplingParams(max_tokens=2, n=2, logprobs=0, return_perf_metrics=True)
    result = trtllm.LLM(model="m").generate_async("a b", params).result()
    assert [o.text for o in result.outputs] == ["a b ", "b a "]
    assert result.outputs[0].cumulative_logprob == -0.375
    assert [next(iter(p)) for p in result.outputs[1].logprobs] == result.outputs[1].token_ids
    assert result.outputs[0].request_perf_metrics.kv_cache_metrics.num_reused_blocks == 1


def test_llm_abort_ends_a_request(trtllm):
    result = trtllm.LLM(model="m").generate_async("a", None, streaming=True)
    result.abort()
    assert outputs_of(result) == [("", "", "cancelled")]


def test_llm_calls_are_recorded(trtllm, tmp_path):
    llm = trtllm.LLM(model="m", kv_cache_config=trtllm.llmapi.KvCacheConfig(dtype="fp8"))
    guide = trtllm.GuidedDecodingParams(regex="a+")
    lora = trtllm.llmapi.LoRARequest("poems", 7, "/adapters/poems")
    params = trtllm.SamplingParams(max_tokens=1, guided_decoding=guide)
    llm.generate_async("a", params, streaming=True, lora_request=lora).abort()
    llm.shutdown()
    lines = [json.loads(x) for x in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert [x["call"] for x in lines] == ["LLM", "generate_async", "abort", "shutdown"]
    kv = {"class": "KvCacheConfig", "dtype": "fp8"}
    assert lines[0]["arguments"] == {"kv_cache_config": kv}
    assert lines[1]["inputs"] == "a"
    assert lines[1]["sampling_params"]["guided_decoding"]["regex"] == "a+"
    assert lines[1]["others"]["lora_request"]["lora_int_id"] == 7


def test_sampling_params_refuse_what_trtllm_refuses(trtllm):
    with pytest.raises(TypeError, match="beam_width"):
        trtllm.SamplingParams(beam_width=2)
    with pytest.raises(ValueError, match="max_tokens"):
        trtllm.SamplingParams(max_tokens=0)
    with pytest.raises(ValueError, match="Only one guide"):
        trtllm.GuidedDecodingParams(regex="a", json_object=True)


def test_words_as_text_beside_an_end_id_fail_as_upstream(trtllm):
    """Upstream tokenizes them only where it chooses the end id (llmapi/llm.py)."""
    llm = trtllm.LLM(model="m")
    for name in ("stop", "bad"):
        with pytest.raises(RuntimeError, match=f"{name} is not processed"):
            llm.generate_async("a", trtllm.SamplingParams(end_id=2, **{name: ["x"]}))
        llm.generate_async("a", trtllm.SamplingParams(**{name: ["x"]}))


def test_with_a_tokenizer_the_double_does_upstreams_text_work(trtllm, monkeypatch):
    from transformers import AutoTokenizer

    from tests.conftest import TINY

    plain = AutoTokenizer.from_pretrained(TINY)
    monkeypatch.setattr(trtllm.answers, "TOKENIZER", str(TINY))
    llm = trtllm.LLM(model="m")
    prompt = "The import statement"
    ids = plain(prompt).input_ids
    for streaming in (True, False):
        params = trtllm.SamplingParams(max_tokens=len(ids))
        result = llm.generate_async(prompt, params, streaming=streaming)
        assert outputs_of(result)[-1][0] == plain.decode(ids, skip_special_tokens=True)
        assert result.outputs[0].token_ids == ids
        params = trtllm.SamplingParams(max_tokens=len(ids), detokenize=False)
        result = llm.generate_async(prompt, params, streaming=streaming)
        assert outputs_of(result)[-1][0] == ""
    word = plain.decode(ids[-1:]).strip()
    params = trtllm.SamplingParams(max_tokens=99, stop=[word], stop_token_ids=[ids[2]])
    result = llm.generate_async(prompt, params).result()
    assert (result.outputs[0].finish_reason, result.outputs[0].stop_reason) == ("stop", ids[2])
    assert result.outputs[0].token_ids == ids[:2]
