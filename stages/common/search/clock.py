"""The time that a search may take, and the bar that shows how much of it is gone."""

import time

from tqdm import tqdm


class SearchClock:
    """Counts from when it is made. `seconds`: the whole budget, of which the search has a `share`.

    Of that share, which is `seconds` of the clock, every part of the search has a share in turn.
    """

    def __init__(self, seconds, share=1.0):
        self.seconds, self.start = share * seconds, time.monotonic()
        self.bar = tqdm(
            total=round(seconds), unit="s", mininterval=1, bar_format="{desc}{percentage:3.0f} % of {total} s"
        )

    def spent(self):
        """Return the seconds since the start."""
        return time.monotonic() - self.start

    def left(self, until=1.0):
        """Return the seconds that are left until a share of the budget is gone; negative if it is."""
        return until * self.seconds - self.spent()

    def show(self, doing):
        """Say what is being done."""
        self.bar.set_description(doing, refresh=False)
        self.bar.n = min(round(self.spent()), self.bar.total)
        self.bar.refresh()

    def close(self):
        """Leave the bar as it is."""
        self.bar.close()
