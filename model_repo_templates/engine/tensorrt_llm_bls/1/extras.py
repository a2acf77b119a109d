"""Outputs beside the text: log probabilities, logits, counts, performance metrics.

They are passed on for the tokens that are sent: what belongs to a stop word or to what follows it is
left out. Shapes are the engine's, [batch, ...].
"""

import numpy as np
import triton_python_backend_utils as pb_utils

TOKENS = frozenset(("output_log_probs", "generation_logits"))
"""One value a token: [batch, sequences, tokens, ...]."""
SEQUENCES = TOKENS | {"cum_log_probs"}
"""One value a sequence at least; the others belong to the request."""
_COUNT = "num_output_tokens"


class Extras:
    """Of one streamed sequence, collected between two events.

    Attributes:
        any: whether something waits to be sent.
    """

    __slots__ = ("_parts", "_sent", "any", "names")

    def __init__(self, names):
        self.names, self._parts, self._sent, self.any = names, {}, 0, False

    def add(self, tensors):
        """Take over what one engine response has, for this sequence."""
        for name in self.names:
            tensor = tensors.get(name)
            if tensor is not None:
                self._parts.setdefault(name, []).append(tensor.as_numpy())
                self.any = True

    def add_last(self, tensors):
        """Take over what belongs to the request, from a response after the text's end."""
        for name in self.names - SEQUENCES:
            if name in tensors:
                self._parts.setdefault(name, []).append(tensors[name].as_numpy())
                self.any = True

    def take(self, sequence):
        """Tensors of one event."""
        outputs = []
        if not self.any:
            return outputs
        room = sequence.kept() - self._sent
        for name in sorted(self._parts):
            arrays = self._parts[name]
            if name in TOKENS:
                array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=2)
                array = array[:, :, : max(0, room)]
                if array.shape[2]:
                    outputs.append(pb_utils.Tensor(name, np.ascontiguousarray(array)))
            elif name == _COUNT and len(arrays) > 1:
                outputs.append(pb_utils.Tensor(name, sum(arrays[1:], arrays[0])))
            else:
                outputs.append(pb_utils.Tensor(name, arrays[-1]))
        self._sent += max(0, room)
        self._parts, self.any = {}, False
        return outputs


def merged(responses, names, batch, count, kept):
    """Outputs of a whole answer.

    Args:
        responses: [([(batch index, sequence index, token ids)], {name: tensor})].
        kept: tokens sent, by (batch index, sequence index).

    Returns:
        Tensors [batch, count, ...] for what belongs to sequences, [batch, ...] for the rest; shorter
        rows are filled up with zeros.
    """
    if len(responses) == 1 and batch == count == 1:
        ((row, index, ids),), tensors = responses[0]
        if kept[row, index] == len(ids):
            return [tensors[name] for name in sorted(names) if name in tensors]
    outputs = []
    for name in sorted(names):
        cells = _cells(responses, name)
        if not cells:
            continue
        columns = count if name in SEQUENCES else 1
        grid = [
            [
                _cell(name, cells.get((row, column)), kept.get((row, column)))
                for column in range(columns)
            ]
            for row in range(batch)
        ]
        array = _stack(grid)
        outputs.append(pb_utils.Tensor(name, array if name in SEQUENCES else array[:, 0]))
    return outputs


def _cells(responses, name):
    cells = {}
    for places, tensors in responses:
        tensor = tensors.get(name)
        if tensor is None:
            continue
        array = tensor.as_numpy()
        width = len(places) // array.shape[0]
        for place, (row, index, _) in enumerate(places):
            if name in SEQUENCES:
                cells.setdefault((row, index), []).append(array[place // width, place % width])
            elif place % width == 0:
                cells.setdefault((row, 0), []).append(array[place // width])
    return cells


def _cell(name, arrays, kept):
    if arrays is None:
        return None
    if name in TOKENS:
        return np.concatenate(arrays)[:kept]
    return sum(arrays[1:], arrays[0]) if name == _COUNT else arrays[-1]


def _stack(grid):
    known = [cell for row in grid for cell in row if cell is not None]
    shape = tuple(max(sizes) for sizes in zip(*(cell.shape for cell in known)))
    out = np.zeros((len(grid), len(grid[0]), *shape), known[0].dtype)
    for i, row in enumerate(grid):
        for j, cell in enumerate(row):
            if cell is not None:
                out[(i, j, *(slice(0, size) for size in cell.shape))] = cell
    return out
