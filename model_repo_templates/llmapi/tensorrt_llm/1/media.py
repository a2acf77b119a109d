"""A request's images: places in chat messages, and threads that fetch them off the request thread."""

import concurrent.futures
import json
import threading

from chat_template import parse_messages
from fetch import Fetch
from runtime_api import RequestError

WORKERS, WAITING = 8, 256


def with_places(messages, count):
    """Messages (JSON text) with `count` image parts before the text of the last user message.

    Chat templates of vision models write the model's own placeholder for such a part. Messages that
    have image parts already, or no user message, are left alone.
    """
    parsed = parse_messages(messages)
    contents = [m["content"] for m in parsed if isinstance(m.get("content"), list)]
    if any(part.get("type") == "image" for c in contents for part in c if isinstance(part, dict)):
        return messages
    for message in reversed(parsed):
        if message["role"] == "user":
            content = message.get("content") or ""
            text = content if isinstance(content, list) else [{"type": "text", "text": content}]
            message["content"] = [{"type": "image"}] * count + text
            break
    return json.dumps(parsed)


class Media:
    """Threads that fetch the images of requests.

    Args:
        rules: `Rules`. decode: bytes to what the runtime takes; None: bytes as they are.
    """

    def __init__(self, rules, decode=None):
        self._rules, self._decode = rules, decode
        self._pool = concurrent.futures.ThreadPoolExecutor(WORKERS, "media")
        self._places = threading.BoundedSemaphore(WAITING)

    def fetch(self, urls, then, failed, gone):
        """Fetch in the background, then call `then(images)`, or `failed(message)`."""
        if not self._places.acquire(blocking=False):
            failed("image_url: too many images are being fetched; try again")
            return
        self._pool.submit(self._work, urls, then, failed, gone)

    def _work(self, urls, then, failed, gone):
        try:
            fetch, images = Fetch(self._rules, gone), []
            for number, url in enumerate(urls):
                try:
                    raw = fetch.bytes(url)
                    images.append(raw if self._decode is None else self._decode(raw))
                except Exception as error:
                    known = isinstance(error, RequestError)
                    why = str(error) if known else f"not a readable image ({type(error).__name__})"
                    failed(f"image_url[{number}]: {why}")
                    return
        finally:
            self._places.release()
        then(images)

    def close(self):
        """Take no more; what is being fetched ends by its time limit."""
        self._pool.shutdown(wait=False, cancel_futures=True)
