"""The intervals are the published ones, and they hold what 95 % promises."""

import time

import numpy as np
import pytest
from scipy import optimize, stats

from stages.common.statistics.intervals import (
    accuracy_change_interval,
    least_change,
    mcnemar_p,
    ratio_interval,
    wilson_interval,
)
from stages.common.statistics.multiple import ratio_p
from stages.tools.check_benchmark import allowed_alarms

# (both right, lost, gained, both wrong), limits of the change as printed.
PUBLISHED = [
    ((36, 2, 12, 0), (0.0569, 0.3404)),  # Newcombe 1998, table II
    ((36, 12, 2, 0), (-0.3404, -0.0569)),  # the same, the other way round
    ((1, 7, 1, 12), (-0.507, -0.026)),  # airway hyper-responsiveness: Fagerland, Lydersen and Laake 2014
    ((14, 0, 5, 22), (0.01, 0.23)),  # Altman, Statistics with Confidence 2000, table 6.2
]


def newcombe(both_right, lost, gained, both_wrong):
    """Newcombe's method 10 a second time, from raw pairs, NumPy's correlation and SciPy's Wilson interval."""
    counts = [both_right, lost, gained, both_wrong]
    before, after = np.repeat([[1, 1, 0, 0], [1, 0, 1, 0]], counts, axis=1)
    n, d = len(before), after.mean() - before.mean()
    l1, u1 = stats.binomtest(int(after.sum()), n).proportion_ci(method="wilson")
    l2, u2 = stats.binomtest(int(before.sum()), n).proportion_ci(method="wilson")
    phi = np.corrcoef(before, after)[0, 1]
    shrink = n / 2 / (n * n * before.std() * after.std())  # continuity correction, on the scale of the correlation
    phi = max(phi - shrink, 0) if phi > 0 else phi
    down = [after.mean() - l1, u2 - before.mean()]
    up = [u1 - after.mean(), before.mean() - l2]
    low, high = (np.sqrt(a * a - 2 * phi * a * b + b * b) for a, b in (down, up))
    return d, d - low, d + high


@pytest.mark.parametrize(("counts", "limits"), PUBLISHED)
def test_the_interval_of_a_change_is_the_published_one(counts, limits):
    _, low, high = accuracy_change_interval(*counts)
    places = len(str(limits[1]).split(".")[1])
    assert (round(low, places), round(high, places)) == limits


def test_the_interval_of_a_change_equals_an_independent_implementation():
    random = np.random.default_rng(0)
    for counts in random.integers(1, 60, (200, 4)).tolist():
        np.testing.assert_allclose(accuracy_change_interval(*counts), newcombe(*counts), atol=1e-12)


@pytest.mark.parametrize("counts", [(9000, 0, 0, 1000), (10_000, 0, 0, 0), (0, 10, 0, 0), (0, 0, 10, 0), (0, 0, 0, 1)])
def test_an_interval_is_never_empty_and_stays_within_what_is_possible(counts):
    change, low, high = accuracy_change_interval(*counts)
    assert -1 <= low <= change <= high <= 1 and low < high


def test_wilson_is_scipy_s():
    for successes, trials in ((0, 10), (3, 10), (10, 10), (9012, 10_000)):
        expected = stats.binomtest(successes, trials).proportion_ci(method="wilson")
        np.testing.assert_allclose(wilson_interval(successes, trials), expected, atol=1e-12)


def test_the_least_change_is_the_published_limit_and_without_a_gain_wilson_s():
    """The same data as above, by Tango's interval: Fagerland, Lydersen and Laake 2014. Losses and gains are each other's."""
    assert (round(least_change(7, 1, 21, 0.025), 3), round(-least_change(1, 7, 21, 0.025), 3)) == (-0.517, -0.026)
    for lost, images, chance in ((40, 5000, 0.0125), (0, 700, 0.001), (3, 20, 0.025)):
        low = stats.binomtest(images - lost, images).proportion_ci(1 - 2 * chance, method="wilson").low
        assert least_change(lost, 0, images, chance) == pytest.approx(low - 1, abs=1e-9)
    assert least_change(5, 0, 5, 0.025) == -1


def test_the_least_change_is_where_the_likeliest_variance_rejects():
    """The likelihood of what was lost and gained is made largest numerically, for the change that the limit says."""
    for lost, gained, images, chance in ((40, 13, 5000, 0.0125), (2, 9, 60, 0.003), (18, 1, 600, 0.025)):
        low = least_change(lost, gained, images, chance)

        def unlikely(share, low=low, lost=lost, gained=gained, images=images):
            gains = share + low
            return -(
                lost * np.log(share) + gained * np.log(gains) + (images - lost - gained) * np.log1p(-share - gains)
            )

        share = optimize.minimize_scalar(unlikely, bounds=(max(0, -low) + 1e-9, 0.5), method="bounded", options={"xatol": 1e-12}).x  # fmt: skip
        variance = (2 * share + low - low**2) / images
        z = ((gained - lost) / images - low) / variance**0.5
        assert stats.norm.sf(z) == pytest.approx(chance, rel=1e-4)


def test_the_least_change_is_too_high_no_oftener_than_it_says():
    """Newcombe's is: of 600 images, of which a dozen are lost and hardly one is gained, half as often again."""
    random, images, drop, newcombe_s, tango_s = np.random.default_rng(0), 600, 0.02, 0, 0
    for _ in range(4000):
        right = random.binomial(images, 0.72)
        lost, gained = random.binomial(right, (drop + 0.001) / 0.72), random.binomial(images - right, 0.001 / 0.28)
        counts = right - lost, lost, gained, images - right - gained
        newcombe_s += accuracy_change_interval(*counts)[1] >= -drop
        tango_s += least_change(lost, gained, images, 0.025) >= -drop
    assert tango_s / 4000 <= 0.025 < 0.03 < newcombe_s / 4000


def test_forty_lost_and_twenty_seven_gained_are_not_significant():
    """The claim of a published article: 13 net losses of 10,000 images."""
    assert round(mcnemar_p(40, 27), 2) == 0.14
    low, high = accuracy_change_interval(8800, 40, 27, 1133)[1:]
    assert low < 0 < high


def test_two_trainings_on_a_large_test_set_are_compared_in_no_time():
    """Each binomial coefficient anew took minutes; the p-value is that of the normal distribution by now."""
    start = time.monotonic()
    p = mcnemar_p(25_000, 25_100)
    assert time.monotonic() - start < 10
    assert p == pytest.approx(2 * stats.norm.sf(99 / np.sqrt(50_100)), rel=1e-3)


@pytest.mark.parametrize(
    ("lost", "gained"), [(40, 27), (27, 40), (0, 1), (1, 0), (5, 5), (0, 26), (300, 420), (0, 3000)]
)
def test_mcnemar_is_the_exact_binomial_test(lost, gained):
    expected = stats.binomtest(lost, lost + gained).pvalue
    assert mcnemar_p(lost, gained) == pytest.approx(expected, rel=1e-9)


def test_without_a_change_there_is_no_evidence():
    assert mcnemar_p(0, 0) == 1.0


def test_a_ratio_is_the_geometric_mean_and_its_interval_student_s():
    ratios = np.array([1.1, 1.3, 0.9, 1.2])
    interval = stats.ttest_1samp(np.log(ratios), 0).confidence_interval(0.95)
    np.testing.assert_allclose(ratio_interval(ratios), [stats.gmean(ratios), *np.exp(interval)])


def test_the_interval_of_a_ratio_holds_the_truth_95_times_in_a_hundred():
    random = np.random.default_rng(0)
    ratios = 1.7 * np.exp(random.normal(0, 0.05, (2000, 20)))
    covered = np.mean([low <= 1.7 <= high for _, low, high in map(ratio_interval, ratios)])
    assert 0.935 < covered < 0.965


@pytest.mark.parametrize("sizes", [1, 2, 3])
def test_a_benchmark_with_honest_intervals_passes_its_check_at_all_batch_sizes(sizes):
    allowed = allowed_alarms(40, sizes)
    alarms = np.random.default_rng(1).binomial(40, 0.05, (20_000, sizes)).max(axis=1)
    assert (alarms <= allowed).mean() > 0.975 > (alarms <= allowed - 1).mean()


def test_a_drift_that_both_share_leaves_the_ratio_alone():
    """A processor that gets slower hits both variants of a round."""
    random = np.random.default_rng(2)
    fp32, int8 = np.exp(random.normal(0, 0.02, (2, 20))) * [[2.0], [1.0]]
    drift = np.linspace(1, 3, 20)
    np.testing.assert_allclose(ratio_interval(fp32 * drift / (int8 * drift)), ratio_interval(fp32 / int8))


def test_one_bad_round_widens_the_interval_and_keeps_the_truth_in_it():
    ratios = 2 * np.exp(np.random.default_rng(3).normal(0, 0.01, 20))
    _, low, high = ratio_interval(ratios)
    _, low_bad, high_bad = ratio_interval([*ratios[:-1], 0.7])
    assert high_bad - low_bad > 3 * (high - low) and low_bad < 2 < high_bad


def test_one_round_has_no_spread():
    with pytest.raises(ValueError, match="an interval needs at least two rounds"):
        ratio_interval([1.2])


def test_the_p_value_of_a_ratio_is_that_of_the_t_test_and_agrees_with_the_interval():
    random = np.random.default_rng(3)
    for shift in (0.0, 0.01, 0.05):
        ratios = np.exp(random.normal(shift, 0.02, 12))
        assert ratio_p(ratios) == pytest.approx(stats.ttest_1samp(np.log(ratios), 0).pvalue)
        _, low, high = ratio_interval(ratios)
        assert (ratio_p(ratios) < 0.05) == (not low < 1 < high)
    assert ratio_p([1.0, 1.0]) == 1 and ratio_p([2.0, 2.0]) == 0
