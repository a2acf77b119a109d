"""Streams with more than text: several sequences, or outputs beside the text."""

from extras import Extras


class Line:
    """One streamed sequence: what it has to send.

    Attributes:
        closed: its last event was taken. `sent`: an event was.
    """

    __slots__ = ("_text", "_tokens", "closed", "extras", "sent", "sequence")

    def __init__(self, sequence, prompt, names):
        self.sequence, self.extras = sequence, Extras(names)
        self._text, self._tokens, self.closed, self.sent = prompt, 0, False, False

    def add(self, ids, tensors):
        self._text += self.sequence.push(ids)
        self._tokens += len(ids)
        self.extras.add(tensors)

    def ready(self, interval):
        """Whether there is something to send, and enough of it.

        Outputs of tokens whose text is held back wait with it.
        """
        if self._tokens < interval or (self.extras.names and self.sequence.holding):
            return False
        return bool(self._text) or self.extras.any

    def take(self):
        """The text to send, and from here on no more of it."""
        text, self._text, self._tokens = self._text, "", 0
        self.closed = self.sequence.ended
        return text

    def finish(self):
        """The engine has no more for this sequence."""
        if not self.sequence.ended:
            self._text += self.sequence.finish()
