"""Calibration batches in pieces that run at the same time."""

from stages.common.session.concurrency import map_in_order
from stages.common.session.model_io import input_of

# Not the number of cores: a tensor without a batch axis is counted once a piece, and the result must not depend on the
# machine. Together the pieces are one batch, so that its size stands for the memory.
PIECES = 4


def map_pieces(function, session, batches, *, whole=False):
    """Yield function(piece) in order for the pieces of all batches, `PIECES` at a time on a thread each.

    A `whole` batch is one piece, and one at a time, as an average over batches needs it. So is a batch that the model
    fixes at more than one image, which cannot be cut.
    """
    _, fixed = input_of(session)
    at_once = PIECES if not whole and fixed in (None, 1) else 1
    yield from map_in_order(function, _cut(batches, fixed, at_once), at_once)


def _cut(batches, fixed, count):
    for batch in batches:
        size = fixed or -(-len(batch) // count)
        yield from (batch[start : start + size] for start in range(0, len(batch), size))
