"""The verdict follows from the numbers, and says what they say."""

import pytest

from stages.common.reporting.verdict import sentence

FASTER, SLOWER, UNDECIDED = (1.9, 1.85, 1.95), (0.5, 0.48, 0.52), (1.0, 0.97, 1.03)


def variant(speeds, change=(0.0005, -0.001, 0.002), size=250):
    """Return one variant's results: speeds {batch: (speedup, low, high)}, accuracy change with its interval."""
    keys = ("speedup", "speedup_low", "speedup_high")
    return {
        "verify": {"size_bytes": size, "finite": 1},
        "evaluate": {"images": 10_000}
        | dict(zip(("accuracy_change", "change_low", "change_high"), change, strict=True)),
        "benchmark": {batch: dict(zip(keys, speed, strict=True)) for batch, speed in speeds.items()},
    }


def gained(speeds, change=(0.0005, -0.001, 0.002), *, p):
    """Return a variant with McNemar's p-value."""
    found = variant(speeds, change)
    found["evaluate"]["mcnemar_p"] = p
    return found


DOES_NOT_RUN = {"verify": {"size_bytes": 250, "finite": 0}, "evaluate": {"loads": 0}, "benchmark": {}}


def judge(**variants):
    """Return the verdict on a network with these variants."""
    baseline = {"verify": {"size_bytes": 1000}, "evaluate": {}, "benchmark": {}}
    return sentence("net", {"variants": {"fp32": baseline, **variants}}, list(variants))


def test_a_faster_variant_is_recommended_with_its_numbers():
    assert judge(a=variant({1: FASTER, 32: FASTER})) == (
        "On this machine use `a` for net: 1.9x faster at batch 1 and 1.9x at batch 32, 4.0x smaller and loses no "
        "detectable accuracy on 10,000 images (+0.05 points, 95 % interval -0.10 to +0.20)."
    )


def test_the_fastest_of_the_sound_ones_is_named():
    assert "use `b`" in judge(a=variant({1: FASTER}), b=variant({1: (2.4, 2.3, 2.5)}))


def test_variants_that_cannot_be_told_apart_are_named_and_the_first_is_taken():
    text = judge(a=variant({1: FASTER}), b=variant({1: (1.92, 1.87, 1.97)}), c=variant({1: SLOWER}))
    assert "use `a`" in text and text.endswith("; `b` cannot be told from it in speed.")


def test_what_cannot_be_told_from_the_fastest_may_be_slower_than_what_is_named():
    """`c` is the fastest on average and its interval is wide: `a` overlaps it, but `b` is faster than `a` for certain."""
    text = judge(a=variant({1: (1.65, 1.5, 1.8)}), b=variant({1: (2.15, 1.9, 2.4)}), c=variant({1: (2.4, 1.75, 3.2)}))
    assert "use `b`" in text and text.endswith("; `c` cannot be told from it in speed.") and "`a`" not in text


def test_of_those_that_cannot_be_told_apart_the_clearly_smallest_is_taken():
    alike = (1.92, 1.87, 1.97)
    text = judge(a=variant({1: FASTER}), b=variant({1: alike}, size=200), c=variant({1: alike}, size=198))
    assert "use `b`" in text and text.endswith("; `a` and `c` cannot be told from it in speed.")
    assert "use `a`" in judge(a=variant({1: FASTER}), b=variant({1: alike}, size=248)), "about equal: the first"
    assert "use `a`" in judge(a=variant({1: FASTER}), b=variant({1: (1.5, 1.45, 1.55)}, size=100)), "not as fast"


def test_what_has_not_the_best_time_is_not_called_the_fastest():
    worse, better = variant({1: (0.5, 0.48, 0.52)}), variant({1: (0.51, 0.49, 0.53)})
    assert ": `a`, among the fastest, is 2.0x slower" in judge(a=worse, b=better)
    assert ": the fastest, `a`, is 2.0x slower" in judge(a=better, b=worse)
    assert ": the fastest, `a`, is" in judge(a=worse, b=worse), "nothing is better"


def test_a_variant_that_is_faster_somewhere_is_told_where_the_best_on_average_is_not():
    """`a` is the fastest on average, and nothing is shown of it; `b` is faster than fp32 at batch 32 for certain."""
    slow, surely = (0.80, 0.78, 0.82), (1.10, 1.08, 1.12)
    best, other = variant({1: (1.02, 0.97, 1.07), 32: (1.05, 0.95, 1.15)}), variant({1: slow, 32: surely})
    assert judge(a=best, b=other).startswith(
        "For net int8 pays at some batch sizes and in some files only: `b` is 1.2x slower at batch 1 and 1.1x faster at "
        "batch 32; on average `a` is the fastest: undecided at batches 1 and 32 (0.95x to 1.15x), 4.0x smaller and loses no"
    )
    lossy = variant({1: slow, 32: surely}, change=(-0.03, -0.04, -0.02))
    assert judge(a=best, b=lossy).startswith("For net no difference in speed can be shown: `a`"), "it is not sound"
    slower = variant({1: (1.3, 1.25, 1.35), 32: (0.80, 0.78, 0.82)})
    text = judge(a=slower, b=other)
    assert text.startswith("For net int8 pays at some batch sizes only: `a` is 1.3x faster at batch 1 but 1.2x slower")
    assert text.endswith("; `b` is 1.2x slower at batch 1 and 1.1x faster at batch 32.")


def test_undecided_batch_sizes_are_told_together():
    speeds = {1: UNDECIDED, 4: UNDECIDED, 8: (1.01, 0.95, 1.08), 32: FASTER}
    assert "`a` is 1.9x faster at batch 32 but undecided at batches 1, 4 and 8 (0.95x to 1.08x), 4.0x" in judge(
        a=variant(speeds)
    )


def test_a_variant_that_is_the_same_file_is_said_to_be_that():
    """It was timed once: two results of one file would differ by noise alone."""
    copy = variant({1: FASTER}) | {"same_file_as": "a"}
    text = judge(a=variant({1: FASTER}), b=variant({1: (1.92, 1.87, 1.97)}), tuned=copy)
    assert text.endswith("; `tuned` is the same file; `b` cannot be told from it in speed.")


def test_a_fast_variant_that_loses_accuracy_is_not_recommended():
    lossy = variant({1: (9.0, 8.9, 9.1)}, change=(-0.03, -0.04, -0.02))
    assert judge(a=variant({1: FASTER}), b=lossy).startswith("On this machine use `a` for net: 1.9x faster at batch 1")
    assert "; `b` is 9.0x faster at batch 1 but loses accuracy on 10,000 images (-3.00 points" in judge(
        a=variant({1: FASTER}), b=lossy
    )
    assert "`b`" not in judge(a=variant({1: FASTER}), b=variant({1: SLOWER}, change=(-0.03, -0.04, -0.02)))


def test_a_file_that_is_timed_at_fewer_batch_sizes_is_held_against_what_was_timed():
    lossy = variant({1: (9.0, 8.9, 9.1), 32: (9.0, 8.9, 9.1)}, change=(-0.03, -0.04, -0.02))
    assert "`b`" not in judge(a=variant({1: FASTER}), b=lossy)


def test_a_small_difference_has_the_digits_to_show_it():
    text = judge(a=variant({1: (1.02, 1.01, 1.03), 32: (0.962, 0.95, 0.97)}, size=980))
    assert "`a` is 1.02x faster at batch 1 but 1.04x slower at batch 32, 1.02x smaller" in text


def test_int8_that_is_slower_buys_size_only():
    assert judge(a=variant({1: SLOWER, 32: SLOWER})).startswith(
        "For net int8 buys size, not speed, on this machine: the fastest, `a`, is 2.0x slower at batch 1 and 2.0x at batch 32"
    )


def test_where_int8_buys_size_the_smallest_file_is_named_too():
    text = judge(a=variant({1: SLOWER}), b=variant({1: (0.4, 0.39, 0.41)}, size=125))
    assert "the fastest, `a`" in text and "; the smallest, `b`, is 8.0x smaller and loses no detectable" in text
    assert "smallest" not in judge(a=variant({1: SLOWER}), b=variant({1: (0.4, 0.39, 0.41)}, size=248))


def test_speed_at_some_batch_sizes_is_said_as_that():
    text = judge(a=variant({1: SLOWER, 32: FASTER}))
    assert text.startswith("For net int8 pays at some batch sizes only: `a` is 1.9x faster at batch 32 but 2.0x slower")


def test_an_undecided_speed_is_no_recommendation():
    text = judge(a=variant({1: UNDECIDED}))
    assert text.startswith("For net no difference in speed can be shown: `a` is undecided at batch 1 (0.97x to 1.03x)")


def test_nothing_that_runs_means_keep_fp32():
    assert judge(a=DOES_NOT_RUN) == "No int8 file of net runs on this onnxruntime: keep fp32."


def test_when_all_lose_accuracy_the_least_loss_is_named():
    losses = {name: variant({1: FASTER}, (-loss, -loss - 0.01, -0.001)) for name, loss in (("a", 0.05), ("b", 0.02))}
    text = judge(**losses)
    assert text.startswith("Every int8 file of net loses accuracy, `b` the least with -2.00 points")


def test_a_file_that_does_not_run_does_not_spoil_the_verdict():
    assert "use `a`" in judge(a=variant({1: FASTER}), b=DOES_NOT_RUN)


@pytest.mark.parametrize(("size", "words"), [(250, "4.0x smaller"), (1030, "1.03x larger")])
def test_a_larger_int8_file_is_said_to_be_larger(size, words):
    assert words in judge(a=variant({1: FASTER}, size=size))


def test_a_gain_is_said_as_one_if_it_is_more_than_the_luck_of_the_best_of_so_many():
    """An interval above zero happens to one harmless recipe in forty, so to one of eight in every fifth network."""
    gain, others = (0.003, 0.001, 0.005), {name: gained({1: SLOWER}, p=0.9) for name in "bcde"}
    assert "even gains accuracy" in judge(a=gained({1: FASTER}, gain, p=0.004), **others)
    assert "loses no detectable accuracy" in judge(a=gained({1: FASTER}, gain, p=0.02), **others)
    assert "even gains accuracy" in judge(a=gained({1: FASTER}, gain, p=0.02))
    assert "gains" not in judge(a=gained({1: FASTER}, (-0.003, -0.005, 0.001), p=0.004))


def test_a_copy_of_fp32_is_no_variant_to_recommend():
    """`tuned` is one where no recipe is better."""
    copied = variant({1: UNDECIDED}, change=(0.0, -0.001, 0.001), size=1000)
    copied["evaluate"]["max_abs_logit_difference"] = 0.0
    assert "`a`" in judge(a=variant({1: SLOWER}), tuned=copied) and "tuned" not in judge(
        a=variant({1: SLOWER}), tuned=copied
    )
    assert judge(tuned=copied) == "No int8 file of net is better than fp32, of which `tuned` is a copy: keep fp32."
