"""The real tritonserver in both lanes: the text it serves, streamed and not, and how it fails."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import sysconfig
import tempfile
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from engineroom.catalog.resources import data_root
from engineroom.lanes import LANES
from engineroom.names import LaneName
from engineroom.runner import chat, client
from engineroom.runner.triton import TritonServer
from tests.conftest import TINY

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("server")]
LANE_NAMES = ["llmapi", "engine"]
ENDS = [2, 0]
QUESTIONS = [
    "What is the capital of Japan?", "What colour is grass?", "Which day comes after Monday?",
    "Which emoji shows a cat?", 'How do you say "thank you" in Japanese?', "What is 2 plus 3?",
    "What is the weather in Paris, in celsius?", "Start a repeating timer of 10 minutes.",
    "Write a JSON object for a person.", "What is the opposite of hot?",
]  # fmt: skip
RAW = [
    'The "for" statement is used to', '{"name": "', "Return a list of", "The import statement",
    '{"id": 7, "tags": ["', "Élan naïve über 東京", "import os\nclass", "[1, 2, ",
    "A generator is a function which", "Ωmega and 🐱",
]  # fmt: skip


def prompts() -> list[str]:
    asked = [chat.apply(TINY, [{"role": "user", "content": q}]) for q in QUESTIONS]
    return asked + RAW


def post(url: str, path: str, body: object) -> tuple[int, dict]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize("lane", LANE_NAMES)
def test_text_equals_plain_transformers_token_for_token(servers, plain, lane):
    """20 prompts, greedy: streamed, whole, and the independent dequantizer agree."""
    url = servers(lane).server.endpoints.url
    fields = LANES[LaneName(lane)].client
    assert len(prompts()) == 20
    for prompt in prompts():
        ids = plain.ids(prompt, 24, ENDS)
        want = plain.text(ids)
        whole = client.generate(url, fields, prompt, 24, stream=False)
        streamed = client.generate(url, fields, prompt, 24, stream=True)
        assert whole.text == want, prompt
        # The ensemble is not told where a stream ends: a character cut off there stays unsent.
        assert streamed.text == (want.rstrip("\ufffd") if lane == "engine" else want), prompt


def test_engine_lane_tokens_equal(servers, plain):
    """The tensorrt_llm model itself, over gRPC: token ids, not text."""
    import tritonclient.grpc as grpc

    port = servers("engine").server.endpoints.grpc
    with grpc.InferenceServerClient(f"127.0.0.1:{port}") as server:
        for prompt in prompts():
            ids = plain.tokenizer.encode(prompt)
            tensors = {
                "input_ids": np.array([ids], np.int32),
                "input_lengths": np.array([[len(ids)]], np.int32),
                "request_output_len": np.array([[24]], np.int32),
                "end_id": np.array([[ENDS[0]]], np.int32),
                "stop_words_list": np.array([[[ENDS[1]], [1]]], np.int32),
            }
            answers: list = []
            server.start_stream(lambda result, error, a=answers: a.append((result, error)))
            inputs = []
            for name, array in tensors.items():
                item = grpc.InferInput(name, list(array.shape), "INT32")
                item.set_data_from_numpy(array)
                inputs.append(item)
            server.async_stream_infer("tensorrt_llm", inputs)
            server.stop_stream()
            result, error = answers[0]
            assert error is None
            got = result.as_numpy("output_ids")[0, 0].tolist()
            length = result.as_numpy("sequence_length")[0, 0]
            assert [t for t in got[:length] if t not in ENDS] == plain.ids(prompt, 24, ENDS)


@pytest.mark.parametrize("lane", LANE_NAMES)
def test_stream_comes_in_pieces(servers, lane):
    url = servers(lane).server.endpoints.url
    pieces: list[str] = []
    fields = LANES[LaneName(lane)].client
    answer = client.generate(url, fields, RAW[0], 16, stream=True, on_text=pieces.append)
    assert len(pieces) > 8
    assert "".join(pieces) == answer.text
    assert answer.ttft < answer.seconds


@pytest.mark.parametrize("lane", LANE_NAMES)
def test_requests_at_once_equal_requests_alone(servers, lane):
    url = servers(lane).server.endpoints.url
    fields = LANES[LaneName(lane)].client

    def ask(prompt: str) -> str:
        return client.generate(url, fields, prompt, 16, stream=True).text

    alone = [ask(prompt) for prompt in prompts()]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, prompts()))
    assert together == alone


@pytest.mark.parametrize("lane", LANE_NAMES)
def test_says_that_it_is_the_reference(servers, lane):
    serving = servers(lane)
    log = serving.server.log.read_text(errors="replace")
    assert "runtime=reference" in log
    url = serving.server.endpoints.url
    with urllib.request.urlopen(f"{url}/v2/models/tensorrt_llm/config", timeout=10) as answer:
        parameters = json.load(answer)["parameters"]
    key = {"llmapi": "runtime", "engine": "engineroom_runtime"}[lane]
    assert parameters[key]["string_value"] == "reference"


def test_llmapi_errors_name_the_field(servers):
    url = servers("llmapi").server.endpoints.url
    path = "/v2/models/tensorrt_llm/generate"
    status, answer = post(url, path, {"text_input": "x", "sampling_param_max_tokens": 0})
    assert status == 400
    assert "max_tokens must be at least 1" in answer["error"]
    status, answer = post(url, path, {"text_input": "x", "sampling_param_max_tokens": 99999})
    assert "max_seq_len 1024" in answer["error"]
    beams = {"sampling_param_n": 2, "sampling_param_use_beam_search": True}
    status, answer = post(url, path, {"text_input": "x", **beams})
    assert "sampling_param_use_beam_search" in answer["error"]
    status, answer = post(url, path, {"text_input": ["a", "b"]})
    assert "must have one prompt, got 2" in answer["error"]
    status, answer = post(url, path, {"text_input": "x", "lora_name": "fr"})
    assert "lora_name" in answer["error"]
    assert "serving.features.lora off" in answer["error"]
    # The server still answers.
    assert post(url, path, {"text_input": "x", "sampling_param_max_tokens": 2})[0] == 200


def test_llmapi_extras_and_stop_words(servers, plain):
    url = servers("llmapi").server.endpoints.url
    path = "/v2/models/tensorrt_llm/generate"
    body = {"text_input": RAW[0], "sampling_param_max_tokens": 24, "return_finish_reason": True}
    _, whole = post(url, path, body)
    assert whole["finish_reason"] == "length"
    word = whole["text_output"][10:14]
    _, cut = post(url, path, {**body, "sampling_param_stop": [word], "return_stop_reason": True})
    assert cut["text_output"] == whole["text_output"].split(word)[0]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", word)
    _, echoed = post(url, path, {**body, "sampling_param_exclude_input_from_output": False})
    assert echoed["text_output"] == RAW[0] + whole["text_output"]


def test_engine_answers_without_the_prompt_and_ends_on_every_end_id(servers):
    url = servers("engine").server.endpoints.url
    prompt = chat.apply(TINY, [{"role": "user", "content": QUESTIONS[1]}])
    _, answer = post(url, "/v2/models/ensemble/generate", {"text_input": prompt, "max_tokens": 60})
    assert answer["text_output"] == "Grass is green."


def test_engine_stream_without_an_id_never_gives_wrong_text(servers):
    """A character over several tokens needs the request id; without one it is an error, not U+FFFD."""
    url = servers("engine").server.endpoints.url
    prompt = "Which emoji: 🐱 🐶 🦊 🐻 🐼 "
    data = json.dumps({"text_input": prompt, "max_tokens": 24, "stream": True}).encode()
    request = urllib.request.Request(url + "/v2/models/ensemble/generate_stream", data)
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    assert "\\ufffd" not in text.lower()
    assert "\ufffd" not in text


def test_model_files_import_nothing_of_ours():
    """What a server executes: standard library, numpy, Triton's utils, transformers, tokenizers."""
    allowed = {"numpy", "triton_python_backend_utils", "transformers", "tokenizers", "tensorrt_llm"}
    # Chat templates, images and guides; imported by the first request that has one.
    allowed |= {"jinja2", "PIL", "xgrammar"}
    root = data_root() / "model_repo_templates"
    found = [p for name in ("llmapi", "engine", "shared") for p in (root / name).rglob("*.py")]
    siblings = {path.stem for path in found} - {"model"} | {"engineroom_reference"}
    assert len(found) >= 6
    for path in found:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                top = name.split(".")[0]
                assert top in allowed | siblings or top in sys.stdlib_module_names, (path, name)


@pytest.fixture(scope="module")
def bare_environment(tmp_path_factory):
    """A virtual environment with every package of this one, except engineroom."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin/python"
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(subprocess.check_output([str(python), "-c", ask], text=True).strip())
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "engineroom" not in entry.name and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    for module, there in (("transformers", True), ("engineroom", False)):
        find = f"import importlib.util as u; print(u.find_spec({module!r}) is not None)"
        found = subprocess.check_output([str(python), "-c", find], text=True, cwd=folder)
        assert found.strip() == str(there), module
    return folder / "bin"


@pytest.mark.parametrize("lane", LANE_NAMES)
def test_serves_where_engineroom_cannot_be_imported(
    servers, built, bare_environment, tmp_path, lane
):
    """The same repository, its models in an environment that has no engineroom."""
    repository = servers(lane).repository.path
    roots = built.catalog.template_roots
    with tempfile.TemporaryDirectory(prefix="engineroom-bare-") as work:
        log = tmp_path / "bare.log"
        with TritonServer(
            repository, Path(work), roots, log=log, bin_dir=bare_environment
        ) as server:
            server.wait_ready(120)
            fields = LANES[LaneName(lane)].client
            answer = client.generate(server.endpoints.url, fields, RAW[0], 8, stream=True)
            stubs = _stubs(server.pid)
            assert len(stubs) == {"llmapi": 1, "engine": 4}[lane]
            for pid in stubs:  # it really is that environment's
                assert str(bare_environment) in Path(f"/proc/{pid}/environ").read_text()
    want = client.generate(servers(lane).server.endpoints.url, fields, RAW[0], 8, stream=True)
    assert answer.text == want.text


def _stubs(server_pid: int) -> list[int]:
    return [
        pid
        for pid in (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit())
        if _parent(pid) == server_pid and "triton_python_backend_stub" in _command(pid)
    ]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return -1


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
