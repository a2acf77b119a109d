"""`NVIDIA_REQUIRE_CUDA` as the container runtime reads it."""

from __future__ import annotations

import pytest

from engineroom.checks.require_cuda import evaluate

FORWARD = "cuda>=12.8 brand=tesla,driver>=535,driver<536 brand=nvidia,driver>=550,driver<551"


@pytest.mark.parametrize(
    ("expr", "cuda", "driver", "brand", "satisfied"),
    [
        ("cuda>=12.8", "12.7", "565.77", None, False),  # nvidia-container-toolkit issue #940
        ("cuda>=12.8", "12.8", "570.26", None, True),
        ("cuda>=12.8", "12.10", None, None, True),  # a number, not a text
        ("cuda>=9.0", "12.2", None, None, True),
        ("cuda>=9.0", None, "510.85.02", "tesla", None),
        (FORWARD, "12.2", "535.104.05", "tesla", True),
        (FORWARD, "12.2", "535.104.05", "nvidia", False),  # the branch of another brand
        (FORWARD, "12.4", "550.54.15", "nvidia", True),
        (FORWARD, "12.4", "550.54.15", "geforce", False),
        (FORWARD, "12.4", "551.0", "nvidia", False),  # driver<551 is < 551.0.0
        (FORWARD, "12.2", "535.104.05", None, None),  # a missing brand could decide
        (FORWARD, "12.3", "545.23.08", None, False),  # no brand would help this branch
        (FORWARD, None, "535.104.05", "tesla", True),  # nor does a missing CUDA version
        (FORWARD, None, "545.23.08", "tesla", None),
        ("", None, None, None, True),
        (" , ", None, None, None, True),
        ("brand!=geforce", None, None, "geforce", False),
        ("cuda=12.2", "12.2", None, None, True),
        ("cuda<=12.2,cuda>11", "12.2.2", None, None, False),
    ],
)
def test_verdicts(expr, cuda, driver, brand, satisfied):
    assert evaluate(expr, cuda=cuda, driver=driver, brand=brand)[0] is satisfied


def test_conditions_on_unknown_properties_are_skipped():
    """internal/requirements/constraints/factory.go skips them, so the rest of the term decides."""
    assert evaluate("jetpack>=5,cuda>=12.8", cuda="12.7", driver=None, brand=None)[0] is False
    assert evaluate("jetpack>=5", cuda="12.7", driver=None, brand=None)[0] is True


def test_architecture():
    assert evaluate("arch>=8.0", cuda=None, driver=None, brand=None, arch="7.5")[0] is False
    assert evaluate("arch>=8.0", cuda=None, driver=None, brand=None, arch="10.0")[0] is True


def test_reason_has_both_numbers():
    reason = evaluate("cuda>=12.8", cuda="12.7", driver="565.77", brand=None)[1]
    assert "12.8" in reason
    assert "12.7" in reason
    assert "1 other" in evaluate(FORWARD[: FORWARD.rindex(" ")], cuda="1", driver="1", brand="x")[1]


@pytest.mark.parametrize(
    "expr",
    ["12.8", "cuda", "cuda>=", "cuda>=new", "cuda>=12.8.1.2", "cuda==12", ">=12", "a" * 200_000],
)
def test_what_the_runtime_cannot_read_is_unknown(expr):
    satisfied, reason = evaluate(expr, cuda="13.0", driver="580.95.05", brand="nvidia")
    assert satisfied is None
    assert reason


@pytest.mark.parametrize("value", ["13.1.0.036", "abc", "", "13.٣"])
def test_an_unreadable_fact_is_unknown(value):
    assert evaluate("cuda>=12.8", cuda=value, driver=None, brand=None)[0] is None
