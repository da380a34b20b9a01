"""Calls at the same time give what calls one after the other give, in the same order and in bounded memory."""

import threading
import time

import pytest

from stages.common.session.concurrency import map_in_order


def test_results_come_in_order_however_long_each_takes():
    def slow_at_first(item):
        time.sleep(0.02 if item == 0 else 0)
        return item * item

    assert list(map_in_order(slow_at_first, range(9), 4)) == [item * item for item in range(9)]


def test_several_run_at_the_same_time():
    meeting = threading.Barrier(3, timeout=20)
    assert list(map_in_order(lambda item: meeting.wait() >= 0, range(6), 3)) == [True] * 6


def test_no_more_than_one_item_is_read_beyond_those_that_run():
    """Items are batches of images: all of them would not fit into memory."""
    read, done = [], []

    def items():
        for item in range(50):
            read.append(item)
            assert len(read) - len(done) <= 2 + 2, "the consumer has one, two run and one waits"
            yield item

    for found in map_in_order(lambda item: item, items(), 2):
        done.append(found)
    assert done == list(range(50))


def test_a_failing_call_is_raised_where_its_result_would_have_come():
    results = map_in_order(lambda item: 1 // (2 - item), range(5), 2)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)
