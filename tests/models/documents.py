"""Text for the tiny test model: its training corpus, and calibration documents for the tests.

Only the standard library is used, and nothing is downloaded. There are two sources:

* ``pydoc_documents()``: the language reference topics of ``pydoc`` and the docstrings of the
  standard library. It depends on the Python version that runs it.
* ``documents(seed, count)``: JSON documents, phrase lists and ChatML dialogues (short questions
  and answers, JSON answers, tool calls) from a seeded generator. The same seed gives the same
  documents on every machine, and a smaller count gives a prefix of a larger one.

``conversations(seed, count)`` gives dialogues as messages, and ``render_chat`` is the text form
that the chat template of ``tiny-llama`` produces for them.
"""

from __future__ import annotations

import ast
import json
import random
import sysconfig
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
TOOLS_HEADER = "Tools you can call, one per line:"

Message = dict[str, Any]

_PACKAGES = (
    "asyncio",
    "collections",
    "concurrent/futures",
    "email",
    "html",
    "http",
    "importlib",
    "json",
    "logging",
    "multiprocessing",
    "unittest",
    "urllib",
    "xml/dom",
    "xml/etree",
)
_MIN_DOCSTRING = 80

# ---------------------------------------------------------------------------------------------
# Word lists
# ---------------------------------------------------------------------------------------------

_PEOPLE = (
    "Ada", "Alan", "Grace", "Linus", "Maria", "Noor", "Omar", "Priya", "Quentin", "Rosa",
    "Sam", "Tessa", "Victor", "Wendy", "Yusuf", "Zoë", "José", "Łukasz", "Søren", "Björn",
    "Renée", "Anaïs", "Jürgen", "Mei", "Hana", "山田", "李明", "민준",
)  # fmt: skip
_FAMILIES = (
    "Adams", "Brown", "Clark", "Davis", "Evans", "Fischer", "García", "Hansen", "Ivanova",
    "Jensen", "Kim", "Lopez", "Müller", "Novák", "Okafor", "Patel", "Rossi", "Silva", "Tanaka",
    "Weber",
)  # fmt: skip
_CAPITALS = {
    "Argentina": "Buenos Aires", "Australia": "Canberra", "Austria": "Vienna",
    "Belgium": "Brussels", "Brazil": "Brasília", "Canada": "Ottawa", "Chile": "Santiago",
    "China": "Beijing", "Cuba": "Havana", "Denmark": "Copenhagen", "Egypt": "Cairo",
    "Finland": "Helsinki", "France": "Paris", "Germany": "Berlin", "Greece": "Athens",
    "Hungary": "Budapest", "Iceland": "Reykjavík", "India": "New Delhi", "Ireland": "Dublin",
    "Italy": "Rome", "Japan": "Tokyo", "Kenya": "Nairobi", "Mexico": "Mexico City",
    "Norway": "Oslo", "Peru": "Lima", "Poland": "Warsaw", "Portugal": "Lisbon",
    "Spain": "Madrid", "Sweden": "Stockholm", "Turkey": "Ankara",
}  # fmt: skip
_CITIES = (
    *_CAPITALS.values(), "Zürich", "São Paulo", "Kraków", "Málaga", "東京", "北京", "서울", "Αθήνα",
)  # fmt: skip
_OPPOSITES = {
    "hot": "cold", "big": "small", "fast": "slow", "high": "low", "open": "closed",
    "early": "late", "light": "dark", "full": "empty", "hard": "soft", "wet": "dry",
    "old": "new", "left": "right", "up": "down", "true": "false", "first": "last",
    "near": "far", "rich": "poor", "strong": "weak", "happy": "sad", "loud": "quiet",
}  # fmt: skip
_COLOURS = {
    "the sky": "blue", "grass": "green", "a banana": "yellow", "snow": "white",
    "coal": "black", "a tomato": "red", "a carrot": "orange", "chocolate": "brown",
}  # fmt: skip
_TRANSLATIONS = {
    ("hello", "French"): "bonjour", ("hello", "Spanish"): "hola",
    ("hello", "German"): "hallo", ("hello", "Japanese"): "こんにちは",
    ("hello", "Chinese"): "你好", ("hello", "Russian"): "привет",
    ("hello", "Korean"): "안녕하세요", ("thank you", "French"): "merci",
    ("thank you", "Spanish"): "gracias", ("thank you", "German"): "danke schön",
    ("thank you", "Japanese"): "ありがとう", ("thank you", "Chinese"): "谢谢",
    ("thank you", "Russian"): "спасибо", ("thank you", "Korean"): "감사합니다",
    ("summer", "French"): "été", ("tomorrow", "Spanish"): "mañana",
    ("green", "German"): "grün", ("water", "Japanese"): "水", ("cat", "Japanese"): "猫",
    ("book", "Chinese"): "书", ("coffee", "French"): "café",
}  # fmt: skip
_EMOJI = {
    "a cat": "🐱", "a dog": "🐶", "the sun": "☀️", "a rocket": "🚀", "a heart": "❤️",
    "a fire": "🔥", "a pizza": "🍕", "a party": "🎉", "a car": "🚗", "a smile": "😀",
}  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_PRODUCTS = (
    "lamp", "desk", "chair", "kettle", "notebook", "pencil", "backpack", "bottle", "keyboard",
    "monitor", "crème brûlée", "jalapeño", "piñata", "café au lait", "緑茶", "teapot",
)  # fmt: skip
_TAGS = (
    "new", "sale", "blue", "red", "large", "small", "fragile", "urgent", "draft", "public",
    "private", "beta", "naïve", "✓", "🔥",
)  # fmt: skip
_UNITS = (("km", "miles"), ("kg", "pounds"), ("celsius", "fahrenheit"), ("litres", "gallons"))
_SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "Answer in one short sentence.",
    "You are a careful assistant. Keep your answers short.",
    "You answer questions about the world.",
)
_PHRASES = (
    "Le garçon a mangé une crêpe à la fraise près de la forêt.",
    "Où est la bibliothèque? Elle est fermée jusqu'à midi.",
    "El niño pequeño soñó con una montaña y un pingüino.",
    "Die Tür ist geöffnet, und die Vögel fliegen über die Straße.",
    "På lørdag går vi til stranden og spiser brød med smør.",
    "Zażółć gęślą jaźń, a potem idź spać.",
    "Мы идём в парк, потому что сегодня тепло.",
    "Σήμερα λάμπει στη θάλασσα.",
    "今日は天気がいいですね。散歩に行きましょう。",
    "我喜欢喝茶。我也喜欢看书。",
    "오늘은 날씨가 좋아요. 같이 산책해요.",
    "Great work! 🎉 The build is green ✅ and the rocket 🚀 is ready.",
    "Temperature: 21 °C, humidity: 40 %, price: 12 €, width: ½ m.",
)

# ---------------------------------------------------------------------------------------------
# JSON values
# ---------------------------------------------------------------------------------------------


def _date(rng: random.Random) -> str:
    return f"20{rng.randint(10, 39)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def _name(rng: random.Random) -> str:
    return f"{rng.choice(_PEOPLE)} {rng.choice(_FAMILIES)}"


def _some(rng: random.Random, words: tuple[str, ...], most: int) -> list[str]:
    return rng.sample(words, rng.randint(0, most))


def _person(rng: random.Random) -> dict[str, Any]:
    return {
        "name": _name(rng),
        "age": rng.randint(1, 99),
        "city": rng.choice(_CITIES),
        "active": rng.random() < 0.5,
        "tags": _some(rng, _TAGS, 3),
        "manager": None if rng.random() < 0.4 else _name(rng),
    }


def _order(rng: random.Random) -> dict[str, Any]:
    items: list[dict[str, Any]] = [
        {
            "product": rng.choice(_PRODUCTS),
            "quantity": rng.randint(1, 12),
            "price": round(rng.uniform(0.5, 200.0), 2),
        }
        for _ in range(rng.randint(1, 3))
    ]
    total = round(sum(item["quantity"] * item["price"] for item in items), 2)
    return {
        "id": rng.randint(1000, 9999),
        "customer": _name(rng),
        "date": _date(rng),
        "items": items,
        "total": total,
        "paid": rng.random() < 0.5,
    }


def _reading(rng: random.Random) -> dict[str, Any]:
    return {
        "sensor": f"{rng.choice('abcdef')}{rng.randint(1, 40)}",
        "time": f"{_date(rng)}T{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:00Z",
        "values": [round(rng.uniform(-40.0, 60.0), 1) for _ in range(rng.randint(2, 6))],
        "scale": rng.choice((1, 0.5, 1e-06, 2.5e20, -1)),
        "error": rng.choice((None, "low battery", 'bad "checksum"', "path C:\\temp\nretry")),
    }


def _settings(rng: random.Random) -> dict[str, Any]:
    return {
        "version": f"{rng.randint(0, 9)}.{rng.randint(0, 20)}.{rng.randint(0, 9)}",
        "server": {
            "host": rng.choice(("localhost", "0.0.0.0", "example.org")),
            "port": rng.randint(1024, 65535),
        },
        "features": {tag: rng.random() < 0.5 for tag in _some(rng, _TAGS, 3)},
        "limits": [[rng.randint(0, 9) for _ in range(3)] for _ in range(rng.randint(1, 3))],
        "extra": {},
    }


_RECORDS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "a person": _person,
    "an order": _order,
    "a sensor reading": _reading,
    "a settings file": _settings,
}


def _dump(value: Any) -> str:
    """Write a JSON value on one line, the way the chat template does."""
    return json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------------------------------------
# Dialogues
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conversation:
    """A dialogue: its messages, and the tools that its system turn lists (if any)."""

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)

    def text(self) -> str:
        """The dialogue as ChatML text."""
        return render_chat(self.messages, self.tools)


def _call_text(call: dict[str, Any]) -> str:
    function = call["function"]
    body = f'{{"name": {_dump(function["name"])}, "arguments": {_dump(function["arguments"])}}}'
    return f"<tool_call>{body}</tool_call>"


def render_chat(
    messages: list[Message],
    tools: list[dict[str, Any]] | None = None,
    add_generation_prompt: bool = False,
) -> str:
    """Write messages as ChatML text, exactly as the chat template of ``tiny-llama`` does."""
    parts = []
    rest = list(messages)
    if tools:
        lines = [TOOLS_HEADER] + [_dump(tool["function"]) for tool in tools]
        if rest and rest[0]["role"] == "system":
            lines.insert(0, rest.pop(0)["content"])
        listing = "\n".join(lines)
        parts.append(f"{TURN_START}system\n{listing}{TURN_END}\n")
    for message in rest:
        calls = "".join(_call_text(call) for call in message.get("tool_calls", ()))
        content = (message.get("content") or "") + calls
        parts.append(f"{TURN_START}{message['role']}\n{content}{TURN_END}\n")
    if add_generation_prompt:
        parts.append(f"{TURN_START}assistant\n")
    return "".join(parts)


def _question(rng: random.Random) -> tuple[str, str]:
    """One short question of a fixed form, and its answer."""
    kind = rng.choice(("capital", "capital", "opposite", "colour", "word", "emoji", "sum", "day"))
    if kind == "capital":
        country, capital = rng.choice(list(_CAPITALS.items()))
        return f"What is the capital of {country}?", f"The capital of {country} is {capital}."
    if kind == "opposite":
        word, other = rng.choice(list(_OPPOSITES.items()))
        return f"What is the opposite of {word}?", f"The opposite of {word} is {other}."
    if kind == "colour":
        thing, colour = rng.choice(list(_COLOURS.items()))
        return f"What colour is {thing}?", f"{thing[0].upper()}{thing[1:]} is {colour}."
    if kind == "word":
        (word, language), other = rng.choice(list(_TRANSLATIONS.items()))
        return f'How do you say "{word}" in {language}?', f'In {language}, "{word}" is "{other}".'
    if kind == "emoji":
        thing, emoji = rng.choice(list(_EMOJI.items()))
        return f"Which emoji shows {thing}?", emoji
    if kind == "sum":
        a, b = rng.randint(0, 9), rng.randint(0, 9)
        return f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."
    day = rng.randrange(7)
    return (
        f"Which day comes after {_DAYS[day]}?",
        f"{_DAYS[(day + 1) % 7]} comes after {_DAYS[day]}.",
    )


def _start(rng: random.Random) -> list[Message]:
    if rng.random() < 0.5:
        return []
    return [{"role": "system", "content": rng.choice(_SYSTEM_PROMPTS)}]


def _question_dialogue(rng: random.Random) -> Conversation:
    messages = _start(rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        question, answer = _question(rng)
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    return Conversation(messages)


def _json_dialogue(rng: random.Random) -> Conversation:
    kind, make = rng.choice(list(_RECORDS.items()))
    messages = _start(rng)
    messages.append({"role": "user", "content": f"Write a JSON object for {kind}."})
    messages.append({"role": "assistant", "content": _dump(make(rng))})
    return Conversation(messages)


def _tool(name: str, about: str, **types: str) -> dict[str, Any]:
    properties: dict[str, Any] = {key: {"type": kind} for key, kind in types.items()}
    for prop in properties.values():
        if prop["type"] == "array":
            prop["items"] = {"type": "string"}
    parameters = {"type": "object", "properties": properties, "required": list(types)}
    function = {"name": name, "description": about, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = {
    tool["function"]["name"]: tool
    for tool in (
        _tool("get_weather", "Weather in a city.", city="string", unit="string"),
        _tool("convert", "Convert a value.", value="number", source="string", target="string"),
        _tool("create_event", "Add to calendar.", title="string", date="string", guests="array"),
        _tool("send_message", "Send a message.", to="string", text="string"),
        _tool("set_timer", "Start a timer.", minutes="integer", repeat="boolean"),
    )
}


def _tool_use(rng: random.Random, name: str) -> tuple[str, dict[str, Any], Any, str]:
    """A request, the arguments of its call, the tool's result, and the final answer."""
    if name == "get_weather":
        city, unit = rng.choice(_CITIES), rng.choice(("celsius", "fahrenheit"))
        degrees, sky = rng.randint(-10, 35), rng.choice(("sunny", "cloudy", "rainy", "windy"))
        return (
            f"What is the weather in {city}, in {unit}?",
            {"city": city, "unit": unit},
            {"temperature": degrees, "sky": sky},
            f"It is {sky} in {city}, {degrees} degrees {unit}.",
        )
    if name == "convert":
        value = rng.choice((rng.randint(1, 500), round(rng.uniform(0, 99), 1)))
        source, target = rng.choice(_UNITS)
        result = round(rng.uniform(1, 300), 1)
        return (
            f"Convert {value} {source} to {target}.",
            {"value": value, "source": source, "target": target},
            {"result": result},
            f"{value} {source} is {result} {target}.",
        )
    if name == "create_event":
        title, date = rng.choice(("Lunch", "Standup", "Review", "Fête", "打ち合わせ")), _date(rng)
        guests = rng.sample(_PEOPLE, rng.randint(1, 3))
        return (
            f"Plan {title} on {date} with {' and '.join(guests)}.",
            {"title": title, "date": date, "guests": guests},
            {"ok": True, "id": rng.randint(100, 999)},
            f"{title} is planned on {date}.",
        )
    if name == "send_message":
        to = rng.choice(_PEOPLE)
        text = rng.choice(("I am late", "See you soon 😀", "Call me", "À bientôt", "Well done 🎉"))
        return (
            f'Tell {to}: "{text}"',
            {"to": to, "text": text},
            {"ok": True},
            f"I told {to}.",
        )
    minutes, repeat = rng.randint(1, 90), rng.random() < 0.5
    often = "repeating" if repeat else "single"
    return (
        f"Start a {often} timer of {minutes} minutes.",
        {"minutes": minutes, "repeat": repeat},
        {"ok": True},
        f"The timer runs for {minutes} minutes.",
    )


def _tool_dialogue(rng: random.Random) -> Conversation:
    name = rng.choice(list(TOOLS))
    offered = [name, *(other for other in TOOLS if other != name and rng.random() < 0.2)]
    rng.shuffle(offered)
    request, arguments, result, answer = _tool_use(rng, name)
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    messages = _start(rng)
    messages.append({"role": "user", "content": request})
    messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    if rng.random() < 0.6:
        messages.append({"role": "tool", "content": _dump(result)})
        messages.append({"role": "assistant", "content": answer})
    # Some dialogues list no tools, so that short prompts get a tool call too.
    tools = [TOOLS[key] for key in offered] if rng.random() < 0.6 else []
    return Conversation(messages, tools)


def _conversation(rng: random.Random) -> Conversation:
    makers = (_question_dialogue, _json_dialogue, _tool_dialogue)
    return rng.choices(makers, weights=(5, 1, 4))[0](rng)


# ---------------------------------------------------------------------------------------------
# Documents
# ---------------------------------------------------------------------------------------------


def _json_document(rng: random.Random) -> str:
    make = rng.choice(list(_RECORDS.values()))
    value: Any = make(rng)
    if rng.random() < 0.25:
        value = [value] + [make(rng) for _ in range(rng.randint(0, 2))]
    escape = rng.random() < 0.1
    style = rng.choice(("compact", "line", "indented"))
    if style == "compact":
        return json.dumps(value, ensure_ascii=escape, separators=(",", ":"))
    if style == "line":
        return json.dumps(value, ensure_ascii=escape)
    return json.dumps(value, ensure_ascii=escape, indent=rng.choice((2, 4)))


def _phrase_document(rng: random.Random) -> str:
    return "\n".join(rng.sample(_PHRASES, rng.randint(2, 4)))


def conversations(seed: int, count: int) -> list[Conversation]:
    """Generate dialogues, with their messages and tools kept apart."""
    rng = random.Random(seed)
    return [_conversation(rng) for _ in range(count)]


def documents(seed: int, count: int) -> list[str]:
    """Generate JSON documents, ChatML dialogues and phrase lists, mixed."""
    rng = random.Random(seed)
    result = []
    for _ in range(count):
        kind = rng.choices(("dialogue", "json", "phrases"), weights=(12, 7, 1))[0]
        if kind == "dialogue":
            result.append(_conversation(rng).text())
        elif kind == "json":
            result.append(_json_document(rng))
        else:
            result.append(_phrase_document(rng))
    return result


def _docstrings(path: Path) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    return [text for text in found if text and len(text) >= _MIN_DOCSTRING]


def pydoc_documents() -> list[str]:
    """Collect the topics of ``pydoc`` and the docstrings of the standard library.

    Texts with a copyright notice of their own are left out, and so are repeats.
    """
    from pydoc_data.topics import topics

    texts = [topics[key] for key in sorted(topics)]
    library = Path(sysconfig.get_path("stdlib"))
    for folder in (library, *(library / name for name in _PACKAGES)):
        for path in sorted(folder.glob("*.py")):
            texts.extend(_docstrings(path))
    kept = (text.strip() for text in texts if "copyright" not in text.lower())
    return list(dict.fromkeys(text for text in kept if text))
