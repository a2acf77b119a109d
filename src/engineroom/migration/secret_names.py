"""Which names of variables, flags, headers and keys are those of secrets."""

from __future__ import annotations

import re
from functools import lru_cache

_MAX_NAME = 200

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ALWAYS = frozenset(
    (
        "secret", "secrets", "password", "passwords", "passwd", "passphrase", "passcode", "pwd", "pass",
        "apikey", "apikeys", "accesskey", "secretkey", "privatekey", "authkey", "authtoken", "credential",
        "credentials", "creds", "authorization", "cookie", "jwt", "bearer",
    )
)  # fmt: skip
_KEY_OWNERS = frozenset(
    (
        "api", "access", "secret", "private", "auth", "account", "storage", "ssh", "signing", "encryption",
        "encrypt", "license", "subscription", "master", "deploy", "ngc", "hf", "huggingface", "hub", "nvidia",
        "openai", "anthropic", "wandb", "aws", "gcp", "azure", "client", "shared", "user", "my",
    )
)  # fmt: skip
"""Words that make a following `key` a secret; `num_key_value_heads` has none."""
_NOT_BEFORE = frozenset(
    (
        "pad", "eos", "bos", "end", "stop", "mask", "unk", "sep", "cls", "special", "first", "last", "next",
        "per", "new", "draft", "image", "video", "audio", "prompt", "start", "begin", "max", "min", "num",
        "each", "input", "output", "one", "single", "every", "bad", "accepted", "generated", "context",
        "virtual", "placeholder", "inter", "total", "by", "to", "of", "in", "seq", "multi", "cross", "mm",
        "all", "phase", "thinking", "adapter", "sink", "decode", "prefill", "delta", "chunk",
        "separator", "fim", "decoder", "encoder", "kv", "cached",
    )
)  # fmt: skip
_NOT_AFTER = frozenset(
    (
        "id", "ids", "type", "types", "range", "ranges", "time", "times", "count", "counts", "per", "budget",
        "limit", "length", "size", "logprob", "logprobs", "probs", "drop", "dropping", "dispatch", "level",
        "strings", "string", "embedding", "embeddings", "table", "latency", "stage", "num", "number",
        "threshold", "thresholds", "logits", "ratio", "batch", "idx", "index", "indices", "parallel",
        "generation", "bias",
    )
)  # fmt: skip
"""Words that make a `token` one of a text: `pad_token`, `token_ids`."""
_RUN_ON_TOKEN = re.compile(
    r"(?:hf|hub|gh|git|github|gitlab|api|auth|access|ngc|huggingface|wandb|user|my|refresh|session|bearer|"
    r"secret|login|id|aws|csrf|sas|bot|slack|jwt)tokens?"
)
_RUN_ON_PASS = re.compile(
    r"\w+(?:password|passwd|passphrase|secret|apikey|pwd)|(?:db|my|user|root|admin|ssh)pass"
)


@lru_cache(maxsize=4096)
def is_secret_key(name: str) -> bool:
    """Whether a value of this name (variable, flag, header, parameter, JSON key) is not to be shown.

    `HF_TOKEN`, `--api-key`, `X-Api-Key`, `DB_PASS` are; `max_num_tokens`, `pad_token`, `token_ids` and
    `tokenizer_dir` are not. Of a dotted path, the last name counts, and so does each before it.
    """
    name = name[-_MAX_NAME:]
    if name.strip("-") in ("PWD", "OLDPWD"):  # the shell's own: working folders
        return False
    return any(_is_secret_words(part) for part in re.split(r"[.\[\]/#]", name))


def _is_secret_words(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        after = words[at + 1] if at + 1 < len(words) else ""
        if word == "pass" and after in ("through", "id", "config", "rate", "count"):
            continue
        if word in _ALWAYS or _RUN_ON_TOKEN.fullmatch(word) or _RUN_ON_PASS.fullmatch(word):
            return True
        if word in ("key", "keys") and before in _KEY_OWNERS:
            return True
        if word == "token" and before not in _NOT_BEFORE and after not in _NOT_AFTER:
            return True
        if word == "tokens" and before in ("hf", "api", "auth", "access", "secret"):
            return True
        if word == "auth" and not after and before:
            return True
    return False
