"""A TEST DOUBLE of `trtllm-build`. It compiles nothing and is not TensorRT-LLM.

What it shares with the real command is the border: it refuses arguments that the version's contract
(deploy/contracts/trtllm/*.json) does not have, prints lines in the wording of public logs (sources in
engineroom.runner.executors.phases), and leaves a directory of the same shape: config.json first, then
an engine file a rank, as Engine.save of tensorrt_llm/builder.py does. The engine files hold the words
"test double" and filler.

As a module: `install(folder)` puts it on a PATH as `trtllm-build`. As a script: standard library only.
Environment of the script:

    DOUBLE_CONTRACT   the contract's file
    DOUBLE_MODE       success (default), fail, crash, hang, deaf (hangs, ignores SIGTERM, and so does a
                      child of it), preempted (ended by SIGTERM, DOUBLE_TIMES times, then success),
                      oom (SIGKILL), limited (a limit on file sizes), incomplete (exit 0, an engine
                      missing)
    DOUBLE_SECONDS    how long a build takes, 0 by default
    DOUBLE_BYTES      size of an engine file, 4096 by default
    DOUBLE_RECORD     folder that gets a file a start, with the arguments
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MARK = b"test double, no engine\n"


def contract_file(version: str = "1.2.1") -> Path:
    return ROOT / f"deploy/contracts/trtllm/{version}.json"


def install(folder: Path, version: str = "1.2.1", **settings: str | int | float) -> dict[str, str]:
    """Put the double into `folder` as `trtllm-build`; returns the PATH that finds it first.

    A `nvidia-smi` that names no GPU is put beside it: with a double, the machine's GPU is no matter.

    Args:
        settings: `mode`, `seconds`, `bytes`, `record`, `times`: the variables above.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values = {"contract": contract_file(version), **settings}
    lines = [f"export DOUBLE_{k.upper()}={shlex.quote(str(v))}" for k, v in values.items()]
    # -S and -I: no site packages to find, the double starts in some 20 ms.
    call = f'exec {shlex.quote(sys.executable)} -I -S {shlex.quote(__file__)} "$@"'
    script = folder / "trtllm-build"
    script.write_text("\n".join(["#!/bin/sh", *lines, call, ""]), encoding="utf-8")
    script.chmod(0o755)
    smi = folder / "nvidia-smi"
    if not smi.exists():
        smi.write_text("#!/bin/sh\nexit 9\n")
        smi.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def parser(flags: dict[str, dict[str, Any]]) -> argparse.ArgumentParser:
    """A command line that takes what the contract lists and nothing else."""
    made = argparse.ArgumentParser(prog="trtllm-build", allow_abbrev=False)
    for flag, facts in flags.items():
        names = (flag, *facts.get("aliases", ()))
        if facts["type"] == "store_true":
            made.add_argument(*names, action="store_true")
            continue
        kind = int if facts["type"] == "int" else str
        many = "+" if str(facts["type"]).startswith("list") else None
        made.add_argument(*names, type=kind, choices=facts["choices"], nargs=many)
    return made


def say(text: str, who: str = "TRT-LLM") -> None:
    print(f"[11/30/2026-00:00:00] [{who}] [I] {text}", flush=True)


def main() -> int:
    contract = json.loads(Path(os.environ["DOUBLE_CONTRACT"]).read_text(encoding="utf-8"))
    build = contract["trtllm_build"]
    if not build["command_exists"]:
        print(f"trtllm-build does not exist in {contract['version']}", file=sys.stderr)
        return 127
    args = vars(parser(build["flags"]).parse_args())
    _record()
    print("TEST DOUBLE of trtllm-build: this is not TensorRT-LLM", flush=True)
    print(f"[TensorRT-LLM] TensorRT-LLM version: {contract['version']}", flush=True)
    output = Path(args["output_dir"] or "engine_outputs")
    output.mkdir(parents=True, exist_ok=True)
    try:
        checkpoint = json.loads((Path(args["checkpoint_dir"]) / "config.json").read_text())
    except (OSError, TypeError, ValueError) as error:
        print(f"no TensorRT-LLM checkpoint: {error}", file=sys.stderr)
        return 1
    return _build(args, checkpoint, str(contract["version"]), output)


def _record() -> None:
    if folder := os.environ.get("DOUBLE_RECORD"):
        path = Path(folder) / f"{time.time_ns()}-{os.getpid()}.json"
        path.write_text(json.dumps(sys.argv[1:]), encoding="utf-8")


def _build(args: dict[str, Any], checkpoint: dict[str, Any], version: str, output: Path) -> int:
    mode = os.environ.get("DOUBLE_MODE", "success")
    ranks = int(checkpoint.get("mapping", {}).get("world_size", 1))
    pause = float(os.environ.get("DOUBLE_SECONDS", "0")) / (6 * ranks)
    if mode == "limited":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
    for rank in range(ranks):
        time.sleep(pause)
        say("Total time of constructing network from module object 0.1 seconds")
        say("Total time to initialize the weights in network Unnamed Network 0: 00:00:00")
        say("Build TensorRT engine Unnamed Network 0")
        time.sleep(pause)
        if rank == 0 and (code := _misbehave(mode)) is not None:
            return code
        say("Engine generation completed in 0.1 seconds.", "TRT")
        say("Total time of building Unnamed Network 0: 00:00:00")
        if rank == 0:
            _write(output / "config.json", _config(args, checkpoint, version), pause)
        if mode == "incomplete" and rank == ranks - 1:
            return 0
        path = output / f"rank{rank}.engine"
        say(f"Serializing engine to {path}...")
        _write(path, _filler(rank), pause)
        say("Engine serialized. Total time: 00:00:00")
    say("Total time of building all engines: 00:00:00")
    return 0


def _misbehave(mode: str) -> int | None:
    if mode == "fail":
        print(
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            file=sys.stderr,
        )
        return 9
    if mode == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if mode == "oom":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "hang":
        time.sleep(3600)
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(3600)"
        subprocess.run([sys.executable, "-I", "-S", "-c", code], check=False)
    if mode == "preempted":
        starts = len(list(Path(os.environ["DOUBLE_RECORD"]).iterdir()))
        if starts <= int(os.environ.get("DOUBLE_TIMES", "1")):
            os.kill(os.getpid(), signal.SIGTERM)
    return None


def _config(args: dict[str, Any], checkpoint: dict[str, Any], version: str) -> bytes:
    """The fields that deploy/contracts/engine_config.json names, from the arguments."""
    number = {"max_batch_size": 2048, "max_beam_width": 1, "max_num_tokens": 8192}
    limits = ("max_batch_size", "max_input_len", "max_seq_len", "max_beam_width", "max_num_tokens")
    switch = {"enable": True, "disable": False}
    plugins = (
        "gemm_plugin", "use_paged_context_fmha", "use_fp8_context_fmha", "remove_input_padding",
        "tokens_per_block", "multiple_profiles", "reduce_fusion", "user_buffer", "lora_plugin",
    )  # fmt: skip
    content = {
        "version": version,
        "pretrained_config": checkpoint,
        "build_config": {
            **{k: args.get(k) if args.get(k) is not None else number.get(k) for k in limits},
            "opt_num_tokens": args.get("opt_num_tokens"),
            "kv_cache_type": str(args.get("kv_cache_type") or "paged").upper(),
            "gather_context_logits": args.get("gather_context_logits"),
            "gather_generation_logits": args.get("gather_generation_logits"),
            "max_draft_len": args.get("max_draft_len") or 0,
            "plugin_config": {
                k: switch.get(args[k], args[k]) for k in plugins if args.get(k) is not None
            },
        },
    }
    return json.dumps(content, indent=4).encode()


def _filler(rank: int) -> bytes:
    size = int(os.environ.get("DOUBLE_BYTES", "4096"))
    return (MARK + (b"%d " % rank) * size)[: max(size, len(MARK))]


def _write(path: Path, data: bytes, pause: float) -> None:
    """In pieces, so that a kill may leave a part."""
    with path.open("wb") as file:
        half = len(data) // 2
        file.write(data[:half])
        file.flush()
        time.sleep(pause)
        file.write(data[half:])


if __name__ == "__main__":
    sys.exit(main())
