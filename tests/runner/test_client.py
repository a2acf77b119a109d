"""The client against servers that are not what they should be."""

from __future__ import annotations

import socket
import threading

import pytest

from engineroom.errors import EngineroomError, ExternalToolError, UsageError
from engineroom.pipeline import generate
from engineroom.runner.client import shown

META = b'{"name": "tensorrt_llm", "inputs": [{"name": "text_input"}, {"name": "sampling_param_max_tokens"}]}'
EVENT = b'data: {"text_output": "hi"}\n\n'


def http(
    body: bytes, status: str = "200 OK", kind: str = "application/json", chunked: bool = False
) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n"
    if chunked:
        return (
            f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body + b"\r\n"
        )
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture
def server():
    """Answers each connection with the next canned bytes, then closes it."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)
    answers: list[bytes] = []

    def loop() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                if answers:
                    connection.sendall(answers.pop(0))

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def serve(*canned: bytes) -> str:
        answers[:] = canned
        return url

    yield serve
    listener.close()


STREAM_OK = http(EVENT, kind="text/event-stream", chunked=True) + b"0\r\n\r\n"


def test_a_good_stream(server):
    result = generate(server(http(META), STREAM_OK), "x", stream=True)
    assert (result.lane, result.answer.text, result.answer.events) == ("llmapi", "hi", 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        http(b""),
        http(b"<html>hello</html>", kind="text/html"),
        http(b"\xff\xfe\x00"),
        http(b"[1]"),
        http(b"null"),
        http(b'{"inputs": null}'),
        http(b'{"inputs": [{}]}'),
        http(b"[" * 100000),
        http(b'{"error": "boom"}', "500 Internal Server Error"),
    ],
)
def test_metadata_that_is_not_tritons(server, answer):
    with pytest.raises(ExternalToolError):
        generate(server(answer, answer), "x")


@pytest.mark.parametrize(
    "answer",
    [
        http(EVENT, kind="text/event-stream", chunked=True),  # cut off after a whole chunk
        http(EVENT, kind="text/event-stream", chunked=True)[:-6],
        http(b"<html></html>", kind="text/html"),
        http(b"", kind="text/event-stream", chunked=False),
        http(b"data: {}\n\n", kind="text/event-stream", chunked=True) + b"0\r\n\r\n",
        http(b'data: {"text_output": null}\n\n', kind="text/event-stream", chunked=True)
        + b"0\r\n\r\n",
        http(b'data: {"error": "no"}\n\n', kind="text/event-stream", chunked=True) + b"0\r\n\r\n",
        http(b"data: " + b"[" * 100000 + b"\n\n", kind="text/event-stream", chunked=True)
        + b"0\r\n\r\n",
        http(b'{"error": "unknown model"}', "400 Bad Request"),
    ],
)
def test_a_broken_stream_is_never_an_answer(server, answer):
    with pytest.raises(ExternalToolError):
        generate(server(http(META), answer), "x", stream=True)


def test_an_answer_without_text_is_an_error(server):
    with pytest.raises(ExternalToolError, match="no text"):
        generate(server(http(META), http(b'{"other": 1}')), "x")


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://h:99999", "http://h:abc", "http://h:-1", "http://a b", "http://a..b", "ftp://x",
     "http://" + "a" * 300],
)  # fmt: skip
def test_odd_addresses(url):
    with pytest.raises(EngineroomError) as caught:
        generate(url, "x")
    assert isinstance(caught.value, UsageError)
    assert caught.value.where.key == "--url"


def test_passwords_are_not_shown():
    assert shown("http://me:secret@host:1/x") == "http://host:1/x"


def test_system_needs_a_template():
    with pytest.raises(UsageError, match="chat template"):
        generate("http://127.0.0.1:9", "x", system="be brief")
