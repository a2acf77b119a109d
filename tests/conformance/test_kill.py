"""kill -9 of a Python stub under the mix: who is hurt, how soon each request ends, what brings it back.

Triton's Python backend has not restarted a dead stub since 24.07 (python_backend pull request 364 took
that out when it joined the decoupled and the default mode). What was found here, and is held:

* A request that reaches a dead stub's model is answered "Stub process '…' is not healthy". The server
  looks for the stub for one second an execution, so what waits in that model's queue is answered
  one a second; in postprocessing that is one event a second.
* A request that was in a stub of a decoupled model when it died is never answered by the server: its
  client's own time limit ends it. In a stub of another model it is answered as the later ones.
* While requests of tensorrt_llm_bls run, the death of its stub stops the engine for everybody: the thread
  that hands the engine's response to that stub waits for it without a limit (python_backend
  src/python_be.cc, SendBLSDecoupledResponse), and with it all responses of that engine. Only a new
  server helps. An idle stub's death hurts nobody else.
* Readiness of server and model stay true. Loading the model again through the repository API starts a
  new stub, and requests are right again; nothing else has to be restarted.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
import urllib.request

import pytest

from engineroom.names import RuntimeName
from engineroom.pipeline.render import render
from engineroom.runner.triton import TritonServer, work_folder
from tests.conformance import wire
from tests.conformance.jobs import FEATURES, job_on_the_checkpoint
from tests.conformance.mix import CONCURRENCY, WAYS, Failure, Mix
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
DEAD = re.compile(r"Stub process '\w+' is not healthy")
LOOK = 1.0
"""Seconds that the server looks for a dead stub, for each execution, one after the other: what waits in
the queue of its model is answered one a second."""
LONGEST = 4  # tokens of an answer where each is an execution
SPARE = 5.0  # seconds; the machine may be busy


@pytest.fixture(scope="module")
def kill_servers(quantized):
    """lane -> TritonServer whose models can be loaded again, started on first use."""
    job = job_on_the_checkpoint(
        quantized("fp8"), "kill", {"features": FEATURES}, lanes=("llmapi", "engine")
    )
    open_, found, works = {}, {}, []

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
            found[lane] = stubs(open_[lane].pid)
        for model in set(found[lane]) - set(stubs(open_[lane].pid)):
            reload(open_[lane], model)  # a failed test left it dead
        return open_[lane]

    yield get
    for server in open_.values():
        server.stop(1)  # it would wait for the requests that are never answered
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


def check(server: TritonServer, victim: str, needs: dict[str, set[str]], seconds: float, each: int):
    """Kill the victim's stub in the middle of a mix of `each` requests at once on every front."""
    endpoints = server.endpoints
    ports = (endpoints.http, endpoints.grpc, endpoints.metrics)
    fronts = sorted(set().union(*needs.values()))
    # Each event of a stream is an execution of postprocessing.
    events = LONGEST + 1 if victim == "postprocessing" else 1.5
    bound = LOOK * each * events + SPARE
    longest = LONGEST if victim == "postprocessing" else 40
    mixes = {front: Mix(ports, front, bound, 2 * each, longest) for front in fronts}
    expected = {front: mix.alone() for front, mix in mixes.items()}
    (pid,) = stubs(server.pid)[victim]
    died: list[float] = []

    def strike() -> None:
        died.append(kill(pid))

    outcomes = {}

    def run(front: str) -> None:
        during = strike if front == fronts[0] else None
        outcomes[front] = mixes[front].run(
            expected[front], seconds, seed=5, concurrency=each, during=during
        )

    threads = [threading.Thread(target=run, args=(front,)) for front in fronts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 3 * bound)
        assert not thread.is_alive(), "the mix does not end"
    for front, outcome in outcomes.items():
        assert not outcome.wrong, outcome.wrong[:3]
        assert outcome.right, front
        if front in needs[victim]:
            check_failures(outcome.failures, victim in DECOUPLED, died[0], bound, each)
        else:
            assert not outcome.failed, outcome.failed[:3]
    for front in needs[victim]:
        for way in WAYS:
            asked = time.monotonic()
            with pytest.raises(wire.Refused, match=DEAD):
                mixes[front].ask(mixes[front].bodies[0], way)
            assert time.monotonic() - asked < bound
    assert victim not in stubs(server.pid), "Triton restarts stubs: say so in docs/serving.md"
    assert ready(server, "/v2/health/ready")
    assert ready(server, f"/v2/models/{victim}/ready")
    reload(server, victim)
    assert stubs(server.pid)[victim] != [pid]
    for front in fronts:
        assert mixes[front].alone() == expected[front], front
        again = mixes[front].run(expected[front], seconds / 3, seed=6, concurrency=each)
        assert not again.wrong, again.wrong[:3]
        assert not again.failed, again.failed[:3]
        assert again.right
    gauges = mixes[fronts[0]].settled()
    assert gauges["request active"] == gauges["request waiting"] == gauges["kv used"] == 0, gauges


def check_failures(
    failures: list[Failure], decoupled: bool, died: float, bound: float, each: int
) -> None:
    """Each ends with the server's error, or was in a decoupled model's stub when that died."""
    assert failures, "nobody noticed"
    for failure in failures:
        assert failure.ended >= died, failure
        if failure.stuck:
            assert decoupled, failure
            assert failure.begun <= died + 0.5, failure
        else:
            assert DEAD.search(failure.message), failure
            assert failure.ended - max(failure.begun, died) < bound, failure
    assert sum(failure.stuck for failure in failures) <= each


@pytest.mark.full
def test_a_killed_llmapi_model(kill_servers):
    check(kill_servers("llmapi"), "tensorrt_llm", {"tensorrt_llm": {"llmapi"}}, 3, each=4)


@pytest.mark.full
def test_a_killed_postprocessing(kill_servers):
    """tensorrt_llm_bls does not need it, and does not notice."""
    check(kill_servers("engine"), "postprocessing", ENGINE, 3, each=4)


def test_a_killed_idle_bls(kill_servers):
    """The ensemble does not notice; a client of it is told, and loading it again is enough."""
    server = kill_servers("engine")
    ports = (server.endpoints.http, server.endpoints.grpc, server.endpoints.metrics)
    mixes = {front: Mix(ports, front, 20.0, bodies=6) for front in ("bls", "ensemble")}
    expected = {front: mix.alone() for front, mix in mixes.items()}
    mixes["bls"].settled()
    kill(stubs(server.pid)["tensorrt_llm_bls"][0])
    for way in WAYS:
        with pytest.raises(wire.Refused, match=DEAD):
            mixes["bls"].ask(mixes["bls"].bodies[0], way)
    assert mixes["ensemble"].alone() == expected["ensemble"]
    reload(server, "tensorrt_llm_bls")
    assert mixes["bls"].alone() == expected["bls"]


@pytest.mark.full
@pytest.mark.parametrize("victim", sorted(set(ENGINE) - {"tensorrt_llm_bls"}))
def test_each_stub_of_the_engine_lane(kill_servers, victim):
    check(kill_servers("engine"), victim, ENGINE, 15, each=CONCURRENCY // 2)


@pytest.mark.full
def test_the_stub_of_the_llmapi_lane(kill_servers):
    lane = {"tensorrt_llm": {"llmapi"}}
    check(kill_servers("llmapi"), "tensorrt_llm", lane, 15, each=CONCURRENCY)


@pytest.mark.full
def test_the_stub_of_bls_under_load(kill_servers):
    """The server's own limit: all that needs the engine waits, and a new server is right again."""
    server = kill_servers("engine")
    ports = (server.endpoints.http, server.endpoints.grpc, server.endpoints.metrics)
    mixes = {front: Mix(ports, front, 12.0) for front in ("bls", "ensemble")}
    expected = {front: mix.alone() for front, mix in mixes.items()}
    (pid,) = stubs(server.pid)["tensorrt_llm_bls"]
    outcome = mixes["bls"].run(expected["bls"], 9, seed=7, during=lambda: kill(pid) and None)
    assert not outcome.wrong, outcome.wrong[:3]
    assert outcome.right > 3
    assert all(failure.stuck or DEAD.search(failure.message) for failure in outcome.failures)
    assert 0 < sum(failure.stuck for failure in outcome.failures) <= CONCURRENCY
    for way in WAYS:  # a dead stub is said at once
        with pytest.raises(wire.Refused, match=DEAD):
            mixes["bls"].ask(mixes["bls"].bodies[0], way)
    reload(server, "tensorrt_llm_bls")
    with pytest.raises(TimeoutError):
        mixes["ensemble"].ask(mixes["ensemble"].bodies[0], "grpc")
    server.stop()
    server.start()
    server.wait_ready(180)
    for front, mix in mixes.items():
        assert mix.alone() == expected[front]
        again = mix.run(expected[front], 5, seed=8)
        assert not again.wrong, again.wrong[:3]
        assert not again.failed, again.failed[:3]
    assert mixes["bls"].settled()["kv used"] == 0
