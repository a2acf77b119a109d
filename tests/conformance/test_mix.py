"""Thirty-two requests at once, a third of the streams left by their clients: what survives is right."""

from __future__ import annotations

import time

import pytest

from tests.conformance.mix import WAYS, Mix

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("features")]
FRONT_NAMES = ["bls", "ensemble", "llmapi"]


def run_mix(server, front: str, seconds: float, seed: int) -> None:
    endpoints = server.endpoints
    mix = Mix((endpoints.http, endpoints.grpc, endpoints.metrics), front)
    expected = mix.alone()
    assert len(set(expected)) > len(expected) / 2
    outcome = mix.run(expected, seconds, seed)
    assert not outcome.wrong, outcome.wrong[:3]
    assert not outcome.failed, outcome.failed[:3]
    assert outcome.right > 10
    assert outcome.cancelled > 5
    assert all(outcome.ways[way] for way in WAYS)
    gauges = mix.settled()
    assert gauges["request active"] == gauges["request waiting"] == 0, gauges
    assert gauges["kv used"] == 0, gauges
    assert gauges["kv free"] == gauges["kv max"] > 0, gauges
    started = time.monotonic()
    assert mix.alone() == expected
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("front", FRONT_NAMES)
def test_survivors_are_right_and_nothing_leaks(features_servers, front):
    run_mix(features_servers(front).server, front, 6, seed=3)


@pytest.mark.full
@pytest.mark.parametrize("front", FRONT_NAMES)
def test_two_minutes(features_servers, front):
    run_mix(features_servers(front).server, front, 120, seed=4)
