"""Stop words enforced on text: nothing from a stop word on is ever sent.

Token ids cannot do it alone: "END" may come as the tail of "WEEKEND" or spread over tokens in a way
nobody listed. Nothing of Triton is imported.
"""


class StopText:
    """Cuts one sequence's text at the stop word that is complete first.

    Text that may be the beginning of a stop word is held back until more text decides. The result
    does not depend on how the text is cut into pieces: of several words the one that ends first
    wins, then the longest.

    Attributes:
        found: the stop word that ended the text, or None.
    """

    __slots__ = ("_held", "_words", "found")

    def __init__(self, words):
        self._words, self._held, self.found = words, "", None

    def push(self, piece):
        """Add text; return what is safe to send. Nothing after a stop word."""
        if self.found is not None:
            return ""
        text = self._held + piece
        best = None
        for word in self._words:
            start = text.find(word)
            if start >= 0 and (best is None or (start + len(word), start) < best[:2]):
                best = (start + len(word), start, word)
        if best is not None:
            self._held, self.found = "", best[2]
            return text[: best[1]]
        keep = len(text)
        for word in self._words:
            keep = min(keep, _beginning(text, word))
        self._held = text[keep:]
        return text[:keep]

    @property
    def holding(self):
        return bool(self._held)

    def finish(self):
        """What was held back and became no stop word."""
        held, self._held = self._held, ""
        return held


def _beginning(text, word):
    """Where a beginning of `word` starts at the end of `text`; its length when there is none."""
    first = word[0]
    start = text.find(first, max(0, len(text) - len(word) + 1))
    while start >= 0:
        if word.startswith(text[start:]):
            return start
        start = text.find(first, start + 1)
    return len(text)
