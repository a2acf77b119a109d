"""Marked blocks of docs/serving.md."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.conftest import ROOT

PAGE = ROOT / "docs/serving.md"
_BLOCK = re.compile(r"<!-- (run|openai) ([^>]+?) -->\n```(\w+)\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: `kind` run or openai, the words after it, its language and its text."""

    kind: str
    words: tuple[str, ...]
    language: str
    text: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.number}-{'-'.join(self.words)}-{self.language}"


def blocks(kind: str) -> list[Block]:
    found = _BLOCK.findall(PAGE.read_text("utf-8"))
    made = [
        Block(k, tuple(words.split()), lang, text, i)
        for i, (k, words, lang, text) in enumerate(found)
    ]
    return [block for block in made if block.kind == kind]
