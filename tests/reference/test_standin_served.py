"""The engine lane's stand-in on the real server: the tensors of `tensorrt_llm`, and nothing around it."""

from __future__ import annotations

import shutil
import threading
import time
import urllib.request

import numpy as np
import pytest
import yaml

from engineroom.names import RuntimeName
from engineroom.pipeline import build, open_job
from engineroom.pipeline.render import render
from engineroom.runner.triton import TritonServer, work_folder
from tests.conftest import calibration_file, spec_data

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("server")]
MODEL = "tensorrt_llm"
PROMPT = [300, 301, 302, 303, 304]
TYPES = {
    np.dtype(np.int32): "INT32", np.dtype(np.int64): "INT64", np.dtype(np.uint64): "UINT64",
    np.dtype(np.float32): "FP32", np.dtype(bool): "BOOL", np.dtype(object): "BYTES",
}  # fmt: skip


@pytest.fixture(scope="module")
def server(quantized, tmp_path_factory):
    """A server that has the rendered tensorrt_llm model only."""
    made = quantized("fp8")
    folder = tmp_path_factory.mktemp("standin")
    features = {"guided_decoding": "xgrammar", "context_logits": True, "generation_logits": True}
    data = spec_data(targets=spec_data()["targets"][1:], serving={"features": features})
    calibration_file(folder)
    spec = folder / "engineroom.yaml"
    spec.write_text(yaml.safe_dump(data), encoding="utf-8")
    shutil.copytree(made.out, folder / "out")
    job = open_job(spec, out=folder / "out")
    build(job, allow_plan=True)
    repository = render(job, runtime=RuntimeName.REFERENCE)[0]
    shutil.copytree(repository.path / MODEL, folder / "repository" / MODEL)
    work = work_folder()
    roots = job.catalog.template_roots
    running = TritonServer(folder / "repository", work, roots, log=folder / "server.log")
    try:
        with running:
            running.wait_ready()
            yield running
    finally:
        shutil.rmtree(work, ignore_errors=True)


def tensors(**more):
    """Inputs of one row; a list becomes int32, everything gets a leading batch dimension."""
    given = {"input_ids": PROMPT, "request_output_len": [12], **more}
    given.setdefault("input_lengths", [len(given["input_ids"])])
    arrays = {
        k: v if isinstance(v, np.ndarray) else np.array([v], np.int32) for k, v in given.items()
    }
    return {k: v for k, v in arrays.items() if v.dtype in TYPES}


def flag(value=True):
    return np.array([[value]])


def number(value):
    return np.array([[value]], np.float32)


def text(value):
    return np.array([[value.encode()]], object)


class Call:
    """One request; `results` are (output name -> array, final)."""

    def __init__(self, server, arrays, outputs=None, request_id=""):
        import tritonclient.grpc as grpc

        self.results, self.errors, self.done = [], [], threading.Event()
        self.client = grpc.InferenceServerClient(f"127.0.0.1:{server.endpoints.grpc}")
        self.client.start_stream(self._take)
        inputs = []
        for name, array in arrays.items():
            inputs.append(grpc.InferInput(name, list(array.shape), TYPES[array.dtype]))
            inputs[-1].set_data_from_numpy(array)
        wanted = None if outputs is None else [grpc.InferRequestedOutput(o) for o in outputs]
        self.client.async_stream_infer(
            MODEL, inputs, outputs=wanted, request_id=request_id, enable_empty_final_response=True
        )

    def _take(self, result, error):
        if error is not None:
            self.errors.append(error.message())
            self.done.set()
            return
        response = result.get_response()
        final = response.parameters["triton_final_response"].bool_param
        self.results.append(({o.name: result.as_numpy(o.name) for o in response.outputs}, final))
        if final:
            self.done.set()

    def wait(self):
        assert self.done.wait(60)
        self.client.stop_stream()
        self.client.close()
        return self


def ask(server, outputs=None, request_id="", **more):
    call = Call(server, tensors(**more), outputs, request_id).wait()
    assert not call.errors, call.errors
    return [found for found, _ in call.results]


def refused(server, **more):
    call = Call(server, tensors(**more)).wait()
    assert not call.results
    return call.errors[0]


def rows(found):
    return found["output_ids"][0, 0, : found["sequence_length"][0, 0]].tolist()


def test_only_tensors_that_apply_with_leading_dimensions(server):
    (found,) = ask(server)
    assert set(found) == {"output_ids", "sequence_length"}
    assert found["output_ids"].shape == (1, 1, 12)
    assert found["sequence_length"].tolist() == [[12]]


def test_everything_that_can_be_asked_for(server):
    (found,) = ask(
        server,
        return_log_probs=flag(), return_context_logits=flag(), return_generation_logits=flag(),
        return_perf_metrics=flag(), return_num_input_tokens=flag(), return_num_output_tokens=flag(),
    )  # fmt: skip
    shapes = {name: array.shape for name, array in found.items()}
    assert shapes.pop("output_ids") == (1, 1, 12)
    assert shapes.pop("sequence_length") == (1, 1)
    assert shapes.pop("output_log_probs") == (1, 1, 12)
    assert shapes.pop("cum_log_probs") == (1, 1)
    assert shapes.pop("context_logits") == (1, 5, 2048)
    assert shapes.pop("generation_logits") == (1, 1, 12, 2048)
    assert set(shapes.values()) == {(1, 1)}
    assert set(shapes) == {
        "num_input_tokens", "num_output_tokens", "kv_cache_alloc_new_blocks",
        "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks", "arrival_time_ns",
        "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns", "acceptance_rate",
        "total_accepted_draft_tokens", "total_draft_tokens",
    }  # fmt: skip
    assert (found["num_input_tokens"].item(), found["num_output_tokens"].item()) == (5, 12)
    assert found["arrival_time_ns"].item() > 1.6e18
    logits = found["generation_logits"][0, 0]
    picked = found["output_ids"][0, 0]
    shifted = logits - logits.max(1, keepdims=True)
    want = shifted[range(12), picked] - np.log(np.exp(shifted).sum(1))
    assert np.allclose(found["output_log_probs"][0, 0], want, atol=1e-4)
    assert found["cum_log_probs"].item() == pytest.approx(want.sum(), abs=1e-3)


def test_only_the_outputs_that_were_asked_for(server):
    names = ["output_ids", "sequence_length", "cum_log_probs"]
    (found,) = ask(server, names, return_log_probs=flag(), return_perf_metrics=flag())
    assert set(found) == set(names)
    call = Call(server, tensors(), ["output_ids"]).wait()
    assert "sequence_length must be among the requested outputs" in call.errors[0]


def test_a_stream_has_the_tokens_one_by_one_and_an_end(server):
    (whole,) = ask(server)
    call = Call(server, tensors(streaming=flag(), return_log_probs=flag())).wait()
    assert [final for _, final in call.results] == [False] * 11 + [True]
    assert [token for found, _ in call.results for token in rows(found)] == rows(whole)
    assert all(found["output_log_probs"].shape == (1, 1, 1) for found, _ in call.results)
    ended = Call(server, tensors(streaming=flag(), end_id=[rows(whole)[3]])).wait()
    assert [rows(found) for found, _ in ended.results] == [[t] for t in rows(whole)[:3]] + [[]]
    assert ended.results[-1][0]["output_ids"].shape == (1, 1, 0)


def test_rows_and_sequences_are_told_apart(server):
    (alone,) = ask(server)
    other = [400, 401, 402, 403, 404]
    (second,) = ask(server, input_ids=other)
    found = ask(
        server,
        input_ids=np.array([[*PROMPT, 0], [*other, 0]], np.int32),
        input_lengths=np.array([[5], [5]], np.int32),
        request_output_len=np.array([[12], [12]], np.int32),
        exclude_input_in_output=np.array([[True], [False]]),
        return_log_probs=np.array([[False], [True]]),
    )
    assert {"output_log_probs" in part for part in found if part["batch_index"] == 0} == {False}
    assert {"output_log_probs" in part for part in found if part["batch_index"] == 1} == {True}
    assert {part["batch_index"].item(): rows(part) for part in found} == {
        0: rows(alone),
        1: other + rows(second),
    }
    several = ask(server, num_return_sequences=[3], runtime_top_k=[40], temperature=number(1.5),
                  seed=np.array([[7]], np.uint64))  # fmt: skip
    assert sorted(part["sequence_index"].item() for part in several) == [0, 1, 2]
    assert len({tuple(rows(part)) for part in several}) == 3
    (first,) = ask(server, runtime_top_k=[40], temperature=number(1.5),
                   seed=np.array([[7]], np.uint64))  # fmt: skip
    assert rows(first) == next(rows(p) for p in several if p["sequence_index"].item() == 0)


def test_a_temperature_alone_does_not_sample_as_on_the_engine(server):
    (greedy,) = ask(server)
    (same,) = ask(server, temperature=number(3.0), seed=np.array([[5]], np.uint64))
    (drawn,) = ask(server, temperature=number(3.0), runtime_top_p=number(1.0))
    assert rows(same) == rows(greedy) != rows(drawn)


def test_words_penalties_and_lengths(server):
    made = rows(ask(server)[0])
    words = np.array([[[9, 9, *made[3:5]], [2, 4, -1, -1]]], np.int32)
    assert rows(ask(server, stop_words_list=words)[0]) == made[:5]
    bad = np.array([[[made[0]], [1]]], np.int32)
    assert made[0] not in rows(ask(server, bad_words_list=bad)[0])
    assert rows(ask(server, end_id=[made[2]])[0]) == made[:2]
    longer = rows(ask(server, end_id=[made[2]], min_tokens=[7])[0])
    assert len(longer) >= 7
    assert rows(ask(server, frequency_penalty=number(4.0))[0]) != made
    assert rows(ask(server, exclude_input_in_output=flag(False))[0]) == PROMPT + made
    bias = np.zeros((1, 2048), np.float32)
    bias[0, 77] = 1e4
    assert rows(ask(server, embedding_bias=bias)[0]) == [77] * 12


def test_guided(server):
    (found,) = ask(
        server, end_id=[2], guided_decoding_guide_type=text("regex"),
        guided_decoding_guide=text("abc"), return_log_probs=flag(),
    )  # fmt: skip
    from transformers import AutoTokenizer

    from tests.conftest import TINY

    assert AutoTokenizer.from_pretrained(TINY).decode(rows(found)) == "abc"
    wrong = refused(
        server, guided_decoding_guide_type=text("regex"), guided_decoding_guide=text("(")
    )
    assert "guided_decoding_guide is no valid regex" in wrong
    assert "guided_decoding_guide_type" in refused(server, guided_decoding_guide=text("abc"))
    invalid = np.array([[b"\xff\xfe"]], object)
    assert "no valid UTF-8" in refused(
        server, guided_decoding_guide_type=text("regex"), guided_decoding_guide=invalid
    )


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("request_output_len", {"request_output_len": [0]}),
        ("request_output_len", {"request_output_len": [-5]}),
        ("input_ids", {"input_ids": [99999]}),
        ("input_ids", {"request_output_len": [2**31 - 1]}),
        ("input_lengths", {"input_lengths": [6]}),
        ("input_lengths", {"input_lengths": [0]}),
        ("beam_width", {"beam_width": [2]}),
        ("runtime_top_p_decay", {"runtime_top_p_decay": number(np.nan)}),
        ("num_return_sequences", {"num_return_sequences": [9]}),
        ("temperature", {"temperature": number(np.nan)}),
        ("repetition_penalty", {"repetition_penalty": number(-1)}),
        ("runtime_top_k", {"runtime_top_k": [-1]}),
        ("runtime_top_p", {"runtime_top_p": number(1.5)}),
        ("runtime_top_p_min", {"runtime_top_p_min": number(0.5)}),
        ("end_id", {"end_id": [5000]}),
        ("stop_words_list", {"stop_words_list": np.array([[[1, 2], [2, 1]]], np.int32)}),
        ("stop_words_list", {"stop_words_list": np.array([[[1, 2], [-1, 1]]], np.int32)}),
        ("bad_words_list", {"bad_words_list": np.array([[[1, 2], [5, -1]]], np.int32)}),
        ("bad_words_list", {"bad_words_list": np.array([[[9999], [1]]], np.int32)}),
        ("lora_task_id", {"lora_task_id": np.array([[3]], np.uint64)}),
        ("draft_input_ids", {"draft_input_ids": [1, 2]}),
        ("retention_token_range_starts", {"retention_token_range_starts": [0]}),
        ("lookahead_window_size", {"lookahead_window_size": [3]}),
    ],
)
def test_refusals_name_the_tensor(server, name, fields):
    assert refused(server, **fields).startswith(f"[engineroom] {name}")


def _kv_used(server):
    with urllib.request.urlopen(
        f"http://127.0.0.1:{server.endpoints.metrics}/metrics", timeout=10
    ) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("nv_trt_llm_kv_cache_block_metrics") and '"used"' in line:
                return float(line.rsplit(" ", 1)[1])
    return None


def _at_rest(server):
    for _ in range(100):
        if _kv_used(server) == 0:
            return True
        time.sleep(0.05)
    return False


def test_stop_cancels_by_id_and_blocks_come_back(server):
    long = {"request_output_len": [900], "streaming": flag()}
    call = Call(server, tensors(**long), request_id="long")
    while len(call.results) < 3:
        time.sleep(0.01)
    for _ in range(100):
        if _kv_used(server):
            break
        time.sleep(0.02)
    assert _kv_used(server) > 0
    stop = Call(server, tensors(stop=flag()), request_id="long").wait()
    assert not stop.errors
    assert [final for _, final in stop.results] == [True]
    call.wait()
    assert len(call.results) < 900
    assert _at_rest(server)
    unknown = Call(server, tensors(stop=flag()), request_id="nobody").wait()
    assert not unknown.errors
    assert "stop needs the id" in refused(server, stop=flag())


def test_a_client_that_goes_frees_its_blocks(server):
    call = Call(server, tensors(request_output_len=[900], streaming=flag()))
    while len(call.results) < 2:
        time.sleep(0.01)
    call.client.stop_stream(cancel_requests=True)
    call.client.close()
    assert _at_rest(server)
    assert len(rows(ask(server)[0])) == 12
