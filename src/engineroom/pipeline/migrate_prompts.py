"""Parity prompts: 50 short texts whose greedy answers two servers are compared by.

Written for this purpose: plain sentences, code, JSON, lists, numbers, several languages and scripts,
beginnings that end within a word. None needs a chat template.
"""

from __future__ import annotations

import json

PROMPTS: tuple[str, ...] = (
    "The import statement",
    "A list comprehension is",
    "The capital of Norway is",
    "Water boils at a temperature of",
    "def fibonacci(n):\n    ",
    'The "for" statement is used to',
    '{"name": "Ada", "born": ',
    "[1, 2, 3, ",
    "1 + 1 = 2\n2 + 2 = 4\n3 + 3 =",
    "Monday, Tuesday, Wednesday,",
    "SELECT name FROM users WHERE",
    "Dear Ms Miller,\n\nThank you for",
    "Once upon a time there was",
    "The opposite of hot is",
    "class Stack:\n    def __init__(self):\n        ",
    "import os\nimport sys\n\n",
    "<html>\n  <head>\n    <title>",
    "# Heading\n\n* one\n* two\n* ",
    "Return a list of",
    "If the argument is None,",
    "Le chat dort sur",
    "Der Zug fährt um acht Uhr nach",
    "El agua es importante porque",
    "東京は日本の",
    "Привет, как",
    "مرحبا",
    "Élan naïve über",
    "The price is 12.50 €, which is",
    "x = 0.1 + 0.2\nprint(x)  # ",
    "Q: What is 7 times 8?\nA:",
    "Q: Which colour is grass?\nA:",
    "Translate to French: good morning ->",
    "Three fruits: apple,",
    "A generator is a function which",
    "try:\n    value = int(text)\nexcept ValueError:\n    ",
    "The file was not found, because",
    "In summary,",
    "The first law of thermodynamics",
    "ERROR 2026-01-01T00:00:00Z worker: connection",
    "name,age,city\nAda,36,London\nAlan,",
    "git commit -m ",
    "for i in range(10):\n    print(",
    "The quick brown fox",
    "To be, or not",
    "A, B, C, D,",
    "2, 4, 8, 16,",
    "Please write one sentence about rain.",
    "What is the weather in Paris, in celsius?",
    "lambda x: x",
    "The end of the story: ",
)


def prompts_jsonl() -> str:
    """`prompts.jsonl`: one ``{"text": …}`` a line, the form that AIPerf calls single_turn."""
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in PROMPTS)
