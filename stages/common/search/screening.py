"""The first look at recipes: a few calls of one session beside as many of fp32, to see what is worth more.

It goes by one direction at a time: the types, then which layers stay in floating point (a profile says which are slower
in integers), then everything else about the best so far, then single layers.
"""

import itertools
from dataclasses import replace

import numpy as np

from stages.common import timing
from stages.common.profiling.optimized_graph import group_layers, map_nodes, save_optimized
from stages.common.profiling.profile import measure_profiles
from stages.common.search.points import FAILED, HAND_WRITTEN, NOT_REACHED, SAME_FILE, SEARCHED, Point
from stages.common.search.space import TYPES, Shape
from stages.common.session.runtime import open_session

SCREENING_SHARE = 0.35  # of the budget, from the start on
GROUP_SECONDS = 0.03  # of the calls of a screened file, and of fp32's beside it
FEWEST_CALLS, MOST_CALLS = 4, 200
PROFILE_ROUNDS = 3


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
                point.twin.shape = point.twin.shape or shape  # a hand-written recipe that the space has, too
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
