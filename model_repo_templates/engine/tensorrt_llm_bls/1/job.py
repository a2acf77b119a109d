"""One request on its way through the BLS model: from fields to the last response."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils
from answer import Sequence
from draft import draft_and_verify
from engine import ask, inputs_of, outputs_of, rows_of, single_ids, tensors_of
from extras import merged
from lines import Line
from request_fields import FieldError

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Job:
    """State of one request; `run` is called from a worker thread.

    Attributes:
        since: when the request came, seconds of the monotonic clock.
        stopped_at: when the engine was last told to stop.
        asked: whether the engine has the request.
    """

    def __init__(self, model, request, sender, fields):
        # The request is kept because the fields' arrays are views of its memory.
        self._model, self._request, self._sender, self._fields = model, request, sender, fields
        self._lock, self._done, self._cancelled = threading.Lock(), False, False
        self.since, self.stopped_at, self.asked = time.monotonic(), 0.0, False

    def run(self):
        ident = None
        try:
            fields, model = self._fields, self._model
            self._prompt = prompt = model.prompts(fields)
            streaming = fields.flag("stream")
            beams = fields.number("beam_width", default=1)
            count = fields.number("num_return_sequences", default=beams)
            self._check(streaming, count, beams, len(prompt.rows))
            outputs, extras = outputs_of(fields, count)
            self._echo = not fields.flag("exclude_input_in_output") and (
                "exclude_input_in_output" in fields
            )
            ident = model.enter(self, self._request.request_id())
            if "num_draft_tokens" in fields and fields.number("num_draft_tokens"):
                self._send_whole(
                    draft_and_verify(self._ask, model.draft, ident, fields, prompt),
                    1,
                    extras,
                    rounds=True,
                )
            elif count == 1 and not extras and len(prompt.rows) == 1:
                responses = self._ask(ident, inputs_of(fields, prompt, streaming), outputs)
                (self._stream_text if streaming else self._send_text)(ident, single_ids(responses))
            elif streaming:
                responses = self._ask(ident, inputs_of(fields, prompt, True), outputs)
                self._stream(ident, tensors_of(responses), extras, count)
            else:
                self._send_whole(self._responses(ident, outputs), count, extras)
        except Exception as error:
            self._fail(error)
        finally:
            if ident is not None:
                model.leave(ident)

    def gone(self):
        """Whether the client is gone; called from another thread."""
        with self._lock:  # asking after the last response would reach for what is freed
            if not self._done and self._sender.is_cancelled():
                self._cancelled = True
            return self._cancelled

    def _refuse_cancelled(self):
        if self._cancelled:
            raise RuntimeError("the request was cancelled")

    def _check(self, streaming, count, beams, batch):
        model = self._model
        if not model.decoupled:
            if streaming:
                raise FieldError("stream needs a repository rendered with serving.streaming: true")
            if count > 1 and beams == 1:
                raise FieldError(
                    "num_return_sequences needs a repository rendered with serving.streaming: true"
                )
        if "num_draft_tokens" in self._fields and self._fields.number("num_draft_tokens"):
            if model.draft is None:
                raise FieldError("num_draft_tokens: this server has no draft model")
            if streaming or batch > 1 or count > 1 or beams > 1:
                raise FieldError(
                    "num_draft_tokens takes one prompt and one sequence, and no stream"
                )

    def _ask(self, ident, tensors, outputs, engine=None):
        """Responses of the engine or of another model, once there is room to wait for the first."""
        model = self._model
        with model.calls:
            self._refuse_cancelled()
            self.asked = True
            return ask(engine or model.engine, model.decoupled, ident, tensors, outputs)

    def _responses(self, ident, outputs):
        model, prompt, fields = self._model, self._prompt, self._fields
        if model.decoupled or len(prompt.rows) == 1:
            yield from tensors_of(self._ask(ident, inputs_of(fields, prompt, False), outputs))
            return
        # The C++ backend takes several rows in one request only when it is decoupled.
        for row in range(len(prompt.rows)):
            part, one = prompt.row(row), fields.row(row)
            for response in tensors_of(self._ask(ident, inputs_of(one, part, False), outputs)):
                response["batch_index"] = pb_utils.Tensor(
                    "batch_index", np.full((1, 1), row, np.int32)
                )
                yield response

    def _sequence(self, row, measured):
        model, prompt = self._model, self._prompt
        return Sequence(
            model.codec,
            model.skip,
            frozenset(prompt.ends[row]),
            prompt.stop_words[row],
            prompt.max_tokens[row],
            measured,
        )

    # ---- one sequence, text only: what nearly all requests are
    def _send_text(self, ident, responses):
        sequence = self._sequence(0, False)
        text = "".join([sequence.push(ids) for ids in responses])
        if not sequence.ended:
            text += sequence.finish()
        self._refuse_cancelled()
        self._send([_text(self._prompt.texts[0] + text if self._echo else text)], last=True)

    def _stream_text(self, ident, responses):
        sequence, interval = self._sequence(0, False), self._model.interval
        send, push, Response = self._sender.send, sequence.push, pb_utils.InferenceResponse
        text, tokens, sent = self._prompt.texts[0] if self._echo else "", 0, False
        for ids in responses:
            text += push(ids)
            if sequence.ended:
                break
            tokens += len(ids)
            if text and tokens >= interval:
                send(Response([_text(text)]))
                text, tokens, sent = "", 0, True
        self._refuse_cancelled()
        if not sequence.ended:
            text += sequence.finish()
        self._send([_text(text)] if text or not sent else None, last=True)
        if sequence.stopped and not sequence.ends_with(self._stop_ids()):
            self._model.stop_engine(ident)
        for _ in responses:
            pass

    # ---- whole answers
    def _send_whole(self, responses, count, extras, rounds=False):
        """All rows and sequences in one response: text_output [batch, count].

        Args:
            rounds: whether the responses are rounds of one sequence with a draft model.
        """
        batch = len(self._prompt.rows)
        made, held = {}, []
        for tensors in responses:
            places = rows_of(tensors)
            for row, index, ids in places:
                key = (row, index)
                if key not in made:
                    made[key] = [self._sequence(row, bool(extras)), []]
                sequence, pieces = made[key]
                pieces.append(sequence.push(ids))
            if extras:
                held.append((places, tensors))
            if rounds and made[0, 0][0].ended:
                break  # the target would go on behind a stop word that only the text shows
        self._refuse_cancelled()
        texts = []
        for row in range(batch):
            for index in range(count):
                sequence, pieces = made.get((row, index), (None, []))
                if sequence is not None and not sequence.ended:
                    pieces.append(sequence.finish())
                texts.append("".join([self._prompt.texts[row], *pieces] if self._echo else pieces))
        outputs = [_texts(texts, batch)]
        if extras:
            kept = {key: sequence.kept() for key, (sequence, _) in made.items()}
            outputs += merged(held, extras, batch, count, kept)
        self._send(outputs, last=True)

    # ---- streams
    def _stream(self, ident, responses, extras, count):
        prompt, measured = self._prompt, bool(extras)
        lines = [
            Line(self._sequence(0, measured), prompt.texts[0] if self._echo else "", extras)
            for _ in range(count)
        ]
        open_, interval = count, self._model.interval
        for found in responses:
            for _, index, ids in rows_of(found):
                line = lines[index]
                if line.closed:
                    continue
                line.add(ids, found)
                if line.sequence.ended:
                    open_ -= 1
                    if open_:
                        self._send_line(lines, index)
                elif line.ready(interval):
                    self._send_line(lines, index)
            if not open_:
                break
        self._end(ident, responses, lines, extras)

    def _end(self, ident, responses, lines, extras):
        """Last event of the sequences that are not closed; stop an engine that does not know."""
        self._refuse_cancelled()
        stop_ids = self._stop_ids()
        unaware = any(
            line.sequence.stopped and not line.sequence.ends_with(stop_ids) for line in lines
        )
        waits = "arrival_time_ns" in extras  # performance metrics come with the engine's last
        if waits:
            self._drain(ident, responses, unaware, lines)
        waiting = [index for index, line in enumerate(lines) if not line.closed]
        for index in waiting:
            lines[index].finish()
        for index in waiting:
            self._send_line(lines, index, last=index == waiting[-1])
        if not waiting:
            self._send(None, last=True)
        if not waits:
            self._drain(ident, responses, unaware, None)

    def _drain(self, ident, responses, unaware, lines):
        if unaware:
            self._model.stop_engine(ident)
        for found in responses:
            if lines is not None:
                for line in lines:
                    line.extras.add_last(found)

    def _stop_ids(self):
        row = self._prompt.stop_rows[0]
        return [] if row is None else row.sequences()

    def _send_line(self, lines, index, last=False):
        line = lines[index]
        text = line.take()
        outputs = [_text(text)] if text or line.extras.any or not line.sent else None
        if outputs is not None:
            line.sent = True
            outputs += line.extras.take(line.sequence)
            if len(lines) > 1:
                outputs.append(pb_utils.Tensor("sequence_index", np.full((1, 1), index, np.int32)))
        if outputs is not None or last:
            self._send(outputs, last)

    # ---- responses
    def _send(self, outputs, last=False):
        response = None if outputs is None else pb_utils.InferenceResponse(outputs)
        if not last:
            self._sender.send(response)
            return
        with self._lock:
            self._done = True
            if response is None:
                self._sender.send(flags=FINAL)
            else:
                self._sender.send(response, flags=FINAL)

    def _fail(self, error):
        kind = "" if isinstance(error, (ValueError, RuntimeError)) else f"{type(error).__name__}: "
        triton = pb_utils.TritonError(f"[engineroom] {kind}{error}")
        with self._lock:
            if self._done:
                return
            self._done = True
            self._sender.send(
                pb_utils.InferenceResponse(output_tensors=[], error=triton), flags=FINAL
            )


def _text(text):
    return pb_utils.Tensor("text_output", np.array([[text.encode("utf-8", "replace")]], object))


def _texts(texts, batch):
    data = np.array([text.encode("utf-8", "replace") for text in texts], object)
    return pb_utils.Tensor("text_output", data.reshape(batch, -1))
