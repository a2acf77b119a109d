"""A model repository of upstream's own files, filled by upstream's own script, outside this one.

    python -m tests.overhead.upstream CHECKOUT TOKENIZER OUT

CHECKOUT is a clone (bare or not) of triton-inference-server/tensorrtllm_backend. COMMIT is the last
one that holds the model files themselves (release v0.19.0, May 2025); later ones keep them in
TensorRT-LLM below triton_backend/: name a clone that has them, with --prefix and --commit. Nothing of
it is stored in this repository: files are extracted below OUT.

Values are upstream's defaults and its documented example: one instance of each model, no queue delay,
decoupled, the prompt left out of answers.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

COMMIT = "89ee0f20d5066dc9e2da9af33f0825841eb7d906"
BATCH = 64


@dataclass(frozen=True)
class Source:
    """Where upstream's files are.

    Attributes:
        prefix: folder of `all_models` and `tools` in the clone; "" for its root.
        version: TensorRT-LLM's, for the double of its Python API.
        without: models of inflight_batcher_llm whose files this clone does not have whole.
    """

    checkout: Path
    commit: str = COMMIT
    prefix: str = ""
    version: str = "0.19.0"
    without: tuple[str, ...] = ()


def extract(source: Source, out: Path) -> None:
    """`all_models` and `tools/fill_template.py`, below `out`."""
    tree = f"{source.commit}:{source.prefix}" if source.prefix else source.commit
    argv = ["git", "-C", str(source.checkout), "archive", tree]
    argv += ["all_models/inflight_batcher_llm", "all_models/llmapi", "tools/fill_template.py"]
    data = subprocess.run(argv, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(out, filter="data")


def fill(out: Path, path: Path, values: dict[str, str]) -> None:
    """Run upstream's script; it knows `key:value,...` with backslashes before its separators."""

    def escape(text: str) -> str:
        for char in "\\:,":
            text = text.replace(char, "\\" + char)
        return text

    text = path.read_text(encoding="utf-8")
    # The script refuses a key that the template lacks, and releases differ in a few.
    known = {key: value for key, value in values.items() if f"${{{key}}}" in text}
    pairs = ",".join(f"{key}:{escape(value)}" for key, value in known.items())
    argv = [sys.executable, str(out / "tools/fill_template.py"), "-i", str(path), pairs]
    subprocess.run(argv, check=True, capture_output=True, text=True)


def engine_values(tokenizer: str, decoupled: bool = True) -> dict[str, dict[str, str]]:
    """Template values of each model of inflight_batcher_llm."""
    batch, flag = str(BATCH), str(decoupled).lower()
    return {
        "preprocessing": {
            "tokenizer_dir": tokenizer, "triton_max_batch_size": batch,
            "preprocessing_instance_count": "1", "add_special_tokens": "true",
            "max_queue_delay_microseconds": "0", "max_queue_size": "0",
            "multimodal_model_path": "", "engine_dir": "", "max_num_images": "1",
        },
        "postprocessing": {
            "tokenizer_dir": tokenizer, "triton_max_batch_size": batch,
            "postprocessing_instance_count": "1", "skip_special_tokens": "true",
        },
        "tensorrt_llm": {
            "triton_backend": "tensorrtllm", "triton_max_batch_size": batch,
            "decoupled_mode": flag, "max_queue_delay_microseconds": "0", "max_queue_size": "0",
            "logits_datatype": "TYPE_FP32", "encoder_input_features_data_type": "TYPE_FP16",
            "engine_dir": "/none", "batching_strategy": "inflight_fused_batching",
            "exclude_input_in_output": "True", "tokenizer_dir": tokenizer,
            "prompt_embedding_table_data_type": "TYPE_FP16",
        },
        "tensorrt_llm_bls": {
            "triton_max_batch_size": batch, "decoupled_mode": flag, "bls_instance_count": "1",
            "accumulate_tokens": "false", "logits_datatype": "TYPE_FP32",
            "prompt_embedding_table_data_type": "TYPE_FP16",
        },
        "ensemble": {"triton_max_batch_size": batch, "logits_datatype": "TYPE_FP32"},
    }  # fmt: skip


def assemble(source: Source, tokenizer: Path, out: Path, *, decoupled: bool = True) -> None:
    """Write `out/engine` and `out/llmapi`, two model repositories.

    Raises:
        CalledProcessError: no such commit, or upstream's script refused a key.
    """
    files = out / "upstream"
    extract(source, files)
    engine = out / "engine"
    (files / "all_models/inflight_batcher_llm").rename(engine)
    for model, values in engine_values(str(tokenizer), decoupled).items():
        if model in source.without:
            shutil.rmtree(engine / model)
            continue
        (engine / model / "1").mkdir(exist_ok=True)
        fill(files, engine / model / "config.pbtxt", values)
    # tensorrt_llm/1/model.py is the Python form of the engine; the stand-in takes its place.
    (engine / "tensorrt_llm/1/model.py").unlink()
    llmapi = out / "llmapi"
    (files / "all_models/llmapi").rename(llmapi)
    settings = llmapi / "tensorrt_llm/1/model.yaml"
    if decoupled:
        text = settings.read_text(encoding="utf-8")
        if "decoupled: False" not in text:
            raise ValueError(f"{settings}: no `decoupled: False` to change")
        settings.write_text(text.replace("decoupled: False", "decoupled: True"), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--commit", default=COMMIT)
    parser.add_argument("--prefix", default="")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    a = parser.parse_args()
    assemble(Source(a.checkout, a.commit, a.prefix), a.tokenizer.resolve(), a.out)


if __name__ == "__main__":
    main()
