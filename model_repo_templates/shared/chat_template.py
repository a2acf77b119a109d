"""Chat messages to a prompt, by the template that came with the model.

Interface: `ChatTemplate(folder).prompt(text)`, where `text` is the JSON of the `messages` input. The
special tokens are part of the prompt: encode it without adding any (`add_special_tokens=False`).

The template is foreign code: it runs in jinja2's sandbox, with what transformers gives templates
(`messages`, `add_generation_prompt`, the special tokens, `raise_exception`, `tojson`,
`strftime_now`, loop controls). jinja2 is imported by the first request that has messages. Nothing of
Triton is imported.
"""

import datetime
import json
import os

MAX_MESSAGES = 1024
ROLES_HINT = 'a JSON list such as [{"role": "user", "content": "Hello"}]'


class ChatTemplate:
    """The chat template of a tokenizer folder, compiled when first used."""

    def __init__(self, folder):
        self._folder, self._template, self._tokens = folder, None, {}

    def prompt(self, text):
        """The prompt, ready for the model's answer.

        Args:
            text: JSON list of {"role": text, "content": text or null, ...}.

        Raises:
            ValueError: not such a list, no template, or the template fails; names `messages`.
        """
        messages = parse_messages(text)
        if self._template is None:
            self._template, self._tokens = self._compile()
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, **self._tokens
            )
        except Exception as error:  # whatever foreign code raises is its fault
            raise ValueError(f"messages: the model's chat template failed: {error}") from None

    def _compile(self):
        config = _read(self._folder, "tokenizer_config.json")
        config = json.loads(config) if config else {}
        source = _read(self._folder, "chat_template.jinja")
        if source is None:
            source = config.get("chat_template")
            if isinstance(source, list):  # several named templates
                named = {item.get("name"): item.get("template") for item in source}
                source = named.get("default")
        if not isinstance(source, str):
            raise ValueError("messages: the model has no chat template; send text_input instead")
        try:
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise ValueError(
                "messages: this container has no jinja2, which chat templates need"
            ) from None
        env = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        env.filters["tojson"] = _to_json
        env.globals["raise_exception"] = _raise
        env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            template = env.from_string(source)
        except Exception as error:
            raise ValueError(f"messages: the chat template is broken: {error}") from None
        tokens = {
            name: value.get("content") if isinstance(value, dict) else value
            for name, value in config.items()
            if name.endswith("_token")
        }
        return template, tokens


def parse_messages(text):
    """Chat messages from JSON.

    Raises:
        ValueError: no list of 1 to `MAX_MESSAGES` objects with a role; names `messages`.
    """
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"messages is not JSON; send {ROLES_HINT}") from None
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages must be {ROLES_HINT}")
    if len(messages) > MAX_MESSAGES:
        raise ValueError(f"messages has {len(messages)} messages; at most {MAX_MESSAGES} are taken")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"messages[{index}] has no role; send {ROLES_HINT}")
        content = message.get("content")
        if content is None and message["role"] != "assistant":  # that one may have called a tool
            raise ValueError(f"messages[{index}] has no content; send {ROLES_HINT}")
        if not isinstance(content, (str, list, type(None))):
            raise ValueError(f"messages[{index}].content is not text")
    return messages


def _to_json(value, **options):
    options.setdefault("ensure_ascii", False)
    return json.dumps(value, **options)


def _raise(message):
    raise ValueError(message)


def _read(folder, name):
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            return file.read()
    except FileNotFoundError:
        return None
