"""What a tool prints, which `head` or a pager may stop reading."""

import os
import sys


def print_to_reader(text):
    """Print a text; nothing happens if its reader has closed the pipe."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is left in the buffer would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
