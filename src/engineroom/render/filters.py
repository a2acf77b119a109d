"""Escaping: a user's string never leaves its place in pbtxt, YAML or JSON."""

from __future__ import annotations

import json
import re
from typing import Any

# JSON allows these inside strings; YAML readers refuse them or take them for line breaks.
_UNREADABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_PBTXT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def pbtxt(value: object) -> str:
    """A protobuf text-format string literal, quotes included.

    Control characters become octal escapes; other text stays UTF-8, which text format allows.
    """
    text = value if isinstance(value, str) else str(value)
    out = []
    for char in text:
        if char in _PBTXT:
            out.append(_PBTXT[char])
        elif ord(char) < 32 or ord(char) == 127:
            out.append(f"\\{ord(char):03o}")
        else:
            out.append(char)
    return '"' + "".join(out) + '"'


def json_yaml(value: Any) -> str:
    """YAML in its JSON form: every YAML 1.2 reader and every JSON reader takes it."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return _UNREADABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
