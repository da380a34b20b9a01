"""Threads of sessions against the cores of this machine: more of them only wait for each other, and times mean nothing."""

import os

PARALLEL_CALLS = 2  # `evaluate.threads` that any machine may have: it is speed only, and no time is measured there


def threads_of_sessions(params, cores=None):
    """Yield where more threads are asked for than there are logical cores. `train.threads` is part of a result: left out."""
    cores = cores or os.cpu_count() or 1
    for section, most in (("benchmark", cores), ("evaluate", max(cores, PARALLEL_CALLS))):
        threads = params[section]["threads"]
        if threads > most:
            yield f"`{section}.threads` is {threads}, and this machine has {cores} logical core{'s' * (cores > 1)}: write {most} at most"
