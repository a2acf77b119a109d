"""Progress from log lines: the wording of public logs, several ranks, and lines of any kind."""

from __future__ import annotations

from engineroom.runner.executors.phases import PhaseReader, Progress

# NVIDIA/TensorRT-LLM issues #2894 (first part) and #2324 (from "Engine generation" on).
LOG = """\
[03/13/2025-19:44:47] [TRT-LLM] [I] Set nccl_plugin to None.
[03/13/2025-19:44:48] [TRT-LLM] [I] Total time of constructing network from module object 8.19213318824768 seconds
[03/13/2025-19:44:48] [TRT-LLM] [I] Total optimization profiles added: 1
[03/13/2025-19:44:48] [TRT-LLM] [I] Total time to initialize the weights in network Unnamed Network 0: 00:00:00
[03/13/2025-19:44:48] [TRT-LLM] [I] Build TensorRT engine Unnamed Network 0
[03/13/2025-19:44:48] [TRT] [I] Global timing cache in use. Profiling results in this builder pass will be stored.
[10/12/2024-15:46:16] [TRT] [I] Engine generation completed in 15.4544 seconds.
[10/12/2024-15:46:23] [TRT-LLM] [I] Total time of building Unnamed Network 0: 00:00:22
[10/12/2024-15:46:23] [TRT-LLM] [I] Serializing engine to /app/model_repository/tensorrt_llm/1/rank0.engine...
[10/12/2024-15:46:42] [TRT-LLM] [I] Engine serialized. Total time: 00:00:19
[10/12/2024-15:46:43] [TRT-LLM] [I] Total time of building all engines: 00:00:47
"""


def read(reader: PhaseReader, text: str) -> list[Progress]:
    return [state for line in text.splitlines() if (state := reader.feed(line)) is not None]


def test_one_rank():
    reader = PhaseReader(1)
    assert reader.progress == Progress("network", 0, 5)
    assert read(reader, LOG) == [
        Progress("weights", 1, 5),
        Progress("compiling", 2, 5),
        Progress("writing", 3, 5),
        Progress("finishing", 4, 5),
        Progress("finishing", 5, 5),
    ]


def test_ranks_of_workers_mix():
    lines = [line for line in LOG.splitlines()[:-1] for _ in range(2)]
    reader = PhaseReader(2)
    states = read(reader, "\n".join([*lines, LOG.splitlines()[-1]]))
    assert [s.done for s in states] == list(range(1, 10))
    assert states[-1] == Progress("finishing", 9, 9)
    # One rank compiled, the other not yet: what is shown is the work of the first.
    reader = PhaseReader(2)
    assert read(reader, LOG)[2] == Progress("writing", 3, 9)


def test_a_version_that_prints_less_is_counted_alike():
    lines = [line for line in LOG.splitlines() if "constructing" not in line]
    assert [s.done for s in read(PhaseReader(1), "\n".join(lines))] == [2, 3, 4, 5]


def test_unknown_lines_change_nothing():
    reader = PhaseReader(1)
    for line in ("", "\x00\x1b[31m", "é" * 10_000, "Build", "x" * 100_000 + "Engine serialized."):
        assert reader.feed(line) is None
    assert reader.feed("\x1b[32mBuild TensorRT\x1b[0m engine Unnamed Network 0") is not None
    # More lines than ranks, or after the end: never more than the whole.
    for line in (LOG * 3).splitlines():
        reader.feed(line)
    assert reader.progress == Progress("finishing", 5, 5)
