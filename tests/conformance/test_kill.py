"""kill -9 of a Python stub under the mix: who is hurt, how soon each request ends, what brings it back.

Triton's Python backend has not restarted a dead stub since 24.07 (python_backend pull request 364 took
that out when it joined the decoupled and the default mode). What was found here, and is held:

* A request that reaches a dead stub's model is answered "Stub process '…' is not healthy" at once.
* A request that was in a stub of a decoupled model when it died is never answered by the server: its
  client's own time limit ends it. In a stub of another model it is answered as the later ones.
* Readiness of server and model stay true. Loading the model again through the repository API starts a
  new stub, and requests are right again; nothing else has to be restarted.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import urllib.request

import pytest

from engineroom.names import RuntimeName
from engineroom.pipeline.render import render
from engineroom.runner.triton import TritonServer, work_folder
from tests.conformance.conftest import FEATURES, job_on_the_checkpoint
from tests.conformance.mix import CONCURRENCY, Mix
from tests.conformance.stubs import kill, stubs

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("kill")]
# Stub -> fronts that need it; the others must not notice.
ENGINE = {
    "tensorrt_llm_bls": {"bls"},
    "preprocessing": {"ensemble"},
    "postprocessing": {"ensemble"},
    "tensorrt_llm": {"bls", "ensemble"},
}
DECOUPLED = {"tensorrt_llm_bls", "tensorrt_llm"}
LIMIT = 8.0  # seconds without a response after which a client of the test goes
SOON = 6.0  # seconds in which a request to a dead stub must be answered, on a busy machine
DEAD = re.compile(r"Stub process '\w+' is not healthy|failed to send|cancelled|closed")


@pytest.fixture(scope="module")
def kill_servers(quantized):
    """lane -> TritonServer whose models can be loaded again, started on first use."""
    job = job_on_the_checkpoint(
        quantized("fp8"), "kill", {"features": FEATURES}, lanes=("llmapi", "engine")
    )
    open_, works = {}, []

    def get(lane):
        if lane not in open_:
            target = next(t.target.id for t in job.targets if t.target.lane == lane)
            repository = render(job, target, runtime=RuntimeName.REFERENCE)[0].path
            works.append(work_folder())
            options = [f"--load-model={path.name}" for path in repository.iterdir()]
            open_[lane] = TritonServer(
                repository, works[-1], job.catalog.template_roots,
                log=job.out / "logs" / f"kill-{lane}.log",
                extra_args=["--model-control-mode=explicit", *options],
            )  # fmt: skip
            open_[lane].start()
            open_[lane].wait_ready(180)
        return open_[lane]

    yield get
    for server in open_.values():
        server.stop()
    for work in works:
        shutil.rmtree(work, ignore_errors=True)


def reload(server: TritonServer, model: str) -> None:
    for verb in ("unload", "load"):
        request = urllib.request.Request(
            f"{server.endpoints.url}/v2/repository/models/{model}/{verb}", json.dumps({}).encode()
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200


def ready(server: TritonServer, path: str) -> bool:
    with urllib.request.urlopen(server.endpoints.url + path, timeout=10) as answer:
        return answer.status == 200


def check(server: TritonServer, victim: str, needs: dict[str, set[str]], seconds: float) -> None:
    """Kill the victim's stub in the middle of a mix on every front of the server."""
    endpoints = server.endpoints
    ports = (endpoints.http, endpoints.grpc, endpoints.metrics)
    fronts = sorted(set().union(*needs.values()))
    mixes = {front: Mix(ports, front, LIMIT) for front in fronts}
    expected = {front: mix.alone() for front, mix in mixes.items()}
    (pid,) = stubs(server.pid)[victim]
    died: list[float] = []

    def strike() -> None:
        died.append(kill(pid))

    outcomes = {}

    def run(front: str) -> None:
        outcomes[front] = mixes[front].run(
            expected[front], seconds, seed=5, concurrency=CONCURRENCY // len(fronts),
            during=strike if front == fronts[0] else None,
        )  # fmt: skip

    threads = [threading.Thread(target=run, args=(front,)) for front in fronts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 90)
        assert not thread.is_alive(), "the mix does not end"
    for front in fronts:
        outcome = outcomes[front]
        assert not outcome.wrong, outcome.wrong[:3]
        assert outcome.right > 3, front
        if front not in needs[victim]:
            assert not outcome.failed, outcome.failed[:3]
            continue
        assert outcome.failed, "nobody noticed"
        for failure in outcome.failures:
            assert failure.ended >= died[0], failure
            if failure.stuck:  # the server never answers it; it was under way when the stub died
                assert victim in DECOUPLED, failure
                assert failure.begun <= died[0] + 0.5, failure
                assert failure.ended - max(failure.begun, died[0]) < LIMIT + SOON
            else:
                assert DEAD.search(failure.message), failure
                if failure.begun > died[0]:
                    assert failure.ended - failure.begun < SOON, failure
        assert sum(f.stuck for f in outcome.failures) <= CONCURRENCY // len(fronts)
        assert any(not f.stuck and f.begun > died[0] for f in outcome.failures)
    assert victim not in stubs(server.pid), "Triton restarts stubs: say so in docs/serving.md"
    assert ready(server, "/v2/health/ready")
    assert ready(server, f"/v2/models/{victim}/ready")
    reload(server, victim)
    assert stubs(server.pid)[victim] != [pid]
    for front in fronts:
        assert mixes[front].alone() == expected[front], front
        again = mixes[front].run(expected[front], seconds / 3, seed=6)
        assert not again.wrong, again.wrong[:3]
        assert not again.failed, again.failed[:3]
        assert again.right > 3
    gauges = mixes[fronts[0]].settled()
    assert gauges["request active"] == gauges["request waiting"] == gauges["kv used"] == 0, gauges


def test_a_killed_llmapi_model(kill_servers):
    check(kill_servers("llmapi"), "tensorrt_llm", {"tensorrt_llm": {"llmapi"}}, 4)


def test_a_killed_postprocessing(kill_servers):
    """tensorrt_llm_bls does not need it, and does not notice."""
    check(kill_servers("engine"), "postprocessing", ENGINE, 4)


@pytest.mark.full
@pytest.mark.parametrize("victim", sorted(ENGINE))
def test_each_stub_of_the_engine_lane(kill_servers, victim):
    check(kill_servers("engine"), victim, ENGINE, 15)


@pytest.mark.full
def test_the_stub_of_the_llmapi_lane(kill_servers):
    check(kill_servers("llmapi"), "tensorrt_llm", {"tensorrt_llm": {"llmapi"}}, 15)
