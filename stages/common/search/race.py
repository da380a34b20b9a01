"""Interleaved rounds with new sessions, as the benchmark's: which of the recipes that are close is the fastest?"""

import numpy as np

from stages.common import timing
from stages.common.search.points import BEHIND, HAND_WRITTEN
from stages.common.statistics.intervals import ratio_interval

RACING_SHARE = 0.12  # of the budget
FIELD, CLOSE = 8, 1.25  # how many are raced at most, and how much slower than the best in the screening
HAND_RACED = 2  # of the hand-written ones, in any case: which is the best is no matter of one session
FEWEST_RACED = 4  # however far behind: the best may owe its place to a call of fp32's that was disturbed
FEWEST_ROUNDS, MOST_ROUNDS = 5, 20
FEWEST_LAST_ROUNDS = 8  # four to decide by and four to report, of which a t-interval is still of use
TIE = 1.02  # of the best's time: for what is nearer a smaller file, or a simpler recipe, is worth more


def field_of(screening):
    """Return the points to be raced: the best of the screening that are close, and the best two hand-written ones."""
    alive = sorted((point for point in screening.points if not point.outcome), key=screening.score)
    by_hand = [point for point in alive if point.origin == HAND_WRITTEN][:HAND_RACED]
    field = []
    for point in alive:
        if point in by_hand:
            field.append(point)
        elif len(field) >= FIELD:
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


def timed_rounds(field, fp32_path, values, *, seconds, threads, seed, fewest=FEWEST_ROUNDS):
    """Return {name: medians (rounds,) in nanoseconds} of points and "fp32" in interleaved rounds with new sessions."""
    paths = {"fp32": fp32_path} | {point.name: point.path for point in field}
    opening = sum(point.open_seconds for point in field) * (1 + 1 / len(field))
    calling = sum(point.call_seconds for point in field) * (1 + 1 / len(field))
    rounds = int(np.clip(seconds / 2 / (opening + 4 * calling), fewest, MOST_ROUNDS))
    rows = timing.measure(
        paths, {len(values): values}, rounds=rounds, seconds=seconds / 2, threads=threads, warmup_calls=2, seed=seed,
        show_progress=False,
    )  # fmt: skip
    return {name: times for (name, _), times in timing.round_medians(rows).items()}


def halves(medians):
    """Return (one half of the rounds, the other) of {name: medians (rounds,)}, alternating, so that both saw the same.

    What is decided by the one half is reported by the other: the rounds by which a file was found faster flatter it.
    """
    return tuple({name: times[start::2] for name, times in medians.items()} for start in (0, 1))


def speedup(medians, reference, name):
    """Return (speedup, low, high) of a file over another from paired rounds: how many times as fast."""
    return ratio_interval(medians[reference] / medians[name])
