#!/usr/bin/env python3
"""Writes scipy.json: fixed series, and their statistics by scipy and numpy.

    python3 make.py > scipy.json
"""
import json

import numpy
import scipy
from scipy import special, stats


def summary(values):
    x = numpy.array(values)
    n, s = len(x), x.std(ddof=1)
    q1, q3 = numpy.percentile(x, [25, 75])
    reach = 1.5 * (q3 - q1)
    return {
        "median": float(numpy.median(x)),
        "mean": float(x.mean()),
        "stddev": float(s),
        "cv": float(stats.variation(x, ddof=1)),
        "half_prediction": float(stats.t.ppf(0.975, n - 1) * s * (1 + 1 / n) ** 0.5),
        "outliers": [int(i) for i in numpy.flatnonzero((x < q1 - reach) | (x > q3 + reach))],
        "percentiles": [float(p) for p in numpy.percentile(x, [50, 90, 99, 99.9])],
    }


def pairs(first, second):
    a, b = numpy.array(first), numpy.array(second)
    n = len(a)
    ratio = b / a
    log = numpy.log(ratio)
    # Confidence interval of the median from order statistics, by inverting the sign test.
    test = stats.quantile_test(ratio, q=numpy.median(ratio), p=0.5)
    ci = test.confidence_interval(0.95)
    k = int(stats.binom.ppf(0.025, n, 0.5))
    inside = not numpy.isnan(ci.low)
    confidence = 1 - 2 * stats.binom.cdf(k - 1 if inside else 0, n, 0.5)
    walsh = [(log[i] + log[j]) / 2 for i in range(n) for j in range(i, n)]
    welch = stats.ttest_ind(b, a, equal_var=False)
    pooled = (((n - 1) * a.var(ddof=1) + (n - 1) * b.var(ddof=1)) / (2 * n - 2)) ** 0.5
    df = 2 * n - 2
    correction = numpy.exp(special.gammaln(df / 2) - special.gammaln((df - 1) / 2)) / (df / 2) ** 0.5
    kendall = stats.kendalltau(numpy.arange(n), log)
    return {
        "median": float(numpy.median(ratio)),
        "low": float(ci.low) if inside else float(ratio.min()),
        "high": float(ci.high) if inside else float(ratio.max()),
        "confidence": float(confidence),
        "hodges_lehmann": float(numpy.exp(numpy.median(walsh))),
        "t": float(welch.statistic),
        "degrees": float(welch.df),
        "p": float(welch.pvalue),
        "hedges": float(correction * (b.mean() - a.mean()) / pooled),
        "slope": float(stats.theilslopes(log).slope),
        "tau": float(kendall.statistic),
        "kendall_p": float(kendall.pvalue),
    }


def case(name, first, second):
    first, second = [[round(float(v), 4) for v in values] for values in (first, second)]
    found = pairs(first, second)
    return {"name": name, "first": first, "second": second, "summary": summary(first), "pairs": found}


random = numpy.random.default_rng(23)


def noisy(n, noise=0.03):
    """Two series of measurements of a machine whose speed is a random walk."""
    walk = 100 * numpy.exp(0.05 * numpy.cumsum(random.normal(size=n)))
    return walk * numpy.exp(noise * random.normal(size=n)), walk * numpy.exp(noise * random.normal(size=n))


def cases():
    for n in (3, 5, 6, 10, 15, 33, 40, 101):
        first, second = noisy(n)
        yield case(f"{n} rounds, 8 % slower", first, 0.92 * second)
    first, second = noisy(20)
    yield case("a drift", first, second * numpy.exp(0.01 * numpy.arange(20)))
    first, second = noisy(12)
    second[3] /= 2
    yield case("one round stolen", first, second)
    yield case("equal ratios", [10, 20, 30, 40, 50, 80], [20, 30, 60, 60, 55, 120])
    first, second = noisy(1200, 0.2)
    yield case("latencies", first, second)


quantiles = {str(n): float(stats.t.ppf(0.975, n)) for n in (1, 2, 3, 5, 9, 10, 29, 31, 60, 120, 1000)}
print(json.dumps({"scipy": scipy.__version__, "student_t_975": quantiles, "cases": list(cases())}))
