"""Ranges from histograms of activations: onnxruntime's threshold searches over histograms with fixed edges.

onnxruntime's own collector takes its edges from the first batch that it sees, or else needs all activations of all
images in memory. Here the images are run twice: the first pass finds the ends of every tensor's histogram, the second
fills it. The result is what onnxruntime's calibrator finds on all images as one batch, however they are cut, and memory
depends on the batch only.
"""

import contextlib
import io

import numpy as np
from onnxruntime.quantization.calibrate import HistogramCollector, entropy
from onnxruntime.quantization.quant_utils import smooth_distribution

from stages.common.calibration.pieces import map_pieces
from stages.common.session.model_io import run
from stages.common.workspace import UserError


def histogram_ranges(calibrator, batches):
    """Return {tensor: (lowest, highest)} as an Entropy or Percentile calibrator of onnxruntime finds them.

    `batches()` gives the model's input batch by batch, and is called twice.
    """
    absolute = calibrator.method == "percentile" and calibrator.symmetric
    extents = find_extents(calibrator, batches(), absolute=absolute)
    search = ThresholdSearch(
        method=calibrator.method,
        symmetric=calibrator.symmetric,
        num_bins=calibrator.num_bins,
        num_quantized_bins=calibrator.num_quantized_bins,
        percentile=calibrator.percentile,
        scenario=calibrator.scenario,
    )
    search.histogram_dict = fill_histograms(calibrator, batches(), extents, absolute=absolute)
    with contextlib.redirect_stdout(io.StringIO()):  # its progress messages
        found = search.compute_collection_result()
    return {tensor: thresholds[:2] for tensor, thresholds in found.items()}


def check_range(tensor, bounds):
    """Raise UserError if the range of a tensor is not finite."""
    if not np.isfinite(bounds).all():
        raise UserError(
            f"tensor {tensor!r} is not finite on the calibration images: look for an overflow or a division by zero in the model."
        )


def _of_activations(calibrator, batches, function):
    """Yield {tensor: function(tensor, values)} for every piece of the batches."""
    session, tensors = calibrator.infer_session, sorted(calibrator.tensors_to_calibrate)

    def of_piece(piece):
        [values] = run(session, piece, tensors)
        return {tensor: function(tensor, found) for tensor, found in zip(tensors, values, strict=True)}

    yield from map_pieces(of_piece, session, batches)


def find_extents(calibrator, batches, *, absolute):
    """Return {tensor: (lowest, highest, first edge, last edge)}, float32.

    The edges are where onnxruntime puts them: symmetric around zero, or, for histograms of absolute values, from the
    smallest to the largest of these.
    """

    def bounds(tensor, values):
        smallest = np.abs(values).min() if absolute else np.float32(0)
        found = values.min(), values.max(), smallest
        check_range(tensor, found[:2])
        return found

    found = {}
    for of_piece in _of_activations(calibrator, batches, bounds):
        for tensor, (lowest, highest, smallest) in of_piece.items():
            low, high, small = found.get(tensor, (np.inf, -np.inf, np.inf))
            found[tensor] = min(low, lowest), max(high, highest), min(small, smallest)
    extents = {}
    for tensor, (lowest, highest, smallest) in found.items():
        largest = max(abs(lowest), abs(highest))
        extents[tensor] = (lowest, highest, smallest if absolute else -largest, largest)
    return extents


def fill_histograms(calibrator, batches, extents, *, absolute):
    """Return {tensor: (counts int64, edges float32, lowest, highest)}, which is how onnxruntime keeps them."""

    def histogram(tensor, values):
        return np.histogram(np.abs(values) if absolute else values, bins=calibrator.num_bins, range=extents[tensor][2:])

    counts, edges = {}, {}
    for of_piece in _of_activations(calibrator, batches, histogram):
        for tensor, (counted, edges[tensor]) in of_piece.items():
            counts[tensor] = counts.get(tensor, 0) + counted
    return {tensor: (counts[tensor], edges[tensor], *extents[tensor][:2]) for tensor in counts}


class ThresholdSearch(HistogramCollector):
    """onnxruntime's searches, with the entropy search's sums over bins done by NumPy: the same result, sooner.

    A tensor with 2,048 bins takes onnxruntime 0.7 s, of which nearly all goes into Python's own `sum`.
    """

    def get_entropy_threshold(self, histogram, num_quantized_bins):
        """Return the (lowest, highest) whose quantized histogram diverges least from the histogram it clips."""
        counts, edges, lowest, highest = histogram
        zero, below = counts.size // 2, np.concatenate([[0], np.cumsum(counts)])
        best, chosen = None, None
        for half in range(num_quantized_bins // 2, zero + 1):
            start, end = zero - half, min(zero + half + 1, counts.size)
            clipped = counts[start:end].copy()
            clipped[0] += below[start]
            clipped[-1] += below[-1] - below[end]
            divergence = _divergence(clipped, counts[start:end], num_quantized_bins)
            if best is None or divergence < best:
                best, chosen = divergence, (edges[start], edges[end])
        return max(chosen[0], lowest), min(chosen[1], highest)


def _divergence(clipped, inside, num_quantized_bins):
    """Return the divergence of `inside`, merged into quantized bins and spread out again, from `clipped`, both counts."""
    width = inside.size // num_quantized_bins
    whole = num_quantized_bins * width  # the last quantized bin gets what is left over, as in onnxruntime
    quantized = np.add.reduceat(inside, np.arange(0, whole, width))
    used = np.count_nonzero(clipped[:whole].reshape(num_quantized_bins, width), axis=1)
    spread = np.zeros_like(inside)
    spread[:whole] = np.repeat(np.where(used > 0, quantized / np.maximum(used, 1), 0).astype(np.int64), width)
    expected, found = smooth_distribution(clipped), smooth_distribution(spread)
    return np.inf if expected is None or found is None else entropy(expected, found)
