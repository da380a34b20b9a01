"""The race of session options: every option's sessions against the default one, in interleaved rounds."""

import time
from functools import partial

import onnx

from stages.common import timing
from stages.common.search.graph_signature import graph_signature
from stages.common.search.options_to_try import DEFAULT, open_with_option
from stages.common.statistics.intervals import ratio_interval
from stages.common.statistics.multiple import holm, ratio_p

FEWEST_ROUNDS, MOST_ROUNDS = 5, 20
WARMUP_CALLS, CALLS = 2, 4  # CALLS: of a session in a round at least, to see how many rounds there is time for
VISIT_SECONDS = 0.03  # of calls in a round that are enough, where calls are short


class OptionRace:
    """The visits of a race: (file, option's name) with DEFAULT among the names."""

    def __init__(self, files, options, *, threads, folder):
        self.files, self.options, self.threads, self.folder = files, options, threads, folder
        self.visits, self.seconds = {}, {}  # {visit: what opens a session}, {visit: (of opening, of a call)}
        self.idle = {}  # {visit that is not raced: why, as its metrics}

    def look(self, values):
        """Open every session once: which options change the graph, and what does a round cost?"""
        for file, path in self.files.items():
            default = self.signature(partial(open_with_option, None, path))
            for name, option in {DEFAULT: None, **self.options}.items():
                opened = partial(open_with_option, option, path)
                try:
                    if option and option.graph and self.signature(opened) == default:
                        self.idle[file, name] = {"same_graph": 1}
                        continue
                    self.seconds[file, name] = _cost(opened, values, self.threads)
                except Exception:  # onnxruntime has a class for every status; that it does not run is the result
                    if option is None:
                        raise
                    self.idle[file, name] = {"loads": 0}
                    continue
                self.visits[file, name] = opened

    def leave_out(self, file):
        """Race a file no more."""
        self.visits = {visit: opened for visit, opened in self.visits.items() if visit[0] != file}
        self.seconds = {visit: seconds for visit, seconds in self.seconds.items() if visit[0] != file}

    def signature(self, opened):
        """Return the graph_signature of what a session runs."""
        saved = self.folder / "option.tmp"
        opened(threads=self.threads, optimized_model_filepath=str(saved))
        return graph_signature(onnx.load(saved))

    def enough_seconds(self):
        """Return the seconds of MOST_ROUNDS rounds with many calls each, and one to plan the calls."""
        visits = self.seconds.values()
        one = sum(opening + WARMUP_CALLS * call + max(CALLS * call, VISIT_SECONDS) for opening, call in visits)
        return (MOST_ROUNDS + 1) * one

    def affordable_rounds(self, seconds):
        """Return how many rounds there is time for, after one to plan the calls; 0 if they are too few."""
        one = sum(opening + (WARMUP_CALLS + CALLS) * call for opening, call in self.seconds.values())
        rounds = int(seconds / one * (1 + 1e-9)) - 1  # enough_seconds are enough, however they are rounded
        return min(rounds, MOST_ROUNDS) if rounds >= FEWEST_ROUNDS else 0

    def speeds(self, values, *, rounds, seconds, seed):
        """Return {visit: {speedup, speedup_low, speedup_high, holm_p}} of every visit with an option."""
        opening = (rounds + 1) * sum(opening for opening, _ in self.seconds.values())
        rows = timing.measure(
            {f"{file} {name}": opened for (file, name), opened in self.visits.items()}, {len(values): values},
            rounds=rounds, seconds=max(0.0, seconds - opening), threads=self.threads, warmup_calls=WARMUP_CALLS,
            seed=seed, show_progress=False, open_file=lambda opened, threads: opened(threads=threads),
        )  # fmt: skip
        medians = {label: times for (label, _), times in timing.round_medians(rows).items()}
        ratios = {
            (file, name): medians[f"{file} {DEFAULT}"] / medians[f"{file} {name}"]
            for file, name in self.visits
            if name != DEFAULT
        }
        adjusted = holm([ratio_p(found) for found in ratios.values()])
        keys = ("speedup", "speedup_low", "speedup_high")
        return {
            visit: dict(zip(keys, ratio_interval(found), strict=True)) | {"holm_p": p}
            for (visit, found), p in zip(ratios.items(), adjusted, strict=True)
        }

    def opened(self, file):
        """Return {option's name, or DEFAULT: what opens a session} of the visits of a file."""
        return {name: opened for (owner, name), opened in self.visits.items() if owner == file}

    def call_seconds(self, file):
        """Return the seconds of a call in each of a file's visits, all together."""
        return sum(call for (owner, _), (_, call) in self.seconds.items() if owner == file)


def _cost(opened, values, threads):
    """Return (seconds of opening a session, seconds of a call)."""
    start = time.perf_counter()
    session = opened(threads=threads)
    opening = time.perf_counter() - start
    timing.time_calls(session, values, 1)
    return opening, min(timing.time_calls(session, values, 2)) / 1e9
