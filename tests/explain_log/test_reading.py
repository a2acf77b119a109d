"""Logs as they come: prefixes, colours, damage, repetition, size."""

from __future__ import annotations

import gzip
import importlib
import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engineroom.catalog import log_lines
from engineroom.errors import UsageError
from engineroom.pipeline import log_text
from engineroom.pipeline.explain_log import explain_log
from tests.explain_log.common import cases, explain, ids, rows

# The package shows the function of this name; the test needs the module.
module = importlib.import_module("engineroom.pipeline.explain_log")

OOM = "CUDA runtime error in ::cudaMallocAsync(ptr, n, s): out of memory (/app/tllmBuffers.h:112)"
PORT = "failed to start HTTP service: Unavailable - Socket '0.0.0.0:8000' already in use "


@pytest.mark.parametrize(
    "line",
    [
        f"E0109 19:34:35.166155 11729 main.cc:245] {PORT}",
        f'E0109 19:34:35.166155 11729 main.cc:245] "{PORT}"',
        f"triton-models-1  | E0109 19:34:35.166155 1 main.cc:245] {PORT}",
        f"2024-03-28T01:20:32.907123456Z stderr F E0109 19:34:35.166155 1 main.cc:245] {PORT}",
        f"[pod/triton-0/server] E0109 19:34:35.166155 1 main.cc:245] {PORT}",
        f"pod/triton-0 [11/18/2025-09:33:30] [TRT-LLM] [RANK 0] [E] {PORT}",
        f"[1,3]<stderr>:[TensorRT-LLM][ERROR] {PORT}",
        f"Nov 29 20:55:39 node1 tritonserver[123]: {PORT}",
        "\x1b[31mE0109 19:34:35.166155 1 main.cc:245]\x1b[0m \x1b[1mfailed to start\x1b[0m HTTP"
        " service: Unavailable - Socket '0.0.0.0:8000' already in use",
        json.dumps({"log": f"E0109 19:34:35.166155 1 main.cc:245] {PORT}\n", "stream": "stderr"}),
        json.dumps({"level": "error", "message": PORT, "time": "2026-11-29T00:00:00Z"}),
        f"10%|█\r20%|██\r{PORT}",
    ],
)
def test_prefixes(line):
    found = explain(f"first\r\n{line}\r\nlast\r\n")
    assert ids(found) == ["port-in-use"]
    assert found.known[0].line == 2
    assert found.known[0].text == PORT.strip()
    assert found.known[0].values == {"service": "HTTP", "address": "0.0.0.0:8000"}
    assert (found.lines, found.unknown) == (3, ())


def test_damaged_bytes():
    raw = b"\xef\xbb\xbf\0\xff\xfe broken \xc3\x28\n" + PORT.encode() + b"\xff\0\n"
    assert ids(explain(raw)) == ["port-in-use"]
    wide = f"x\r\n{PORT}\r\n".encode("utf-16")  # PowerShell's redirection
    assert ids(explain(wide)) == ["port-in-use"]


def test_control_characters_do_not_reach_the_terminal():
    found = explain("E0109 19:34:35.166155 1 x.cc:1] odd \x07\x9b31m\u202etxt\x1b]0;title\x07 end")
    assert found.unknown[0].text == "odd 31mtxt end"


def test_repeated_lines_are_counted():
    found = explain("\n".join([PORT] * 5 + [PORT.replace("8000", "8001")] + ["ERROR: id 7"] * 3))
    assert [(k.values["address"], k.line, k.count) for k in found.known] == [
        ("0.0.0.0:8000", 1, 5),
        ("0.0.0.0:8001", 6, 1),
    ]
    assert [(u.line, u.count) for u in found.unknown] == [(7, 3)]
    assert found.lines == 9


def test_unknown_is_answered_with_the_line_and_never_guessed():
    found = explain(
        "I0109 19:34:35.166155 1 x.cc:1] fine\nE0109 19:34:35.166155 1 x.cc:1] new thing"
    )
    assert not found.known
    assert [(u.line, u.text) for u in found.unknown] == [(2, "new thing")]
    assert all(found.fails(limit) for limit in ("error", "unknown", "warn"))


@pytest.mark.parametrize(
    "line",
    [
        "I0109 19:34:35.166155 1 x.cc:1] ERROR counter is 0",
        "[10/10/2025-07:14:06] [TRT] [W] Unused Input: position_ids",
        "[TensorRT-LLM][INFO] errors seen: 0",
        "--log-error=1 --exit-on-error=true",
        "process ended with exit code 0",
        '{"level": "info", "msg": "no error found"}',
        "  Normal   Killing    41s  kubelet  Container triton will be restarted",
    ],
)
def test_not_an_error(line):
    found = explain(line)
    assert (found.known, found.unknown) == ((), ())
    assert not found.fails("warn")


@pytest.mark.parametrize(
    "line",
    [
        "E0109 19:34:35.166155 1 x.cc:1] odd",
        "triton-1  | F0109 19:34:35.166155 1 x.cc:1] odd",
        "[10/10/2025-07:14:06] [TRT-LLM] [E] odd",
        "[TensorRT-LLM][ERROR] odd",
        "mypackage.OddError: 7",
        "2026-01-02 03:04:05,678 ERROR odd",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "CUDA error: an illegal memory access was encountered",
        "command terminated with exit code 139",
        "h:1:1 [0] net.cc:1 NCCL WARN odd",
        "  Warning  FailedMount  1s  kubelet  MountVolume.SetUp failed",
        '{"severity": "ERROR", "msg": "odd"}',
        "Segmentation fault",
    ],
)
def test_an_error(line):
    assert len(explain(line).unknown) == 1


def test_a_writer_that_warns_lowers_an_error():
    text = "pinned memory: CUDA driver version is insufficient for CUDA runtime version"
    warned = explain(f'W1129 21:02:44.691111 10686 pinned_memory_manager.cc:273] "{text}"')
    assert [str(k.severity) for k in warned.known] == ["warn"]
    assert [warned.fails(limit) for limit in ("error", "unknown", "warn")] == [False, True, True]
    both = explain(f"W1129 21:02:44.691111 1 p.cc:273] {text}\nRuntimeError: {text}")
    assert [(str(k.severity), k.count) for k in both.known] == [("error", 2)]


def test_traceback_is_explained_by_its_last_line():
    head = 'Traceback (most recent call last):\n  File "/x/ERROR.py", line 1, in f\n    raise E\n'
    assert ids(explain(head + "RuntimeError: Only 1 GPUs are available, but 2 are required.")) == [
        "too-few-gpus"
    ]
    assert not explain(
        head + "RuntimeError: Only 1 GPUs are available, but 2 are required."
    ).unknown
    assert [(u.line, u.text) for u in explain(head + "ValueError: x").unknown] == [
        (4, "ValueError: x")
    ]
    assert [u.line for u in explain("a\n" + head).unknown] == [2]  # cut off before its end


def test_root_cause_first():
    """The order of a real server's log: 2.51.0 with a placeholder and a missing tokenizer."""
    log = """\
W1129 21:02:44.691111 1 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory"
[libprotobuf ERROR /x/text_format.cc:337] Error parsing text-format inference.ModelConfig: 3:17: Expected integer, got: $
E1129 21:02:44.692436 1 model_repository_manager.cc:1460] "Poll failed for model directory 'bad': failed to read text proto from repo/bad/config.pbtxt"
E1129 21:02:50.930412 1 backend_model.cc:692] "ERROR: Failed to create instance: OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/llama/tokenizer'. Use `repo_type` argument if needed.\\n\\nAt:\\n  /x/hub.py(488): cached_files\\n"
E1129 21:02:50.930517 1 model_lifecycle.cc:642] "failed to load 'py' version 1: Internal: OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/llama/tokenizer'. Use `repo_type` argument if needed.\\n\\nAt:\\n"
E1129 21:02:50.930622 1 model_repository_manager.cc:703] "Invalid argument: ensemble 'ens' depends on 'py' which has no loaded version."
error: creating server: Internal - failed to load all models
"""
    found = explain(log)
    assert not found.unknown
    assert [(k.row.id, k.line, k.consequence) for k in found.known] == [
        ("pbtxt-placeholder", 2, None),
        ("pbtxt-not-read", 3, ("pbtxt-placeholder", 2)),
        ("hf-repo-id-is-a-path", 4, None),
        ("model-instance-failed", 4, ("hf-repo-id-is-a-path", 4)),
        ("model-load-failed", 5, ("model-instance-failed", 4)),
        ("ensemble-step-missing", 6, ("model-load-failed", 5)),
        ("server-not-created", 7, ("ensemble-step-missing", 6)),
    ]
    assert found.known[2].count == 2


def test_a_cause_below_counts_when_it_is_near():
    """`kubectl describe` prints CrashLoopBackOff and the exit code around the reason."""
    log = "  Last State:  Terminated\n  Exit Code: 137\n  Reason:  OOMKilled\n" + "x\n" * 5
    found = explain(log + "Warning  BackOff  1s  kubelet  Back-off restarting failed container t")
    assert [(k.row.id, k.consequence) for k in found.known] == [
        ("k8s-oom-killed", None),
        ("exit-code-137", ("k8s-oom-killed", 3)),
        ("k8s-crash-loop", ("k8s-oom-killed", 3)),
    ]
    far = explain("Exit Code: 137\n" + "x\n" * 60 + "Reason: OOMKilled")
    assert [k.consequence for k in far.known] == [None, None]


def test_errors_before_warnings_before_figures():
    log = f"Allocated 1.50 GiB for max tokens in paged KV cache (64).\nFailed to initialize NVML\n{OOM}"
    assert [str(k.severity) for k in explain(log).known] == ["error", "warn", "info"]


def test_distinct_values_are_bounded():
    found = explain("\n".join(PORT.replace("8000", str(n)) for n in range(9000, 9000 + 70)))
    assert (len(found.known), found.omitted) == (module.DISTINCT, 20)
    odd = explain("\n".join(f"ERROR {'x' * n}" for n in range(1, module.UNKNOWN + 31)))
    assert (len(odd.unknown), odd.omitted) == (module.UNKNOWN, 30)


def test_long_lines_are_cut():
    assert ids(explain("x" * (log_text.LINE_CHARACTERS - 100) + PORT)) == ["port-in-use"]
    assert ids(explain("x" * log_text.LINE_CHARACTERS + PORT)) == []
    # The line after one that is longer than a block is not lost, and the count of lines holds.
    found = explain("x" * (3 << 20) + "\n" + PORT + "\n")
    assert [(k.row.id, k.line) for k in found.known] == [("port-in-use", 2)]


def _hostile():
    yield "a" * 100_000
    yield '"' * 100_000
    yield "{" * 100_000
    yield "[pod/" * 20_000
    yield "\r" * 100_000
    yield "\x1b[" * 50_000
    yield "0/1 nodes are available: " * 4_000 + " Insufficient "
    yield "nccl" * 20_000 + "unhandled system error"
    for row in rows():
        yield (row.contains + " ") * (100_000 // (len(row.contains) + 1))
        yield row.contains + "1" * 100_000
        yield row.contains + "(/x" * 33_000
    for case in cases():
        yield case["log"][-1][:-1] * (100_000 // len(case["log"][-1]) + 1)
        yield case["log"][-1][: len(case["log"][-1]) // 2] * 400


def test_hostile_lines_take_no_time():
    worst = 0.0
    for text in _hostile():
        start = time.perf_counter()
        explain(text)
        worst = max(worst, time.perf_counter() - start)
    assert worst < 1.0, worst


def test_a_big_log_is_streamed(tmp_path):
    """10 MB in bounded memory; the line number at the end is right."""
    import tracemalloc

    path = tmp_path / "big.log"
    block = "I0109 19:34:35.166155 1 x.cc:1] request done in 12 ms, tokens 512\n" * 10_000
    with path.open("w") as out:
        for _ in range(15):
            out.write(block)
        out.write(PORT)
    tracemalloc.start()
    found = explain_log(str(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [(k.row.id, k.line) for k in found.known] == [("port-in-use", 150_001)]
    assert found.lines == 150_001
    assert peak < path.stat().st_size


def test_empty_log(tmp_path):
    (tmp_path / "empty.log").write_text("")
    found = explain_log(str(tmp_path / "empty.log"))
    assert (found.lines, found.known, found.unknown, found.fails("warn")) == (0, (), (), False)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.gz", gzip.compress(b"log", mtime=0), "zcat"),
        ("x.bin", bytes(range(32)) * 300, "binary"),
        ("x.zero", b"\0" * 9000, "binary"),
        ("x.safetensors", random.Random(1).randbytes(9000), "binary"),
        ("x.zip", b"PK\x03\x04" + b"a" * 50, "unzip"),
    ],
)
def test_refused_files(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        explain_log(str(path))
    assert words in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("name", ["missing.log", ".", "a\0b", "/dev/zero"])
def test_unreadable(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        explain_log(name)


def test_too_big_a_log_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(log_text, "MAX_BYTES", 1000)
    (tmp_path / "x.log").write_text("fine\n" * 500)
    with pytest.raises(UsageError, match="larger than"):
        explain_log(str(tmp_path / "x.log"))


def test_whole_numbers_become_numbers():
    assert log_lines._typed("0") == 0
    assert log_lines._typed("67108864") == 67108864
    assert log_lines._typed("9.3") == "9.3"
    assert log_lines._typed("007") == "007"


@given(
    parts=st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from([case["log"][-1].encode() for case in cases()]),
            st.sampled_from(
                [b"\n", b"\r", b"\0", b"\x1b[", b'{"message": "', b'"}', b"E0101 00:00:"]
            ),
        ),
        max_size=20,
    )
)
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_answered(parts):
    found = explain(b"a line\n" * 1200 + b"".join(parts))  # text enough to be no binary file
    assert found.lines >= 1200
    assert json.dumps(found.as_dict())
    assert all(1 <= item.line <= found.lines for item in (*found.known, *found.unknown))
    assert not any(module.log_text._CONTROL.search(item.text) for item in found.unknown)


def test_an_old_encoding_is_not_binary(tmp_path):
    path = tmp_path / "gbk.log"
    path.write_bytes("错误: address already in use\n".encode("gbk") * 300)
    assert explain_log(str(path)).lines == 300


@pytest.mark.parametrize(
    ("line", "name", "values"),
    [
        ("RuntimeError: Pre SM 80 GPUs do not support bfloat16", "bf16-gpu", {}),
        (
            "Weight shape 14336 of each TP tp=3 is not divisible for block size 128 for block quantization.",
            "awq-weight-not-divisible",
            {"width": 14336, "tp": 3, "block": 128},
        ),
        (
            "AssertionError: Expected packed qkv scale tensor with leading dim 64, got [8192, 20]",
            "awq-qkv-scale-shape",
            {"expected": 64, "got": "8192, 20"},
        ),
    ],
)
def test_other_wordings_of_a_row(line, name, values):
    known = explain(line).known
    assert [(k.row.id, k.values) for k in known] == [(name, values)]


def test_a_fallback_to_float16_is_no_error():
    found = explain("Pre SM 80 GPUs do not support bfloat16, fallback to float16")
    assert not found.known
