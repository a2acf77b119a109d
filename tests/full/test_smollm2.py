"""The long form of tests/serving: the demo's real model, 20 prompts in each lane, token for token.

Only in `make test-full`, which makes the model first; the tiny model is its short form.
"""

from __future__ import annotations

import pytest

from engineroom.lanes import LANES
from engineroom.names import RuntimeName
from engineroom.pipeline import build, open_job, quantize
from engineroom.pipeline.quantize import find
from engineroom.pipeline.serve import serve
from engineroom.runner import chat, client
from tests.conftest import ROOT
from tests.independent.generation import Plain

pytestmark = [pytest.mark.full, pytest.mark.server, pytest.mark.xdist_group("full")]
MODEL = ROOT / ".cache/models/smollm2-135m-instruct"
QUESTIONS = [
    "What is the capital of France?", "Name three colours.", "Write a haiku about rain.",
    "What is 12 times 12?", "Translate 'good morning' into Spanish.", "Who wrote Hamlet?",
    "List two prime numbers.", "What do bees make?", "Explain gravity in one sentence.",
    "Give a JSON object with a name and an age.",
]  # fmt: skip
RAW = [
    "The capital of Italy is", "def fibonacci(n):\n", "Once upon a time", "1, 2, 3, 4,",
    "Le chat est sur", "The largest planet is", "<html>\n<body>", "東京は", "Dear Sir or Madam,",
    "SELECT name FROM",
]  # fmt: skip


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    if not (MODEL / "config.json").exists():
        pytest.fail("make test-full prepares .cache/models/smollm2-135m-instruct first")
    out = tmp_path_factory.mktemp("smollm2")
    made = open_job(ROOT / "examples/smollm2.yaml", out=out)
    quantize(made, evaluate=False)
    build(made, allow_plan=True)
    return made


def test_20_prompts_in_each_lane(job):
    folder = find(job).path / "hf"
    plain = Plain(folder)
    asked = [chat.apply(folder, [{"role": "user", "content": q}]) for q in QUESTIONS]
    prompts = asked + RAW
    assert len(prompts) == 20
    want = [plain.text(plain.ids(prompt, 16, [2])) for prompt in prompts]
    for item in (job.targets[0], job.targets[2]):
        fields = LANES[item.target.lane].client
        with serve(job, item.target.id, runtime=RuntimeName.REFERENCE) as serving:
            url = serving.server.endpoints.url
            whole = [client.generate(url, fields, p, 16, stream=False).text for p in prompts]
            streamed = [client.generate(url, fields, p, 16, stream=True).text for p in prompts]
        assert whole == want, item.target.lane
        assert [s.rstrip("\ufffd") for s in streamed] == [w.rstrip("\ufffd") for w in want]
