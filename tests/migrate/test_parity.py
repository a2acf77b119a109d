"""Must hold 7: the migrated spec answers as the old layout does, token for token.

Both sides run on the real tritonserver with the reference runtime (transformers on CPU), on one
checkpoint: nothing here is TensorRT-LLM, and no engine is built. What is compared is everything around
the engine: model names, field names, tensor maps, special tokens, end ids, stop words, limits, streams.

* Old: the fixture's own config.pbtxt files, with engineroom's model files and engine stand-in where
  upstream's would be; `old_layout.py` lists every substitution.
* New: the spec that `migrate --model` writes for the tests' tiny model, which passes `check` as it is;
  through quantize, build, render and serve with these substitutions: `calibration` is the tests' generated
  text, `max_seq_len` at most what the tiny model has, `max_batch_size` at most 64 (the reference runtime
  reserves for all of them).

Token ids are taken at the border of the runtime, which is the same code on both sides; what clients see
is compared as text. The short form serves two fixtures (ensemble and BLS) at once in one server a side:
their model names do not collide on the old side, and the second new model gets another name.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from engineroom.catalog import Catalog
from engineroom.names import RuntimeName
from engineroom.pipeline import build, open_job, quantize, render
from engineroom.pipeline.migrate import migrate
from engineroom.pipeline.migrate_clients import ClientMap, client_data
from engineroom.pipeline.migrate_prompts import PROMPTS
from engineroom.pipeline.migrate_requests import Call, curl, echoes, tritonclient
from engineroom.pipeline.quantize import find
from engineroom.runner import parity
from tests.conformance.wire import Grpc, http_generate, http_stream, text
from tests.conftest import TINY, calibration_file, spec_data
from tests.migrate import old_layout as old

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("server")]
SHORT = ("llama31-fp8-0.21", "smollm-odd-1.2")
# The ensemble of the first and the BLS model of the second, with what each needs.
SHORT_FOLDERS = (
    ("ensemble", "preprocessing", "postprocessing", "tensorrt_llm"),
    ("tensorrt_llm_bls", "smollm"),
)
FRONTS = {"bls": "tensorrt_llm_bls", "ensemble": "ensemble"}
MAX_TOKENS = 24
ENDS = (2, 0)
"""Of the tiny model's generation_config.json."""


def migrated(name: str, out: Path) -> Any:
    """The `Migration` of a fixture."""
    given = old.setup(name)
    folder = old.FIXTURES / name
    done = migrate(
        folder / given["repo"],
        engine=folder / given["engine"],
        build_script=folder / given["build_script"],
        out=out,
        stack="26.07",
        sku=given["sku"],
        model=str(TINY),
    )
    assert done.passes, done.findings  # `engineroom check` on the spec as it was written
    return done


def substituted(spec: Any, *, shared_checkpoint: bool = False) -> dict[str, Any]:
    """The migrated spec on the tiny model; see this module's docstring.

    Args:
        shared_checkpoint: add the engine target that the session's FP8 checkpoint was made with.
    """
    data, base = copy.deepcopy(dict(spec)), spec_data()
    if "calibration" in data:
        data["calibration"] = base["calibration"]
    for target in data["targets"]:
        for key, most in (("max_seq_len", old.MAX_SEQ_LEN), ("max_batch_size", 64)):
            target["limits"][key] = min(target["limits"][key], most)
    if shared_checkpoint:
        data["targets"].append(base["targets"][1])
    return data


def new_repository(spec: Any, folder: Path, base: Any = None) -> tuple[Path, Path]:
    """(rendered repository, Hugging Face folder of the checkpoint) of a migrated spec.

    Args:
        base: the session's job with an FP8 checkpoint; without it one is made.
    """
    folder.mkdir(parents=True)
    calibration_file(folder)
    path = folder / "engineroom.yaml"
    path.write_text(yaml.safe_dump(substituted(spec, shared_checkpoint=base is not None)))
    job = open_job(path, out=folder / "out")
    if base is not None:
        shutil.copytree(base.out / "checkpoints", job.out / "checkpoints")
    else:
        quantize(job, evaluate=False)
    target = job.targets[0].target.id
    build(job, target, allow_plan=True)
    rendered = render(job, target, runtime=RuntimeName.REFERENCE)[0]
    return rendered.path, find(job).path / "hf"


def send(side: old.Side, call: Call, model: str | None = None) -> str:
    """The text that a client of this call gets; `model` where it has another name here."""
    port, body, name = side.endpoints.http, dict(call.body), model or call.model
    if call.stream:
        return text(http_stream(port, name, body))
    return text([http_generate(port, name, body)])


def calls(name: str, setup: Any, prompt: str, number: int) -> dict[str, Any]:
    """Greedy request number `number`: every second one streamed where the old side streams."""
    stream = old.setup(name)["streaming"] and number % 2 == 1
    return {
        "old": {"text_input": prompt, "max_tokens": MAX_TOKENS, **({"stream": True} if stream else {})},
        "new": {
            "text_input": prompt,
            "sampling_param_max_tokens": MAX_TOKENS,
            **({"streaming": True} if stream else {}),
            **({} if stream or not echoes(setup) else {"sampling_param_exclude_input_from_output": False}),
        },
        "stream": stream,
    }  # fmt: skip


def ask(side: old.Side, model: str, body: dict[str, Any], stream: bool, grpc: bool) -> str:
    if grpc:
        client = Grpc(side.endpoints.grpc)
        with contextlib.closing(client):
            return text(client.ask(model, body))
    if stream:
        return text(http_stream(side.endpoints.http, model, body))
    return text([http_generate(side.endpoints.http, model, body)])


def all_answers(
    side: old.Side, which: str, model: str, name: str, setup: Any, prompts: Any
) -> list[tuple[str, dict[str, Any]]]:
    """(text, what the runtime recorded) of each prompt; every fifth one over gRPC."""
    found = []
    for number, prompt in enumerate(prompts):
        call = calls(name, setup, prompt, number)
        before = len(side.recorded())
        answer = ask(side, model, call[which], call["stream"], number % 5 == 4)
        (record,) = side.recorded()[before:]
        found.append((answer, record))
    return found


def answer_ids(record: dict[str, Any]) -> list[int]:
    """Token ids of an answer without the id that ended it.

    The engine takes one end id; our files give it the model's others as stop words, and a stop word is
    among what the runtime hands out, which an end id is not.
    """
    ids: list[int] = record["tokens"]
    return ids[:-1] if record["finish"] == "stop" and ids and ids[-1] in ENDS else ids


def assert_same(old_answers: Any, new_answers: Any, name: str) -> None:
    """Prompt ids, token ids and text of each prompt."""
    for number, ((old_text, old_record), (new_text, new_record)) in enumerate(
        zip(old_answers, new_answers, strict=True)
    ):
        where = (name, number)
        assert old_record["prompt"] == new_record["prompt"], where
        assert answer_ids(old_record) == answer_ids(new_record), where
        assert old_record["finish"] == new_record["finish"], where
        if name != "smollm-odd-1.2":  # special tokens stay in its text: clients.md says so
            # The ensemble is not told where a stream ends: a character cut off there stays unsent.
            assert old_text.rstrip("\ufffd") == new_text.rstrip("\ufffd"), where
    # Nothing would be shown by answers that end at once.
    assert sum(len(answer_ids(record)) > 4 for _, record in new_answers) > len(new_answers) // 2


def assert_exchanges(
    data: ClientMap, old_side: old.Side, new_side: old.Side, model: str, fronts: Any
) -> int:
    """Each before/after pair of clients.md gives the same text; how many were sent."""
    sent = 0
    for item in data.exchanges:
        if item.sent and item.before.model in fronts:
            sent += 1
            before, after = send(old_side, item.before), send(new_side, item.after, model)
            assert before == after, item.id
            assert before, item.id
    return sent


def run_text(command: list[str], *, stdin: str | None = None) -> str:
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def at_ports(source: str, side: old.Side, model: str) -> str:
    """A call of clients.md with this test's ports and model name."""
    source = source.replace("localhost:8000", f"127.0.0.1:{side.endpoints.http}")
    source = source.replace("localhost:8001", f"127.0.0.1:{side.endpoints.grpc}")
    source = re.sub(r"models/tensorrt_llm/", f"models/{model}/", source)
    return source.replace("'tensorrt_llm'", repr(model))


def curl_text(output: str) -> str:
    """`text_output` of a curl call: one JSON object, or events."""
    lines = [line.removeprefix("data: ") for line in output.splitlines() if line.strip()]
    return "".join(str(json.loads(line)["text_output"]) for line in lines)


def assert_shell(
    data: ClientMap, ident: str, old_side: old.Side, new_side: old.Side, model: str
) -> None:
    """The curl call and the Python of one exchange, run as they are printed."""
    item = next(e for e in data.exchanges if e.id == ident)
    found = []
    for call, side, name in (
        (item.before, old_side, item.before.model),
        (item.after, new_side, model),
    ):
        found.append(curl_text(run_text(["bash", "-c", at_ports(curl(call), side, name)])))
        code = at_ports(tritonclient(call), side, name)
        found.append(run_text([sys.executable, "-"], stdin=code))
    assert found == found[:1] * 4
    assert found[0]


@pytest.fixture(scope="module")
def short(tmp_path_factory, quantized):
    """Both sides of the two short fixtures, served: (migrations, old side, new side, {fixture: new model})."""
    folder = tmp_path_factory.mktemp("parity")
    base = quantized("fp8")
    made = {name: migrated(name, folder / name / "migrated") for name in SHORT}
    new_models = {}
    for at, name in enumerate(SHORT):
        repository, checkpoint = new_repository(made[name].spec, folder / name / "new", base)
        model = "tensorrt_llm" if at == 0 else f"tensorrt_llm_{at}"
        place = folder / "new" / model
        shutil.copytree(repository / "tensorrt_llm", place)
        config = place / "config.pbtxt"
        config.write_text(config.read_text().replace('name: "tensorrt_llm"', f'name: "{model}"', 1))
        old.write_repository(name, folder / "old", checkpoint, SHORT_FOLDERS[at])
        new_models[name] = model
    roots = Catalog().template_roots
    with contextlib.ExitStack() as stack:
        sides = []
        for side in ("old", "new"):
            logs = folder / f"logs-{side}"
            logs.mkdir()
            sides.append(stack.enter_context(old.running(folder / side, logs, roots)))
        yield made, *sides, new_models
        old.stop_together(sides)


def test_two_fixtures_answer_alike_token_for_token(short):
    made, old_side, new_side, models = short
    for name, front in zip(SHORT, ("ensemble", "tensorrt_llm_bls"), strict=True):
        setup = made[name].setup
        prompts = PROMPTS[:8]
        assert_same(
            all_answers(old_side, "old", front, name, setup, prompts),
            all_answers(new_side, "new", models[name], name, setup, prompts),
            name,
        )
    assert len(old_side.recorded()) == len(new_side.recorded()) == 16


def test_requests_of_the_client_map_give_the_same_answers(short):
    """Before to the old side, after to the new one; one of them as printed: curl and tritonclient."""
    made, old_side, new_side, models = short
    catalog = Catalog()
    for name, front in zip(SHORT, ("ensemble", "tensorrt_llm_bls"), strict=True):
        data = client_data(made[name].setup, made[name].spec, catalog)
        assert assert_exchanges(data, old_side, new_side, models[name], (front,)) == 3
    data = client_data(made[SHORT[0]].setup, made[SHORT[0]].spec, catalog)
    assert_shell(data, "ensemble-stream", old_side, new_side, models[SHORT[0]])


def test_old_names_have_no_effect_on_the_new_side_and_errors_name_the_field(short):
    """What clients.md says of unknown fields and of errors."""
    _, old_side, new_side, _ = short
    body = {"text_input": "The import statement", "max_tokens": 3}
    named = {"text_input": "The import statement", "sampling_param_max_tokens": 3}
    http_generate(new_side.endpoints.http, "tensorrt_llm", body)
    http_generate(new_side.endpoints.http, "tensorrt_llm", named)
    ignored, taken = (len(r["tokens"]) for r in new_side.recorded()[-2:])
    assert (ignored > 3, taken) == (True, 3)
    for side, model, wrong, says in (
        (new_side, "tensorrt_llm", {**named, "sampling_param_max_tokens": 0},
         "sampling_param_max_tokens must be at least 1, got 0"),
        (old_side, "ensemble", {**body, "max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        (old_side, "tensorrt_llm_bls", {**body, "max_tokens": 0}, "max_tokens must be at least 1, got 0"),
    ):  # fmt: skip
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(
                f"{side.endpoints.url}/v2/models/{model}/generate", json.dumps(wrong).encode()
            )
        assert caught.value.code == 400
        assert says in json.loads(caught.value.read())["error"]


def test_the_comparison_that_the_ab_plan_runs(short, tmp_path, capsys):
    _, old_side, new_side, _ = short
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"text": p}) + "\n" for p in PROMPTS[:2]))
    words = ["--prompts", str(prompts), "--old", old_side.endpoints.url, "--old-model", "ensemble",
             "--new", new_side.endpoints.url, "--max-tokens", "6"]  # fmt: skip
    assert parity.main(words) == 0
    assert "2 of 2 answers are equal" in capsys.readouterr().out
    report = tmp_path / "report.json"
    echoed = [*words, "--new-model", "nobody", "--report", str(report)]
    assert parity.main(echoed) == 3
    assert "nobody" in capsys.readouterr().err
    assert not report.exists()


@pytest.mark.full
@pytest.mark.parametrize("name", old.NAMES)
def test_every_fixture_answers_50_prompts_alike(name, tmp_path):
    """Every front of the old layout and the new model, on one checkpoint, in servers of their own."""
    made = migrated(name, tmp_path / "migrated")
    repository, checkpoint = new_repository(made.spec, tmp_path / "new")
    roots, given = Catalog().template_roots, old.setup(name)
    old.write_repository(name, tmp_path / "old", checkpoint)
    assert len(PROMPTS) == 50
    for side in ("old", "new"):
        (tmp_path / f"logs-{side}").mkdir()
    data = client_data(made.setup, made.spec, Catalog())
    fronts = [FRONTS[front] for front in given["fronts"]]
    with (
        old.running(tmp_path / "old", tmp_path / "logs-old", roots) as old_side,
        old.running(repository, tmp_path / "logs-new", roots) as new_side,
    ):
        new = all_answers(new_side, "new", "tensorrt_llm", name, made.setup, PROMPTS)
        for front in fronts:
            found = all_answers(old_side, "old", front, name, made.setup, PROMPTS)
            assert_same(found, new, name)
        assert assert_exchanges(data, old_side, new_side, "tensorrt_llm", fronts) >= 2 * len(fronts)
        for item in data.exchanges:
            if item.sent:
                assert_shell(data, item.id, old_side, new_side, "tensorrt_llm")
        old.stop_together([old_side, new_side])
