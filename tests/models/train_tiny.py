"""Train the tiny Llama model that the tests use, on text made from the standard library.

    python tests/models/train_tiny.py [--out DIR] [--steps N] [--seed N] [--threads N]

Nothing is downloaded: ``documents.py`` makes the corpus. Every seventh document is held out.
The folder that comes out holds a bf16 ``LlamaForCausalLM``, its byte-level BPE tokenizer with a
ChatML chat template, and a NOTICE. The number of steps is fixed, so that one machine with one
thread count gives the same weights each time. At the end the folder is loaded again, offline,
and the script prints the held-out perplexity and greedy samples, and fails unless the model ends
a known chat prompt with ``<|im_end|>``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from documents import (
    END_OF_TEXT,
    TOOLS_HEADER,
    TURN_END,
    TURN_START,
    conversations,
    documents,
    pydoc_documents,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

HERE = Path(__file__).resolve().parent
VOCAB_SIZE = 2048
CONTEXT = 1024
SPECIAL_TOKENS = [END_OF_TEXT, TURN_START, TURN_END]
GENERATED_DOCUMENTS = 6000
HOLD_OUT_EVERY = 7
# Rows and tokens per row of successive batches: mostly short, with some at full context.
BATCH_SHAPES = ((8, 256), (8, 256), (8, 256), (2, CONTEXT))
PEAK_LEARNING_RATE = 2e-3
WARMUP_STEPS = 100
EVAL_TOKENS = 256

CHAT_TEMPLATE = f"""\
{{%- set first = 0 %}}
{{%- if tools %}}
{{%- set system = messages and messages[0]['role'] == 'system' %}}
{{%- set first = 1 if system else 0 %}}
{{{{- '{TURN_START}system\\n' }}}}
{{{{- messages[0]['content'] + '\\n' if system else '' }}}}
{{{{- '{TOOLS_HEADER}' }}}}
{{%- for tool in tools %}}
{{{{- '\\n' + ((tool['function'] if 'function' in tool else tool) | tojson) }}}}
{{%- endfor %}}
{{{{- '{TURN_END}\\n' }}}}
{{%- endif %}}
{{%- for message in messages[first:] %}}
{{{{- '{TURN_START}' + message['role'] + '\\n' }}}}
{{{{- message['content'] if message['content'] else '' }}}}
{{%- for call in message['tool_calls'] or [] %}}
{{%- set function = call['function'] if 'function' in call else call %}}
{{%- set arguments = function['arguments'] %}}
{{{{- '<tool_call>{{"name": ' + (function['name'] | tojson) + ', "arguments": ' }}}}
{{{{- arguments if arguments is string else (arguments | tojson) }}}}
{{{{- '}}</tool_call>' }}}}
{{%- endfor %}}
{{{{- '{TURN_END}\\n' }}}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}
{{{{- '{TURN_START}assistant\\n' }}}}
{{%- endif %}}
"""

SAMPLE_PROMPTS = (
    'The "for" statement is used to',
    '{"name": "',
    f"{TURN_START}user\nWrite a JSON object for a person.{TURN_END}\n{TURN_START}assistant\n",
)
CHAT_QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of Japan?",
    "What is the opposite of hot?",
    "What colour is grass?",
    "Which day comes after Monday?",
    "Which emoji shows a cat?",
    'How do you say "hello" in French?',
    'How do you say "thank you" in Japanese?',
    "What is 2 plus 3?",
    "What is the weather in Paris, in celsius?",
    "Start a repeating timer of 10 minutes.",
)
MAX_ANSWER_TOKENS = 64

NOTICE = """\
tiny-llama: a test model of {parameters:.2f} million parameters

It exists so that tests have a real model to load, quantize and run. It is of no other use.

Made by    tests/models/train_tiny.py --seed {seed} --steps {steps} --threads {threads}
With       Python {python}, torch {torch}, transformers {transformers}
Corpus     tests/models/documents.py, about {thousands} thousand tokens, of these kinds:
           - Python's documentation: the topics of pydoc, and docstrings of the standard library
           - generated JSON documents, compact and indented
           - generated ChatML dialogues: questions and answers, JSON answers, tool calls
           - short phrases in several languages
Held out   every seventh document; perplexity {all:.2f} (Python's documentation {pydoc:.2f},
           generated documents {generated:.2f})

The weights, the tokenizer and the chat template are licensed under Apache-2.0, as the project is.
Part of the training text is Python's documentation, which is copyright of the Python Software
Foundation and available under the PSF License Version 2. Nothing was downloaded to train it.
"""


def split(texts: list[str]) -> tuple[list[str], list[str]]:
    """Hold out every seventh text, less those that the training part repeats."""
    train = [text for i, text in enumerate(texts) if i % HOLD_OUT_EVERY != HOLD_OUT_EVERY - 1]
    known = set(train)
    held_out = texts[HOLD_OUT_EVERY - 1 :: HOLD_OUT_EVERY]
    return train, [text for text in held_out if text not in known]


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Train the byte-level BPE tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The trainer would learn merges from the special tokens' own text, so leave it out.
    plain = (
        piece
        for text in texts
        for piece in text.replace(TURN_START, TURN_END).split(TURN_END)
        if piece
    )
    tokenizer.train_from_iterator(plain, trainer)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise SystemExit(f"the tokenizer has {tokenizer.get_vocab_size()} entries")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        model_max_length=CONTEXT,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def check_chat_template(tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
    """Fail unless the chat template gives the text that the model is trained on."""
    for conversation in conversations(seed, 200):
        text = tokenizer.apply_chat_template(
            conversation.messages, tools=conversation.tools or None, tokenize=False
        )
        if text != conversation.text():
            raise SystemExit(f"the chat template gives {text!r}, not {conversation.text()!r}")


def encode(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> tuple[torch.Tensor, list[int]]:
    """Join the tokens of the texts, with an end-of-text token after each, and note their starts."""
    ids: list[int] = []
    starts = []
    for tokens in tokenizer(texts, verbose=False)["input_ids"]:
        starts.append(len(ids))
        ids.extend(tokens)
        ids.append(tokenizer.pad_token_id)
    return torch.tensor(ids), starts


def new_model(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Make the untrained model."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to nearly zero."""
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return PEAK_LEARNING_RATE * warmup * (0.02 + 0.98 * cosine)


def train(
    model: LlamaForCausalLM, ids: torch.Tensor, starts: list[int], steps: int, rng: random.Random
) -> None:
    """Train on windows of the corpus: half begin anywhere, half where a document does."""
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.98), weight_decay=0.1, fused=True
    )
    began = time.monotonic()
    model.train()
    for step in range(steps):
        rows, length = BATCH_SHAPES[step % len(BATCH_SHAPES)]
        last = len(ids) - length
        offsets = [
            min(rng.choice(starts), last) if row % 2 else rng.randrange(last) for row in range(rows)
        ]
        batch = torch.stack([ids[offset : offset + length] for offset in offsets])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            seconds = time.monotonic() - began
            print(f"step {step + 1}/{steps}  loss {loss.item():.3f}  {seconds:.0f} s", flush=True)
    model.eval()


def tidy_config_files(folder: Path) -> None:
    """Name the tokenizer class that every transformers version knows, and drop run-time traces."""
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("name_or_path", "backend", "is_local"):
        config.pop(key, None)
    # Before version 5, extra_special_tokens was a mapping; every version reads the older name.
    config["additional_special_tokens"] = config.pop("extra_special_tokens")
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config.pop("_name_or_path", None)
    config["rope_theta"] = 10000.0  # where loaders older than rope_parameters look for it
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def negative_log_likelihood(model: LlamaForCausalLM, ids: torch.Tensor) -> tuple[float, int]:
    """Sum the loss over consecutive windows, and count the predicted tokens."""
    total, count = 0.0, 0
    with torch.inference_mode():
        for window in ids.split(EVAL_TOKENS):
            if len(window) > 1:
                loss = model(input_ids=window[None], labels=window[None]).loss
                total += loss.item() * (len(window) - 1)
                count += len(window) - 1
    return total, count


def perplexities(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, parts: dict[str, list[str]]
) -> dict[str, float]:
    """Perplexity of each part, and of all of them together."""
    sums = {
        name: negative_log_likelihood(model, encode(tokenizer, texts)[0])
        for name, texts in parts.items()
    }
    sums["all"] = (sum(t for t, _ in sums.values()), sum(n for _, n in sums.values()))
    return {name: math.exp(total / count) for name, (total, count) in sums.items()}


def continue_text(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, prompt: str
) -> list[int]:
    """Greedy continuation of a prompt, as token ids."""
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=MAX_ANSWER_TOKENS, do_sample=False)
    answer: list[int] = output[0, inputs["input_ids"].shape[1] :].tolist()
    return answer


def check_answers(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> int:
    """Print the answers to the chat questions, and count those that end with the turn's end."""
    ended = 0
    for question in CHAT_QUESTIONS:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        answer = continue_text(model, tokenizer, prompt)
        ends = answer[-1] == tokenizer.eos_token_id
        ended += ends
        state = f"ends after {len(answer)} tokens" if ends else "does not end"
        print(f"{prompt!r}\n  -> {tokenizer.decode(answer)!r}  ({state})")
    return ended


def main() -> None:
    """Train, save, and check the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "tiny-llama")
    parser.add_argument("--steps", type=int, default=1300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)

    pydoc, held_pydoc = split(pydoc_documents())
    generated, held_generated = split(documents(args.seed, GENERATED_DOCUMENTS))
    texts = pydoc + generated
    rng.shuffle(texts)
    tokenizer = train_tokenizer(texts)
    check_chat_template(tokenizer, args.seed)
    ids, starts = encode(tokenizer, texts)
    model = new_model(tokenizer)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters} parameters, {len(texts)} documents, {len(ids)} tokens", flush=True)

    train(model, ids, starts, args.steps, rng)
    model.bfloat16().save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    tidy_config_files(args.out)
    (args.out / "model.safetensors").chmod(0o644)

    loaded_tokenizer = AutoTokenizer.from_pretrained(args.out)
    loaded: Any = AutoModelForCausalLM.from_pretrained(args.out, dtype=torch.float32)
    held = {"pydoc": held_pydoc, "generated": held_generated}
    results = perplexities(loaded, loaded_tokenizer, held)
    notice = NOTICE.format(
        parameters=parameters / 1e6,
        seed=args.seed,
        steps=args.steps,
        threads=args.threads,
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        thousands=len(ids) // 1000,
        **results,
    )
    (args.out / "NOTICE").write_text(notice, encoding="utf-8")

    for name, value in results.items():
        print(f"held-out perplexity, {name}: {value:.3f}")
    for prompt in SAMPLE_PROMPTS:
        sample = loaded_tokenizer.decode(continue_text(loaded, loaded_tokenizer, prompt))
        print(f"{prompt!r}\n  -> {sample!r}")
    for dtype in (torch.float32, torch.bfloat16):
        print(f"chat answers in {dtype}:")
        if not check_answers(loaded.to(dtype), loaded_tokenizer):
            raise SystemExit(f"no chat prompt ends within {MAX_ANSWER_TOKENS} tokens")
    for path in sorted(args.out.iterdir()):
        print(f"{path.stat().st_size:>9}  {path.name}")


if __name__ == "__main__":
    main()
