"""Secrets in what a user's files say: found by the name before a value, or by the value's own form.

Reports are made to be passed on, so what is in doubt is hidden. Every step is linear in the text, and a
text longer than `MAX_TEXT` is cut first: what was not looked at is not shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from engineroom.migration.secret_names import is_secret_key

__all__ = [
    "HIDDEN",
    "MAX_TEXT",
    "Known",
    "found_in",
    "hidden",
    "hidden_tree",
    "hidden_value",
    "hidden_words",
    "is_secret_key",
]

HIDDEN = "(not shown)"
MAX_TEXT = 20_000
"""Characters of one text that are looked at; the rest is left out."""
_QUERY_NAMES = frozenset(
    ("sig", "signature", "x-amz-signature", "x-amz-credential", "x-goog-signature", "code")
)
"""Names that are secrets in a URL's query alone (a shared access signature, a signed URL)."""

_VALUES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_(?:[A-Za-z0-9]{16,}|(?=[A-Za-z]*[0-9])(?=[A-Za-z0-9]*[A-Z])(?=[A-Za-z0-9]*[a-z])[A-Za-z0-9]{8,})"
    r"|nvapi-[\w-]{6,}|glpat-[\w.-]{6,}|gl[a-z]{2,5}t-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{12,}|github_pat_\w{12,}"
    r"|sk-(?:(?=[\w-]{0,60}[A-Z0-9])[\w-]{8,}|[\w-]{20,})|xox[abeoprs]-[\w-]{8,}|dckr_pat_[\w-]{8,}|npm_[A-Za-z0-9]{20,}"
    r"|pypi-[\w-]{20,}|A[KS]IA[A-Z0-9]{12,}|AIza[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?"
    r"|rpa_[A-Za-z0-9]{20,}|gsk_[A-Za-z0-9]{20,}"
    r")"
)
"""Tokens by their issuers' prefixes. Sources: each issuer's documentation of its token format (Hugging Face
`hf_`, NVIDIA `nvapi-`, GitLab `glpat-`, GitHub `ghp_` and `github_pat_`, OpenAI `sk-`, Slack `xoxb-`, Docker
`dckr_pat_`, AWS `AKIA`, Google `AIza`; `eyJ` is a JSON Web Token)."""
_USERINFO = re.compile(r"(?<=://)[^\s/'\"<>]{1,1000}@")
_BEARER = re.compile(r"\b(Bearer|Basic)(\s{1,8})(?=[^\s$])[^\s'\"]{4,}")
_BEGIN_KEY = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*", re.DOTALL)
_LOGIN = re.compile(r"(?<!\S)(?:\S{0,200}/)?(?:login|sshpass|mysql|mysqldump|redis-cli)(?!\S)")
_LOGIN_PASSWORD = re.compile(r"(?<!\S)(-p|-a)(\s{0,8}=?)(?=[^\s=])")
_USER = re.compile(
    r"(?<!\S)['\"]?(?:-u|--user|--proxy-user|-U|--login-user)['\"]?(?:=|\s{0,8})(?=\S)"
)
_NAME = re.compile(r"(?<![\w.$-])(-{0,2})([A-Za-z_][\w.-]{0,199})")
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w{0,199})(:?[-=+?])")
_REFERENCE = re.compile(r"\$(?:[A-Za-z_]\w{0,199}|[0-9@*#]|\{[A-Za-z_]\w{0,199}\})")
_MEANT = re.compile(r"(?=[^\s]*[0-9])(?=[^\s]*[A-Za-z])[^\s]{8,200}(?!\S)")
_HEADER = re.compile(r"(?:proxy-)?authorization|(?:set-)?cookie", re.IGNORECASE)
_LINE_END = re.compile(r"[\n\r'\"]")
_OPTION = re.compile(r"--?[A-Za-z]")
_OPEN = {"(": ")", "{": "}"}


def hidden(text: str) -> str:
    """The text with each secret in it replaced by `HIDDEN`; cut after `MAX_TEXT` characters.

    Names of variables stay (`--token $HF_TOKEN`); `$(…)` and `${NAME:-default}` after a secret's name go.
    """
    more = len(text) - MAX_TEXT
    if more > 0:
        text = text[:MAX_TEXT]
    text = _BEGIN_KEY.sub(HIDDEN, text)
    text = _by_name(text)
    text = _USERINFO.sub(lambda m: m[0] if _REFERENCE.fullmatch(m[0][:-1]) else f"{HIDDEN}@", text)
    text = _BEARER.sub(rf"\1\2{HIDDEN}", text)
    text = _logins(text)
    text = _VALUES.sub(HIDDEN, text)
    return f"{text}… ({more} more characters are not shown)" if more > 0 else text


def hidden_words(words: Iterable[str]) -> str:
    """A command's words, quotes removed, joined: as `hidden`, but a word with blanks in it is one value."""
    out: list[str] = []
    secret = False
    for word in words:
        if secret and not _shown(word) and not _OPTION.match(word):
            word = HIDDEN
        secret = word.startswith("-") and is_secret_key(word)
        quote = next((mark for mark in "\"'" if mark not in word), "")
        if quote and any(char.isspace() for char in word):
            word = hidden(f"{quote}{word}{quote}").removeprefix(quote).removesuffix(quote)
        out.append(word)
    return hidden(" ".join(out))


def hidden_value(name: str, text: str) -> str:
    """A value by its name, else by what is in it."""
    if text and is_secret_key(name) and not _shown(text):
        return HIDDEN
    return hidden(text)


def hidden_tree(value: Any, name: str = "") -> Any:
    """Strings and numbers in JSON or YAML data, each by its key and by what is in it."""
    if isinstance(value, str):
        return hidden_value(name, value)
    if isinstance(value, Mapping):
        return {key: hidden_tree(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [hidden_tree(item, name) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool) and is_secret_key(name):
        return HIDDEN
    return value


def _shown(text: str) -> bool:
    """Nothing to hide: no value, a variable's or placeholder's name, or already hidden."""
    bare = text.strip().strip("'\"")
    return (
        bare in ("", HIDDEN, "null", "None", "none", "true", "false", "True", "False")
        or _REFERENCE.fullmatch(bare) is not None
        or bare.startswith(HIDDEN)
    )


# ---- a name, then its value
def _by_name(text: str) -> str:
    out: list[str] = []
    done = at = 0
    for start, end in _spans(text):
        if start < at:
            continue
        out += [text[done:start], HIDDEN]
        done = at = end
    return "".join(out) + text[done:]


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of values after a secret's name, in order."""
    found: list[tuple[int, int]] = []
    passed = 0
    for match in _DEFAULT.finditer(text):
        if match.start() >= passed and is_secret_key(match[1]):
            passed = _closing(text, match.end(), "}")
            found.append((match.end(), passed))
    passed = 0
    for match in _NAME.finditer(text):
        if match.start() < passed:
            continue
        start = match.end()
        named = is_secret_key(match[2])
        query = match.start() > 0 and text[match.start() - 1] in "?&;"
        if not named and not (query and match[2].lower() in _QUERY_NAMES):
            continue
        span = _value(text, match.start(), start, dashed=bool(match[1]))
        if span is not None:
            found.append(span)
            passed = span[1]
    found.sort()
    yield from found


def _value(text: str, begin: int, at: int, *, dashed: bool) -> tuple[int, int] | None:
    """Where the value of the name at `begin:at` is; None: there is none, or it is a variable's name."""
    opened = text[begin - 1] if begin and text[begin - 1] in "'\"" else ""
    if text[at : at + 2] in ('\\"', "\\'"):  # JSON inside a quoted word
        at, opened = at + 2, ""
    elif opened and text[at : at + 1] == opened:
        at, opened = at + 1, ""
        at += text[at : at + 1] == "]"  # os.environ["HF_TOKEN"] = …
    rest = _skip(text, at)
    mark = text[rest : rest + 1]
    if mark and mark in "=:":
        if text[rest + 1 : rest + 3] == "//":
            return None
        tight = rest + 1 < len(text) and text[rest + 1 : rest + 2] == mark
        start = _skip(text, rest + (2 if tight else 1))
    elif rest > at and (dashed or (_MEANT.match(text, rest) and not text.startswith(HIDDEN, rest))):
        start, mark = rest, " "
    else:
        return None
    if start >= len(text) or text.startswith(HIDDEN, start):
        return None
    if dashed and mark == " " and _OPTION.match(text, start):
        return None  # the next option
    if _HEADER.fullmatch(text, begin, at) and mark == ":" and not opened:
        end = _line(text, start)
    else:
        end = _end(text, start, opened, "," if mark == ":" else "")
    if end <= start or _shown(text[start:end]):
        return None
    return start, end


def _line(text: str, at: int) -> int:
    """The end of a header that no quote encloses: its value has words."""
    stop = _LINE_END.search(text, at)
    return stop.start() if stop else len(text)


def _skip(text: str, at: int) -> int:
    stop = min(len(text), at + 64)
    while (
        at < stop
        and text[at] in " \t\r\n\\"
        and not (text[at] == "\\" and text[at + 1 : at + 2] not in ("\n", "\r"))
    ):
        at += 1
    return at


def _end(text: str, at: int, opened: str, also: str) -> int:
    """Where the shell word (or, within a quoted one, its rest) that begins at `at` ends."""
    if opened:
        found = text.find(opened, at)
        return len(text) if found < 0 else found
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 2
        elif char in "'\"`":
            at = _quote(text, at + 1, char)
        elif char == "$" and text[at + 1 : at + 2] in _OPEN:
            at = _closing(text, at + 2, _OPEN[text[at + 1]]) + 1
        elif char.isspace() or char in ";|&)}]" or char in also:
            break
        else:
            at += 1
    return min(at, len(text))


def _quote(text: str, at: int, mark: str) -> int:
    """After the closing quote; a quote that never closes reaches to the end."""
    while at < len(text):
        if text[at] == "\\" and mark != "'":
            at += 2
        elif text[at] == mark:
            return at + 1
        else:
            at += 1
    return len(text)


def _closing(text: str, at: int, mark: str) -> int:
    """The closing bracket's place, or the end."""
    depth, other = 1, "(" if mark == ")" else "{"
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == other:
            depth += 1
        elif text[at] == mark:
            depth -= 1
            if not depth:
                return at
        at += 1
    return len(text)


# ---- short options
def _logins(text: str) -> str:
    """`curl -u NAME:x`, `docker login -p x`."""
    spans: list[tuple[int, int]] = []
    for match in _USER.finditer(text):
        end = _end(text, match.end(), "", "")
        user, colon, word = text[match.end() : end].partition(":")
        bare = word.strip("'\"")
        if (
            colon
            and bare
            and not bare.isdigit()
            and not bare.startswith("$")
            and user != "$(id -u)"
        ):
            spans.append((match.end() + len(user) + 1, end))
    if _LOGIN.search(text):
        for match in _LOGIN_PASSWORD.finditer(text):
            end = _end(text, match.end(), "", "")
            if not _shown(text[match.end() : end]):
                spans.append((match.end(), end))
    out, done = [], 0
    for start, end in sorted(spans):
        if start >= done:
            out += [text[done:start], HIDDEN]
            done = end
    return "".join(out) + text[done:]


# ---- secrets of one place, shown at another
def found_in(text: str) -> Iterator[str]:
    """Values that `hidden` hides by a name before them."""
    text = text[:MAX_TEXT]
    for start, end in _spans(text):
        yield text[start:end]


class Known:
    """Values that were found to be secrets; they are hidden wherever they are repeated."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._values: set[str] = set()
        for name, text in pairs:
            self.add(name, text)

    def add(self, name: str, text: str) -> None:
        """One (name, value) as a file has it; kept if the name is a secret's and the value can be told
        from ordinary words."""
        for piece in found_in(text):
            self._add(piece)
        if is_secret_key(name):
            self._add(text)

    def _add(self, text: str) -> None:
        value = text.strip().strip("'\"")
        if _shown(value) or "$" in value or len(value) > 4096:
            return
        if len(value) >= 12 or (len(value) >= 6 and not value.isalpha() and not value.isdigit()):
            self._values.add(value)

    def hide(self, text: str) -> str:
        """The text without those values, and without tokens of a known form and users in URLs."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, HIDDEN)
        text = _USERINFO.sub(f"{HIDDEN}@", text)
        return _VALUES.sub(HIDDEN, text)

    def tree(self, value: Any) -> Any:
        """JSON data with `hide` on each string; keys stay."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {key: self.tree(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.tree(item) for item in value]
        return value
