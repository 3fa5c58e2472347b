"""Stages of the density of `step_model`, compiled: each one function forwards, and its adjoint backwards.

T_gpu, what each cell says of its floor, floors from ``z``; `density` puts them together. `packing.Tables` says what the
arrays mean. An adjoint takes the derivatives of the density by what a stage returns (``d_``) and adds to those by what
it took. numba keeps the compiled code on disk: a later process loads it in a fraction of a second.
"""

import math
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numba import config, njit

from rooffloor.models.inference.packing import NO_OVERLAP

type Function = Callable[..., Any]

LOG_TWO_PI = math.log(2.0 * math.pi)


@cache
def _cache_folder(base: str) -> str:
    """Where compiled code is kept: by the text of all files that it is made of.

    numba looks at the file of the function itself alone, and would run old code of what that calls.
    """
    here = Path(__file__)
    files = [here.with_name(f"{name}.py") for name in ("packing", "density_stages", "density", "native")]
    files.append(here.parent.with_name("floor") / "structures.py")
    digest = sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    return str(Path(base or here.with_name("__pycache__")) / f"density-{digest}")


def cached(make: Function, function: Function, **options: Any) -> Any:
    """`make(**options)(function)` with its compiled code kept on disk, wherever there is a place for it."""
    settings: Any = config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = _cache_folder(before)
    try:
        return make(cache=True, **options)(function)
    except RuntimeError:  # no folder for it that can be written
        return make(**options)(function)
    finally:
        settings.CACHE_DIR = before


def compiled(function: Function) -> Any:
    """`function` in machine code, outside Python's lock."""
    return cached(njit, function, nogil=True, error_model="numpy")


@compiled
def log_sigmoid(x):
    """Logarithm of 1 / (1 + exp(-x))."""
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


@compiled
def logit_beta(x, shapes, grad):
    """Log density of a Beta on the logit scale, [set]; adds its derivative to `grad`."""
    a, b = shapes
    total = x.size * (math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
    for i in range(x.size):
        upper = log_sigmoid(x[i])
        total += a * upper + b * (upper - x[i])
        grad[i] += a - (a + b) * math.exp(upper)
    return total


@compiled
def uniform_logit(x, grad):
    """Log density of a uniform on (0, 1) on the logit scale; of (0, upper) it is the same."""
    total = 0.0
    for i in range(x.size):
        upper = log_sigmoid(x[i])
        total += 2.0 * upper - x[i]
        grad[i] += 1.0 - 2.0 * math.exp(upper)
    return total


@compiled
def normal(x, mean, sd, grad):
    """Log density of independent normals: of logarithms for log-normal parameters."""
    total = -x.size * (0.5 * LOG_TWO_PI + math.log(sd))
    for i in range(x.size):
        z = (x[i] - mean) / sd
        total -= 0.5 * z * z
        grad[i] -= z / sd
    return total


@compiled
def log_gamma(x, shape, rate, grad):
    """Log density of independent Gammas at their logarithms x; adds its derivative to `grad`."""
    total = x.size * (shape * math.log(rate) - math.lgamma(shape))
    for i in range(x.size):
        scaled = rate * math.exp(x[i])
        total += shape * x[i] - scaled
        grad[i] += shape - scaled
    return total


@compiled
def half_normal(x, scale, grad):
    """Log density of a half-normal scale at its logarithm x."""
    z = math.exp(x) / scale
    return 0.5 * math.log(2.0 / math.pi) - math.log(scale) - 0.5 * z * z + x, grad + 1.0 - z * z


@compiled
def half_t(x, scale, grad):
    """Log density of a half-t scale with 3 degrees of freedom at its logarithm x."""
    z2 = (math.exp(x) / scale) ** 2 / 3.0
    constant = math.log(2.0) + math.lgamma(2.0) - math.lgamma(1.5) - 0.5 * math.log(3.0 * math.pi)
    return constant - math.log(scale) - 2.0 * math.log1p(z2) + x, grad + 1.0 - 4.0 * z2 / (1.0 + z2)


@compiled
def digamma(x):
    """Derivative of the logarithm of the gamma function, x > 0."""
    total = 0.0
    while x < 12.0:
        total -= 1.0 / x
        x += 1.0
    r = 1.0 / (x * x)
    series = r * (1 / 12 - r * (1 / 120 - r * (1 / 252 - r * (1 / 240 - r * (1 / 132 - r * (691 / 32760 - r / 12))))))
    return total + math.log(x) - 0.5 / x - series


# ---- T_gpu ----------------------------------------------------------------------------------------------------------


@compiled
def gpu_branch(t, c, branch, partial):
    """T_gpu [cell] and its derivatives `partial` [6, cell] by the constants `c` [6, set], in the order of x."""
    times = t.times
    for i in range(t.measured.size):
        s = t.constants_of[i]
        tc, bw, fa = 1.0 / c[2, s], 1.0 / c[0, s], 1.0 / c[1, s]
        half = c[3, s]
        total = compute = stream = kv = token = query = launches = 0.0
        for k in range(times.shape[2]):
            limb = times[0, i, k] * tc
            by_kv = times[2, i, k] + half * times[3, i, k]
            memory = times[1, i, k] * bw + by_kv * fa
            by_query = times[4, i, k] / c[4, s] if t.query else 0.0
            if t.query and by_query > limb and by_query > memory:
                total += by_query
                query += times[4, i, k]
            elif limb > memory:
                total += limb
                compute += times[0, i, k]
            else:
                total += memory
                stream += times[1, i, k]
                kv += by_kv
                token += times[3, i, k]
            launches += times[5, i, k]
        if t.latency:
            total += c[5, s] * launches
        branch[i] = total
        partial[0, i] = -stream * bw * bw
        partial[1, i] = -kv * fa * fa
        partial[2, i] = -compute * tc * tc
        partial[3, i] = token * fa
        partial[4, i] = -query / c[4, s] ** 2 if t.query else 0.0
        partial[5, i] = launches


# ---- what each cell says of its floor -------------------------------------------------------------------------------


@compiled
def guess(t, branch, relative, absolute, q, growth, host, weight, value):
    """Precision and value of each cell's floor, as `step_model._guess` has them."""
    for i in range(t.measured.size):
        y = t.measured[i]
        variance = absolute * absolute + (relative[t.model[i]] * y) ** 2 + t.known_sd[i] ** 2
        if t.q_mode == NO_OVERLAP:
            weight[i] = 1.0 / variance
            value[i] = y - branch[i] - growth[i]
            continue
        qi = t.overlap_free[i] * q + (1.0 - t.overlap_free[i]) * t.overlap[i]
        sd = math.sqrt(variance)
        power = max(qi, 0.1)
        beyond = 1.0 - math.exp(min((math.log(branch[i]) - math.log(y)) / power, 5.0))
        share = 0.5 * (beyond + math.sqrt(beyond * beyond + 1e-3))
        excess = (y - branch[i]) / sd
        excess = 0.5 * (excess + math.sqrt(excess * excess + 0.1))
        hidden = 4.0 * max(1.0 - 4.0 * qi, 0.0)
        seen = (excess * excess / (excess * excess + hidden * hidden)) ** 4
        weight[i] = (y * share / sd) ** 2 * seen
        value[i] = math.log(y) + power * math.log(share) - math.log(growth[i])
        if t.has_host:  # what the terms leave of the floor, kept above 0
            rest = 1.0 - host[i] * math.exp(-math.log(y) - power * math.log(share))
            root = math.sqrt(rest * rest + 0.01)
            rest = 0.5 * (rest + root) if rest > 0.0 else 0.005 / (root - rest)
            weight[i] *= rest * rest
            value[i] += math.log(rest)


@compiled
def guess_adjoint(
    t, branch, relative, absolute, q, growth, host, weight, d_weight, d_value, d_branch, d_relative, d_growth, d_host
):
    """Adjoint of `guess`; returns the derivatives by the absolute noise and by q."""
    d_absolute = d_q = 0.0
    for i in range(t.measured.size):
        y, T, rel = t.measured[i], branch[i], relative[t.model[i]]
        variance = absolute * absolute + (rel * y) ** 2 + t.known_sd[i] ** 2
        dw, dv = d_weight[i], d_value[i]
        if t.q_mode == NO_OVERLAP:
            d_variance = -dw * weight[i] * weight[i]
            d_branch[i] -= dv
            d_growth[i] -= dv
        else:
            free = t.overlap_free[i]
            qi = free * q + (1.0 - free) * t.overlap[i]
            sd = math.sqrt(variance)
            power = max(qi, 0.1)
            raw = (math.log(T) - math.log(y)) / power
            beyond = 1.0 - math.exp(min(raw, 5.0))
            bent = math.sqrt(beyond * beyond + 1e-3)
            share = 0.5 * (beyond + bent)
            above = (y - T) / sd
            excess = 0.5 * (above + math.sqrt(above * above + 0.1))
            hidden = 4.0 * max(1.0 - 4.0 * qi, 0.0)
            both = excess * excess + hidden * hidden
            # weight = (y share / sd)^2 (excess^2 / both)^4, times the square of what the terms leave
            d_whole = dv
            if t.has_host:
                part = host[i] * math.exp(-math.log(y) - power * math.log(share))
                root = math.sqrt((1.0 - part) ** 2 + 0.01)
                rest = 0.5 * (1.0 - part + root) if part < 1.0 else 0.005 / (root - (1.0 - part))
                d_part = -(dv / rest + 2.0 * dw * weight[i] / rest) * rest / root
                d_host[i] += d_part * math.exp(-math.log(y) - power * math.log(share))
                d_whole -= d_part * part
            d_share = 2.0 * dw * weight[i] / share + d_whole * power / share
            d_variance = -dw * weight[i] / variance
            d_excess = dw * weight[i] * 8.0 * hidden * hidden / (excess * both)
            d_hidden = -dw * weight[i] * 8.0 * hidden / both
            d_power = d_whole * math.log(share)
            d_growth[i] -= dv / growth[i]
            d_above = d_excess * excess / math.sqrt(above * above + 0.1)
            d_branch[i] -= d_above / sd
            d_variance -= 0.5 * d_above * above / variance
            d_beyond = d_share * share / bent
            if raw < 5.0:
                d_raw = -d_beyond * (1.0 - beyond)
                d_branch[i] += d_raw / (T * power)
                d_power -= d_raw * raw / power
            d_qi = d_power if qi > 0.1 else 0.0
            if qi < 0.25:
                d_qi -= 16.0 * d_hidden
            d_q += free * d_qi
        d_absolute += 2.0 * absolute * d_variance
        d_relative[t.model[i]] += 2.0 * rel * y * y * d_variance
    return d_absolute, d_q


# ---- floors from z --------------------------------------------------------------------------------------------------


@compiled
def variances(t, sd, out):
    """Prior variances of the four kinds of contrasts of a grid: overall, SKUs, groups, pairs."""
    g, c = t.size[0], t.size[1]
    overall = t.level[1] ** 2
    if not t.grouped:
        out[0] = g * overall + sd[0] ** 2
        out[1] = sd[0] ** 2
        return
    pair = sd[2] ** 2
    out[0] = pair + g * c * overall + c * sd[0] ** 2 + g * sd[1] ** 2
    out[1] = pair + c * sd[0] ** 2
    out[2] = pair + g * sd[1] ** 2
    out[3] = pair


@compiled
def variances_adjoint(t, sd, d_out, d_sd):
    """Adjoint of `variances`."""
    g, c = t.size[0], t.size[1]
    if not t.grouped:
        d_sd[0] += 2.0 * sd[0] * (d_out[0] + d_out[1])
        return
    d_sd[0] += 2.0 * sd[0] * c * (d_out[0] + d_out[1])
    d_sd[1] += 2.0 * sd[1] * g * (d_out[0] + d_out[2])
    d_sd[2] += 2.0 * sd[2] * (d_out[0] + d_out[1] + d_out[2] + d_out[3])


@compiled
def contrast(t, k, weight, told):
    """What cells say of contrast `k` of the floors: its variance, and how far it is from where the prior starts."""
    data = off = 0.0
    for p in range(told.size):
        data += t.basis[p, k] ** 2 / weight[p]
        off += t.basis[p, k] * (told[p] - t.start[p])
    return data, off


@compiled
def place_added(t, variance, weight, told, z, floor):
    """Floors from `z`, one contrast at a time; returns the log Jacobian. As `step_model._contrasted`."""
    n = told.size
    log_jacobian = 0.0
    floor[:n] = t.start
    for k in range(n):
        prior = variance[t.block[k]]
        data, off = contrast(t, k, weight, told)
        scale = math.sqrt(prior * data / (prior + data))
        log_jacobian += math.log(scale)
        moved = prior / (prior + data) * off + scale * z[k]
        for p in range(n):
            floor[p] += t.basis[p, k] * moved
    return log_jacobian


@compiled
def place_added_adjoint(t, variance, weight, told, z, d_floor, d_variance, d_weight, d_told, d_z):
    """Adjoint of `place_added`, with 1 for the log Jacobian."""
    n = told.size
    for k in range(n):
        prior, moved = variance[t.block[k]], 0.0
        data, off = contrast(t, k, weight, told)
        for p in range(n):
            moved += t.basis[p, k] * d_floor[p]
        both = prior + data
        scale = math.sqrt(prior * data / both)
        d_scale = moved * z[k] + 1.0 / scale
        d_z[k] += moved * scale
        d_variance[t.block[k]] += moved * off * data / both**2 + d_scale * (data / both) ** 2 / (2.0 * scale)
        d_data = -moved * off * prior / both**2 + d_scale * (prior / both) ** 2 / (2.0 * scale)
        for p in range(n):
            d_told[p] += moved * prior / both * t.basis[p, k]
            d_weight[p] -= d_data * (t.basis[p, k] / weight[p]) ** 2


@compiled
def place_positive(t, variance, weight, told, z, floor, spread, root, pull, turned):
    """Logarithms of floors from `z`, with all correlations; returns the log Jacobian. As `step_model._correlated`.

    Leaves in `spread` basis times sd, in `root` the Cholesky factor of the precision M of w, in `pull` M^-1 a and in
    `turned` root'^-1 z; w is their sum.
    """
    n = told.size
    log_jacobian = 0.0
    for k in range(n):
        sd = math.sqrt(variance[t.block[k]])
        log_jacobian += math.log(sd)
        for p in range(n):
            spread[p, k] = t.basis[p, k] * sd
    for j in range(n):
        for k in range(j + 1):
            total = 1.0 if j == k else 0.0
            for p in range(n):
                total += spread[p, j] * weight[p] * spread[p, k]
            for m in range(k):
                total -= root[j, m] * root[k, m]
            root[j, k] = math.sqrt(total) if j == k else total / root[k, k]
        log_jacobian -= math.log(root[j, j])
    for k in range(n):
        total = 0.0
        for p in range(n):
            total += spread[p, k] * weight[p] * (told[p] - t.start[p])
        pull[k] = total
    solve_lower(root, pull)
    turned[:] = z
    solve_upper(root, pull)
    solve_upper(root, turned)
    for p in range(n):
        floor[p] = t.start[p]
        for k in range(n):
            floor[p] += spread[p, k] * (pull[k] + turned[k])
    return log_jacobian


@compiled
def solve_lower(root, b):
    """root^-1 b in place."""
    for j in range(b.size):
        for m in range(j):
            b[j] -= root[j, m] * b[m]
        b[j] /= root[j, j]


@compiled
def solve_upper(root, b):
    """root'^-1 b in place."""
    for j in range(b.size - 1, -1, -1):
        for m in range(j + 1, b.size):
            b[j] -= root[m, j] * b[m]
        b[j] /= root[j, j]


@compiled
def place_positive_adjoint(
    t, variance, weight, told, spread, root, pull, turned, d_floor, d_variance, d_weight, d_told, d_z
):
    """Adjoint of `place_positive`, with 1 for the log Jacobian.

    Cholesky: S. F. Walter (2012), d_M = root'^-1 P(root' d_root) root^-1, P the lower half with a halved diagonal.
    """
    n = told.size
    d_w, t_pull = np.empty(n), np.empty(n)
    d_spread = np.zeros((n, n))
    for k in range(n):
        total = 0.0
        for p in range(n):
            total += spread[p, k] * d_floor[p]
            d_spread[p, k] += d_floor[p] * (pull[k] + turned[k])
        d_w[k] = total
    # turned = root'^-1 z
    h = d_w.copy()
    solve_lower(root, h)
    d_root = np.zeros((n, n))
    for k in range(n):
        d_z[k] += h[k]
        for m in range(k + 1):
            d_root[k, m] -= turned[k] * h[m]
        d_root[k, k] -= 1.0 / root[k, k]
    inner = np.zeros((n, n))  # P(root' d_root)
    for j in range(n):
        for k in range(j + 1):
            total = 0.0
            for m in range(j, n):
                total += root[m, j] * d_root[m, k]
            inner[j, k] = 0.5 * total if j == k else total
    for k in range(n):  # root'^-1 inner, then times root^-1 from the right
        solve_upper(root, inner[:, k])
    for j in range(n):
        row = inner[j].copy()
        solve_upper(root, row)
        inner[j] = row
    # pull = M^-1 a
    t_pull[:] = d_w
    solve_lower(root, t_pull)
    solve_upper(root, t_pull)
    d_M = np.empty((n, n))
    for j in range(n):
        for k in range(n):
            d_M[j, k] = 0.5 * (inner[j, k] + inner[k, j]) - 0.5 * (t_pull[j] * pull[k] + t_pull[k] * pull[j])
    for p in range(n):
        off = told[p] - t.start[p]
        by_a = by_M = 0.0
        for k in range(n):
            by_a += spread[p, k] * t_pull[k]
            total = 0.0
            for j in range(n):
                total += d_M[k, j] * spread[p, j]
            by_M += spread[p, k] * total
            d_spread[p, k] += 2.0 * weight[p] * total + weight[p] * off * t_pull[k]
        d_weight[p] += by_M + by_a * off
        d_told[p] += weight[p] * by_a
    for k in range(n):
        sd2 = variance[t.block[k]]
        total = 0.5 / sd2
        for p in range(n):
            total += d_spread[p, k] * t.basis[p, k] / (2.0 * math.sqrt(sd2))
        d_variance[t.block[k]] += total
