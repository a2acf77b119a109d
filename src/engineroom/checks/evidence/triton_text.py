"""Text settings of the inflight_batcher_llm models: special tokens and end ids."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence import triton_values
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic
from engineroom.reading.facts import Request
from engineroom.types import Figure

_PREPROCESSING = (
    "NVIDIA/TensorRT-LLM triton_backend/all_models/inflight_batcher_llm/preprocessing/1/model.py "
    "(1.3.0rc3; tensorrtllm_backend @ v0.5.0 to v0.19.0)"
)
DOUBLE_BOS = declare(
    "special-tokens-twice", Topic.TOKENISATION, Severity.ERROR,
    says="templated prompts are tokenised without special tokens",
    why="the chat template has put BOS into the text; a second one shifts every answer a little",
    source=f"{_PREPROCESSING}; transformers maintainer in llama-cpp-python#1439; triton-inference-server/server#7665",
)  # fmt: skip
NO_BOS = declare(
    "special-tokens-left-out", Topic.TOKENISATION, Severity.WARN,
    says="raw prompts of a model with BOS are tokenised with special tokens",
    why="the model never saw text without BOS; answers get worse, and nothing fails",
    source=_PREPROCESSING,
)  # fmt: skip
END_ID = declare(
    "end-id-not-end-of-turn", Topic.TOKENISATION, Severity.ERROR,
    says="generation ends at the token that ends a turn",
    why="preprocessing sends the tokenizer's eos token as the only end id and never reads "
    "generation_config.json: a chat model runs on to max_tokens",
    source=f"{_PREPROCESSING}, tokenizer_end_id; vllm-project/vllm#4180 (the two ids of Llama 3)",
)  # fmt: skip

# Tokens that end a turn, as chat templates write them.
_TURN_ENDS = (
    "<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|eot|>", "<turn|>", "<|endofturn|>",
    "<|end_of_turn|>", "<|return|>", "<|eom_id|>", "<|user|>",
)  # fmt: skip


def _requests(c: Context) -> tuple[Request, ...]:
    return c.evidence.requests or ()


def _templated(c: Context) -> set[bool]:
    """What is known of the prompts; empty where nobody says."""
    return {r.text_is_templated for r in _requests(c) if r.text_is_templated is not None}


def _begins_with_bos(c: Context) -> bool | None:
    """Whether a templated text begins with BOS; None where the texts or BOS are not known."""
    config = c.evidence.tokenizer_config
    bos = config.bos_token if config else None
    texts = [r.text_input for r in _requests(c) if r.text_is_templated]
    if (
        not bos
        or not texts
        or (None in texts and not any((t or "").startswith(bos) for t in texts))
    ):
        return None
    return any((t or "").startswith(bos) for t in texts)


@about(Topic.TOKENISATION)
def special_tokens(c: Context) -> Iterator[Answer]:
    tokenizer, kinds = c.evidence.tokenizer, _templated(c)
    adds = tokenizer.adds_bos if tokenizer else None
    begins = _begins_with_bos(c)
    for model in repo.models(c):
        if model.role != repo.PREPROCESSING:
            continue
        row = repo.rows(c, model)["add_special_tokens"]
        scalar = model.config.parameters.get("add_special_tokens")
        outcome = triton_values.judge(row, scalar, c.trtllm) if scalar else None
        left = scalar is None or bool(scalar.placeholders) or scalar.text == ""
        effective = outcome.effective if outcome and not left else row.defaults(c.trtllm)[0]
        right = None
        if adds and len(kinds) == 1 and not (True in kinds and begins is False):
            right = not kinds.copy().pop()
        severity: Severity | None = None
        if adds and effective is True and True in kinds and begins is not False:
            # With the text at hand BOS is seen twice; else only the client's habit is known. A word that
            # cannot be read asked for something, and did not get it.
            lost = outcome is not None and not left and outcome.severity is Severity.ERROR
            severity = Severity.ERROR if begins or lost else Severity.WARN
            written = "is not set" if scalar is None else f"is `{scalar.shown}`"
            yield DOUBLE_BOS.found(
                c, model.parameter_key("add_special_tokens"),
                f"add_special_tokens {written}, so it is {triton_values.show(effective)}, and the prompts are "
                "templated: BOS comes twice",
                "set add_special_tokens to false for templated text; to true only for raw text",
                severity=severity, line=model.line("add_special_tokens"),
            )  # fmt: skip
        elif adds and effective is False and kinds == {False}:
            severity = Severity.WARN
            yield NO_BOS.found(
                c, model.parameter_key("add_special_tokens"),
                "add_special_tokens is false, and the prompts are raw text: they start without BOS",
                "set add_special_tokens to true for raw text", line=model.line("add_special_tokens"),
            )  # fmt: skip
        elif outcome is not None and outcome.severity is Severity.ERROR:
            severity = Severity.ERROR
            yield DOUBLE_BOS.found(
                c, model.parameter_key("add_special_tokens"), f"add_special_tokens: {outcome.reason}",
                f"write {triton_values.show(right if right is not None else outcome.right)}",
                line=model.line("add_special_tokens"),
            )  # fmt: skip
        if scalar is not None or severity is not None:
            yield repo.field_figure(
                "parameters.add_special_tokens", severity, file=model.config.path,
                line=model.line("add_special_tokens"), effective=effective, right=right,
                placeholder=repo.first_placeholder(scalar) if scalar else None,
                server="changes" if severity else "reads",
            )  # fmt: skip


@about(Topic.TOKENISATION)
def first_ids(c: Context) -> Iterator[Answer]:
    """The ids that the first prompt begins with: special tokens of its text, and BOS if it is added."""
    tokenizer, config = c.evidence.tokenizer, c.evidence.tokenizer_config
    ids = (tokenizer.token_ids if tokenizer else None) or {}
    bos = ids.get(config.bos_token or "") if config else None
    texts = [r for r in _requests(c) if r.text_input is not None]
    models = [m for m in repo.models(c) if m.role == repo.PREPROCESSING]
    if not texts or not models or bos is None or tokenizer is None:
        return
    text = texts[0].text_input or ""
    encodes = {t: list(n) for t, n in (tokenizer.encodes or {}).items() if t not in ids}
    written = encodes.get(text) or _leading(text, ids, encodes)
    scalar = models[0].config.parameters.get("add_special_tokens")
    row = repo.rows(c, models[0])["add_special_tokens"]
    added = (
        triton_values.judge(row, scalar, c.trtllm).effective
        if scalar
        else row.defaults(c.trtllm)[0]
    )
    yield Figure("prompt_ids_prefix", [bos] * bool(added and tokenizer.adds_bos) + written)
    right = written if written[:1] == [bos] or not tokenizer.adds_bos else [bos, *written]
    yield Figure("prompt_ids_prefix_right", right)


def _leading(text: str, ids: dict[str, int], encodes: dict[str, list[int]]) -> list[int]:
    """Special tokens at the very front of a text, the longest match first, and its rest if that is known."""
    names = sorted((n for n in ids if n), key=len, reverse=True)[:1000]
    found: list[int] = []
    at = 0
    while len(found) < 8:
        name = next((n for n in names if text.startswith(n, at)), None)
        if name is None:
            break
        found.append(ids[name])
        at += len(name)
    return found + encodes.get(text[at:], [])


def _is_engine_family(c: Context) -> bool:
    family = c.evidence.triton_family
    if family is not None:
        return family == "inflight_batcher_llm"
    return c.lane != "llmapi" and c.evidence.model_yaml is None


@about(Topic.TOKENISATION)
def end_id(c: Context) -> Iterator[Answer]:
    config, tokenizer = c.evidence.tokenizer_config, c.evidence.tokenizer
    ids = (tokenizer.token_ids if tokenizer else None) or {}
    eos = config.eos_token if config else None
    used = ids.get(eos) if eos else None
    if used is None or not _is_engine_family(c):
        return
    ends = list(
        (c.evidence.generation_config.eos_token_id if c.evidence.generation_config else None) or ()
    )
    right = _turn_end(eos or "", used, ends, ids)
    yield Figure("end_id", used)
    yield Figure("end_id_right", right)
    texts = {token for token, number in ids.items() if number == right}
    # Templated text or none stated: a chat model's turns end with the turn's own token.
    chats = [r for r in _requests(c) if r.text_is_templated is not False] if _requests(c) else []
    unended = [r for r in chats if not _ends(r, right, texts)]
    if right != used and (unended or not _requests(c)):
        yield END_ID.found(
            c, "tokenizer_config.eos_token",
            f"the end id sent is {used} ({eos}), and turns end with {right}"
            + (f" ({', '.join(sorted(texts)[:2])})" if texts else "")
            + "; generation_config.json is not read",
            f"send end_id {right}, add its text as a stop word, or set eos_token to it in the packaged "
            "tokenizer_config.json",
            severity=None if unended else Severity.WARN,
        )  # fmt: skip


def _turn_end(eos: str, used: int, ends: list[int], ids: dict[str, int]) -> int:
    """The id that ends a turn: by its text, else the one that only generation_config.json has."""
    if eos in _TURN_ENDS or (ends and ends == [used]):
        return used
    for token in _TURN_ENDS:
        if token in ids and (not ends or ids[token] in ends):
            return ids[token]
    others = [number for number in ends if number != used]
    return others[-1] if others else used


def _ends(request: Request, right: int, texts: set[str]) -> bool:
    """Whether the request itself ends generation at that id."""
    if request.end_id == right or texts & set(request.stop_words or ()):
        return True
    return any((right,) == tuple(word) for row in request.stop_words_ids or () for word in row)


RULES = (special_tokens, first_ids, end_id)
