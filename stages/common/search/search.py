"""The search for the fastest recipe: cheap screening first, then interleaved rounds for what is close, then accuracy.

Screening times a few calls of one session beside as many of fp32, to see what is worth more. It goes by one direction
at a time: the types, then which layers stay in floating point (a profile says which are slower in integers), then
everything else about the best so far, then single layers. What is close to the best is raced in interleaved rounds with
new sessions, in ever smaller fields; the fastest whose accuracy holds meets the best hand-written recipe and fp32 in
rounds that were used for no choice, so that the winner's interval is honest.
"""

import itertools
from dataclasses import replace

import numpy as np

from stages.common import timing
from stages.common.profiling.optimized_graph import group_layers, map_nodes, save_optimized
from stages.common.profiling.profile import measure_profiles
from stages.common.search.points import (
    BEHIND,
    FAILED,
    HAND_WRITTEN,
    INACCURATE,
    NOT_REACHED,
    SAME_FILE,
    SEARCHED,
    Point,
)
from stages.common.search.space import TYPES, Shape
from stages.common.session.runtime import open_session
from stages.common.statistics.intervals import ratio_interval
from stages.common.workspace import UserError

SCREENING_SHARE, RACING_SHARE = 0.35, 0.12  # of the budget: from the start on; for itself
GROUP_SECONDS = 0.03  # of the calls of a screened file, and of fp32's beside it
FEWEST_CALLS, MOST_CALLS = 4, 200
PROFILE_ROUNDS = 3
FIELD, CLOSE = 8, 1.25  # how many are raced at most, and how much slower than the best in the screening
FEWEST_RACED = 4  # however far behind: the best may owe its place to a call of fp32's that was disturbed
FEWEST_ROUNDS, MOST_ROUNDS = 5, 20
TIE = 1.02  # of the best's time: for what is nearer a smaller file, or a simpler recipe, is worth more


class Screening:
    """Builds and times points one by one; `points` are all of them in order."""

    def __init__(self, builder, fp32_path, values, *, threads, clock, by_size=False):
        self.builder, self.values, self.threads, self.clock, self.by_size = builder, values, threads, clock, by_size
        self.fp32_path, self.points, self.shapes = fp32_path, [], {}
        self.fp32 = open_session(fp32_path, threads=threads)
        timing.time_calls(self.fp32, values, 2)
        self.call_seconds = min(timing.time_calls(self.fp32, values, FEWEST_CALLS)) / 1e9

    def score(self, point):
        """Return what is made small: the time or the size; infinite if the point is out."""
        point = point and (point.twin or point)
        if point is None or point.outcome:
            return np.inf
        return point.size_bytes if self.by_size else point.screened

    def image_seconds(self):
        """Return the seconds that an image takes in fp32 and in the fastest file."""
        fastest = min((point.screened for point in self.points if point.screened), default=1.0)
        own = self.call_seconds / len(self.values)
        return own, fastest * own

    def try_recipe(self, name, origin, recipe, shape=None, until=SCREENING_SHARE):
        """Build, load and time a recipe; return its Point, dropped with a reason where that is not possible."""
        point = Point(name, origin, self.builder.spelled_out(recipe), shape=shape)
        self.points.append(point)
        if self.clock.left(until) < 0:
            return point.drop(NOT_REACHED, "not reached in the time for screening")
        self.clock.show(f"screening, {len(self.points)} recipes")
        try:
            point.twin = self.builder.build(point)
            if point.twin is not None:
                return point.drop(SAME_FILE, f"the same file as {point.twin.name}")
            self._time(point)
        except Exception as error:
            point.drop(FAILED, f"does not work: {' '.join(str(error).split())[:160]}")
        return point

    def try_shape(self, space, shape):
        """Try a shape of the space once; return its Point, None if it is not valid."""
        if not space.valid(shape):
            return None
        key = str(space.recipe(shape))
        if key not in self.shapes:
            self.shapes[key] = self.try_searched(space.recipe(shape), shape)
        return self.shapes[key]

    def try_searched(self, recipe, shape, until=SCREENING_SHARE):
        """Try a recipe of the search's own, which gets the next number."""
        number = 1 + sum(point.origin == SEARCHED for point in self.points)
        return self.try_recipe(f"searched-{number:02}", SEARCHED, recipe, shape, until)

    def _time(self, point):
        """Time calls of a new session between calls of fp32's; what else the machine does slows both."""
        start = self.clock.spent()
        session = open_session(point.path, threads=self.threads)
        point.open_seconds = self.clock.spent() - start
        timing.time_calls(session, self.values, 2)
        own, fp32 = [], []
        for _ in range(2):
            fp32 += timing.time_calls(self.fp32, self.values, _calls(self.call_seconds))
            own += timing.time_calls(session, self.values, _calls(min(own, default=0) / 1e9))
        point.call_seconds = min(own) / 1e9
        point.screened = min(own) / min(fp32)


def _calls(seconds):
    return int(np.clip(GROUP_SECONDS / seconds, FEWEST_CALLS, MOST_CALLS)) if seconds else FEWEST_CALLS


def explore(screening, space, hand_written, *, find_slower):
    """Screen the hand-written recipes, {name: recipe}, and the space, one direction after the other.

    `find_slower(point)` returns {layer: microseconds that it takes longer in integers than in floating point}.
    """
    for name, recipe in hand_written.items():
        screening.try_recipe(name, HAND_WRITTEN, recipe)

    def best_of(shapes, start):
        tried = [start, *(screening.try_shape(space, shape) for shape in shapes)]
        return min(tried, key=screening.score)

    best = best_of([Shape(activation, weight) for activation, weight in TYPES], None)
    if screening.score(best) == np.inf:
        return
    slower = find_slower(best) if screening.clock.left(SCREENING_SHARE) > 0 else {}
    best = best_of([replace(best.shape, in_float=layers) for layers in float_sets(space.layers, slower)], best)
    best = best_of(variations(best.shape), best)
    ordered = sorted(space.layers, key=lambda layer: -abs(slower.get(layer, 0)))
    since_better, turn = 0, itertools.cycle(ordered)
    while since_better < len(ordered) and screening.clock.left(SCREENING_SHARE) > 0:
        before, layers = best, toggled(best.shape.in_float, next(turn), space.layers)
        best = best_of([replace(best.shape, in_float=layers)], best)
        since_better = 0 if best is not before else since_better + 1


def float_sets(layers, slower):
    """Return the sets of layers to leave in floating point that are tried first, as tuples in the model's order.

    The ends of the network, the first few layers, and what the profile says is slower in integers, with and without
    single layers between two of those, which would be quantized for themselves.
    """
    slow = tuple(layer for layer in layers if slower.get(layer, 0) > 0)
    filled = tuple(
        layer
        for place, layer in enumerate(layers)
        if layer in slow or (0 < place < len(layers) - 1 and {layers[place - 1], layers[place + 1]} <= set(slow))
    )
    sets = [layers[:1], layers[-1:], [layers[0], layers[-1]], slow, filled, layers[:2], layers[:3]]
    return [chosen for chosen in dict.fromkeys(tuple(dict.fromkeys(chosen)) for chosen in sets) if chosen]


def variations(shape):
    """Return what else can be changed about a shape, one thing at a time."""
    return [
        replace(shape, float_output=not shape.float_output),
        replace(shape, quant_format="QOperator", float_output=False),
        replace(shape, per_channel=not shape.per_channel),
        replace(shape, swap=not shape.swap),
        *(replace(shape, activation_type=activation, weight_type=weight) for activation, weight in TYPES),
    ]


def toggled(chosen, layer, layers):
    """Return the layers in floating point with one more or one less, in the model's order."""
    return tuple(name for name in layers if (name in chosen) != (name == layer))


def slower_in_integers(point, fp32_path, space, values, folder, *, threads, seconds):
    """Return {layer: microseconds a call that it takes longer in a point's file than in fp32}, from both profiles.

    A layer is counted with the nodes that only it feeds, and with the conversions around them.
    """
    paths = {"fp32": fp32_path, point.name: point.path}
    graphs = {name: save_optimized(path, folder / "optimized.tmp", threads=threads) for name, path in paths.items()}
    nodes = {name: map_nodes(graph, space.original) for name, graph in graphs.items()}
    layers = group_layers(space.original, nodes.values())
    profiles, _ = measure_profiles(
        paths, graphs, {len(values): values}, rounds=PROFILE_ROUNDS, seconds=seconds, threads=threads
    )
    times = {}
    for name in paths:
        for node, column in zip(nodes[name], profiles[name, len(values)].nodes.T, strict=True):
            origin = layers.get(node.origin, node.origin)
            times[name, origin] = times.get((name, origin), 0.0) + float(np.median(column))
    found = {}
    for layer in space.layers:
        parts = {layers[node] for node in space.own_nodes(layer)}
        found[layer] = sum(times.get((point.name, part), 0.0) - times.get(("fp32", part), 0.0) for part in parts)
    return found


def field_of(screening):
    """Return the points to be raced: the best of the screening that are close, and the best hand-written one."""
    alive = sorted((point for point in screening.points if not point.outcome), key=screening.score)
    field = []
    for point in alive:
        if len(field) >= FIELD:
            point.drop(BEHIND, f"not among the {FIELD} best of the screening")
        elif len(field) >= FEWEST_RACED and screening.score(point) > CLOSE * screening.score(alive[0]):
            point.drop(
                BEHIND, f"{screening.score(point) / screening.score(alive[0]):.2f} times the best of the screening"
            )
        else:
            field.append(point)
    return field


def race(field, fp32_path, values, *, clock, threads):
    """Time a field of points in interleaved rounds, and drop what is slower for certain, until one or a tie is left.

    Fills in `raced`. Half of the field goes after every heat at the latest, but for ties; rounds of all heats count for
    who is left.
    """
    logs = {point: [] for point in field}
    until = clock.spent() / clock.seconds + RACING_SHARE
    heats = max(1, int(np.ceil(np.log2(max(len(field), 2)))))
    for heat in range(heats):
        clock.show(f"racing {len(field)} files")
        seconds = max(0.0, clock.left(until)) / (heats - heat)
        medians = timed_rounds(field, fp32_path, values, seconds=seconds, threads=threads, seed=heat)
        for point in field:
            logs[point] += list(np.log(medians[point.name] / medians["fp32"]))
            point.raced = ratio_interval(np.exp(logs[point]))
        field.sort(key=lambda point: point.raced[0])
        best = field[0]
        for place, point in enumerate(list(field[1:]), 1):
            ratio, low, _ = ratio_interval(np.exp(np.array(logs[point]) - np.array(logs[best])))
            if low > TIE:
                point.drop(BEHIND, f"{ratio:.2f} times {best.name} in the race, for certain")
            elif heat < heats - 1 and place >= max(2, len(field) // 2) and ratio > TIE:
                point.drop(BEHIND, f"{ratio:.2f} times {best.name} in the race, in the slower half")
            if point.outcome:
                field.remove(point)
        if len(field) == 1:
            break
    return by_simplicity(field)


def by_simplicity(field):
    """Return raced points, fastest first, but of those that tie with the fastest the smallest and simplest first.

    Sizes that differ by less than a tenth or so are equal.
    """
    best, smallest = min(point.raced[0] for point in field), min(point.size_bytes for point in field)

    def worth(point):
        return round(5 * point.size_bytes / smallest), point.complexity(), point.raced[0]

    tied = [point for point in field if point.raced[0] <= TIE * best]
    rest = [point for point in field if point not in tied]
    return sorted(tied, key=worth) + sorted(rest, key=lambda point: point.raced[0])


def timed_rounds(field, fp32_path, values, *, seconds, threads, seed):
    """Return {name: medians (rounds,) in nanoseconds} of points and "fp32" in interleaved rounds with new sessions."""
    paths = {"fp32": fp32_path} | {point.name: point.path for point in field}
    opening = sum(point.open_seconds for point in field) * (1 + 1 / len(field))
    calling = sum(point.call_seconds for point in field) * (1 + 1 / len(field))
    rounds = int(np.clip(seconds / 2 / (opening + 4 * calling), FEWEST_ROUNDS, MOST_ROUNDS))
    rows = timing.measure(
        paths, {len(values): values}, rounds=rounds, seconds=seconds / 2, threads=threads, warmup_calls=2, seed=seed,
        show_progress=False,
    )  # fmt: skip
    return {name: times for (name, _), times in timing.round_medians(rows).items()}


CALIBRATIONS = (
    {"method": "Percentile", "percentile": 99.99, "symmetric": False},
    {"method": "Entropy"},
)  # that clip outliers; MinMax clips nothing


def repairs(point, space, *, narrow_sums):
    """Return recipes like a searched point's that may lose less accuracy: [(recipe, shape)].

    `narrow_sums`: the processor adds products in 16 bits, where the sums of full 8-bit weights may not fit.
    """
    shape, own = point.shape, point.recipe["calibrate"]
    if shape is None:
        return []
    images = {key: own[key] for key in ("seed", "images", "batch_size")}
    last = tuple(layer for layer in space.layers if layer in (*shape.in_float, space.layers[-1]))
    shapes = [replace(shape, per_channel=True), replace(shape, in_float=last)]
    shapes += [replace(shape, reduce_range=True)] if narrow_sums else []
    found = [(space.recipe(other), other) for other in shapes if other != shape and space.valid(other)]
    return found + [(space.recipe(shape) | {"calibrate": images | how}, shape) for how in CALIBRATIONS]


def first_that_holds(queue, holds, *, repair, rank, clock, until):
    """Return the first point of a queue, best first, for which `holds(point)`; None if there is none.

    `repair(point)` returns points in place of one whose accuracy does not hold; they join the queue by `rank(point)`.
    """
    queue, first = list(queue), True
    while queue and (first or clock.left(until) > 0):
        point, first = queue.pop(0), False
        clock.show(f"accuracy of {point.name}")
        if holds(point):
            return point
        if new := repair(point):
            queue = sorted([*queue, *new], key=rank)
    for point in queue:
        point.drop(NOT_REACHED, "not reached in the time for accuracy")
    return None


class Accuracy:
    """Asks whether a point's accuracy holds: whether it is shown that no more than `max_drop` (a fraction) is lost.

    `compare_file(path)` is the paired comparison with fp32 on validation images. Accuracy holds where the 95 % interval
    of its change lies above the limit, which is a one-sided test at 2.5 %.
    """

    def __init__(self, compare_file, max_drop):
        self.compare_file, self.max_drop = compare_file, max_drop

    def holds(self, point):
        """Return whether a point's accuracy holds; drop the point if it does not. Predicts once a point."""
        if point.judged is None:
            try:
                point.judged = self.compare_file(point.path)
            except UserError as error:  # logits that are not finite
                point.drop(FAILED, f"does not work: {error}")
                return False
        low, change = (100 * point.judged[key] for key in ("change_low", "accuracy_change"))
        if low >= -100 * self.max_drop:
            return True
        point.drop(INACCURATE, f"accuracy {change:+.2f} points, and it could be {low:+.2f}")
        return False


def decide(winner, hand, medians, *, by_size):
    """Return the point to take; None is fp32 itself.

    `medians`: of fresh rounds, {name: (rounds,)} with "fp32". A point has to be faster than fp32 for certain, and the
    winner of the search faster than the best hand-written recipe, which is the simpler one to have. By size, smaller.
    """
    if by_size:
        return min((point for point in (hand, winner) if point), key=lambda point: point.size_bytes, default=None)
    sure = [point for point in (winner, hand) if point and speedup(medians, "fp32", point.name)[1] > 1]
    if winner in sure and hand in sure and winner is not hand and speedup(medians, hand.name, winner.name)[1] <= 1:
        winner.drop(BEHIND, f"not faster than {hand.name} for certain, which is written by hand")
        return hand
    for point in (winner, hand):
        if point and point not in sure:
            point.drop(BEHIND, "not faster than fp32 for certain")
    return sure[0] if sure else None


def speedup(medians, reference, name):
    """Return (speedup, low, high) of a file over another from paired rounds: how many times as fast."""
    return ratio_interval(medians[reference] / medians[name])
