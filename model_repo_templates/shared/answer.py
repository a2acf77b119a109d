"""One generated sequence: token ids in, text that may be sent out. Nothing of Triton is imported."""

from stop_text import StopText
from text_codec import TextStream


class Sequence:
    """Text of one sequence of an answer, piece by piece; the pieces concatenate to the whole.

    Args:
        ends: token ids that end the text and are no part of it.
        stops: stop words as text; neither they nor what follows is returned.
        limit: tokens after which the engine stops.
        measured: whether `kept` will be asked for.

    Attributes:
        count: tokens received, those after the end not counted.
        ended: whether the text is complete.
        stopped: whether a stop word ended it.
    """

    __slots__ = (
        "_ends", "_ids", "_limit", "_measured", "_offsets", "_out", "_stop", "_stream",
        "count", "ended", "stopped",
    )  # fmt: skip

    def __init__(self, codec, skip_special_tokens, ends, stops, limit, measured=False):
        self._stream = TextStream(codec, skip_special_tokens)
        self._stop = StopText(stops) if stops else None
        self._ends, self._limit = ends, limit
        self._measured = measured and bool(stops)
        self._offsets, self._ids, self._out, self.count = [0], [], 0, 0
        self.ended = self.stopped = False

    def push(self, ids):
        """Add the tokens of one engine response; return the text that is final."""
        if self.ended:
            return ""
        if self._ends and not self._ends.isdisjoint(ids):
            ids = ids[: next(i for i, token in enumerate(ids) if token in self._ends)]
            self.ended = True
        self.count += len(ids)
        if self._stop is None:
            text = self._stream.push(ids)
        else:
            text = self._stopped_at(ids)
            if self.stopped:
                return text
        if self.ended or self.count >= self._limit:
            text += self.finish()
        return text

    def _stopped_at(self, ids):
        self._ids.extend(ids)
        if not self._measured:
            return self._cut(self._stream.push(ids))
        pieces = []
        for token in ids:
            piece = self._stream.push([token])
            self._offsets.append(self._offsets[-1] + len(piece))
            pieces.append(piece)
        return self._cut("".join(pieces))

    def _cut(self, text):
        text = self._stop.push(text)
        self._out += len(text)
        if self._stop.found is not None:
            self.ended = self.stopped = True
        return text

    def finish(self):
        """The rest of the text, when the engine says that there is no more."""
        self.ended = True
        text = self._stream.finish()
        if self._stop is None:
            return text
        text = self._cut(text)
        return text if self.stopped else text + self._stop.finish()

    @property
    def holding(self):
        """Whether text is held back that may become a stop word."""
        return self._stop is not None and self._stop.holding

    def kept(self):
        """Tokens of which at least a part is in the text that was returned."""
        if not (self.stopped and self._measured):
            return self.count
        return sum(start < self._out for start in self._offsets[: self.count])

    def ends_with(self, sequences):
        """Whether the tokens end with one of these sequences, so that the engine stopped, too."""
        ids = self._ids
        return any(tuple(ids[-len(sequence) :]) == tuple(sequence) for sequence in sequences)
