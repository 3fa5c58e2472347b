"""The log density of `step_model` and its gradient, written by hand and compiled once.

PyMC's model in `step_model` is the definition; tests hold this to it, at 1e-10, for every structure.
"""

import math

import numpy as np
from numpy.typing import NDArray

from rooffloor.models.floor.structures import Q_MAX
from rooffloor.models.inference.density_stages import (
    LOG_TWO_PI,
    compiled,
    contrast,
    digamma,
    gpu_branch,
    guess,
    guess_adjoint,
    half_normal,
    half_t,
    log_gamma,
    logit_beta,
    normal,
    place_added,
    place_added_adjoint,
    place_positive,
    place_positive_adjoint,
    uniform_logit,
    variances,
    variances_adjoint,
)
from rooffloor.models.inference.packing import GROWS_BY_MS, GROWS_BY_SHARE, Q_FREE

type Array = NDArray[np.float64]


@compiled
def ridge(t, z, c, weight, growth, variance, out):
    """Logit of eta_bw from `z`: where the floors' hierarchy expects it, in units of its sd there.

    Constants bound by bandwidth make T linear in 1 / eta_bw, and so each floor that the cells tell; of 1 / eta_bw the
    prior and the contrasts of the floors, normal given their scales, then make a normal: least squares. Leaves in `out`
    [6 + 4 floor] what the adjoint needs; returns the logit and the log of the unit.
    """
    n = t.start.size
    weights, told, slope = out[6 : 6 + n], out[6 + n : 6 + 2 * n], out[6 + 2 * n : 6 + 3 * n]
    weights[:], told[:], slope[:] = 0.0, 0.0, 0.0
    fa, half = 1.0 / c[1, 0], c[3, 0]
    for i in range(t.measured.size):
        p = t.pair[i]
        if p < n:
            w = weight[i]
            weights[p] += w
            told[p] += w * (t.measured[i] - growth[i] - (t.columns[1, i] + half * t.columns[2, i]) * fa)
            slope[p] += w * t.columns[0, i]
    for p in range(n):
        told[p] /= weights[p]
        slope[p] /= weights[p]
    mean, sd = t.inverse[0], t.inverse[1]
    precision, pulled = 1.0 / sd**2, mean / sd**2
    for k in range(n):
        (data, a), s = contrast(t, k, weights, told), 0.0
        for p in range(n):
            s += t.basis[p, k] * slope[p]
        total = variance[t.block[k]] + data
        precision += s * s / total
        pulled += s * a / total
    above = pulled / precision - 1.0
    root = math.sqrt(above * above + 1.6e-3)
    middle = 0.5 * (above + root)
    unit = 1.0 / math.sqrt(middle * middle * precision + 4.0)
    out[0], out[1], out[2], out[3], out[4] = precision, pulled, root, middle, unit
    return -(math.log(middle) + unit * z), math.log(unit)


@compiled
def ridge_adjoint(t, z, c, weight, growth, variance, out, d_logit, d_c, d_weight, d_growth, d_variance):
    """Adjoint of `ridge`, with 1 for the log of the unit; returns the derivative by z."""
    n = t.start.size
    precision, pulled, root, middle, unit = out[0], out[1], out[2], out[3], out[4]
    weights, told, slope = out[6 : 6 + n], out[6 + n : 6 + 2 * n], out[6 + 2 * n : 6 + 3 * n]
    d_unit = -d_logit * z + 1.0 / unit
    d_middle = -d_logit / middle - d_unit * unit**3 * middle * precision
    d_precision = -0.5 * d_unit * unit**3 * middle * middle
    d_above = d_middle * middle / root
    d_pulled = d_above / precision
    d_precision -= d_above * pulled / precision**2
    d_told, d_slope, d_weights = np.zeros(n), np.zeros(n), np.zeros(n)
    for k in range(n):
        (data, a), s = contrast(t, k, weights, told), 0.0
        for p in range(n):
            s += t.basis[p, k] * slope[p]
        total = variance[t.block[k]] + data
        d_s = d_precision * 2.0 * s / total + d_pulled * a / total
        d_a = d_pulled * s / total
        d_total = -(d_precision * s * s + d_pulled * s * a) / total**2
        d_variance[t.block[k]] += d_total
        for p in range(n):
            b = t.basis[p, k]
            d_told[p] += b * d_a
            d_slope[p] += b * d_s
            d_weights[p] -= d_total * (b / weights[p]) ** 2
    fa, half = 1.0 / c[1, 0], c[3, 0]
    for i in range(t.measured.size):
        p = t.pair[i]
        if p < n:
            share = weight[i] / weights[p]
            by_kv = t.columns[1, i] + half * t.columns[2, i]
            own = t.measured[i] - growth[i] - by_kv * fa
            d_weight[i] += (
                d_weights[p] + (d_told[p] * (own - told[p]) + d_slope[p] * (t.columns[0, i] - slope[p])) / (weights[p])
            )
            d_growth[i] -= d_told[p] * share
            d_c[1, 0] += d_told[p] * share * by_kv * fa * fa
            d_c[3, 0] -= d_told[p] * share * t.columns[2, i] * fa
    return -d_logit * unit


@compiled
def grid_prior(t, sampled, z, sd_pair, variance, grid, d_sampled, d_z, d_variance):
    """Log density of the whole grid of floors, filled where nothing was measured; returns it, and d by `sd_pair`.

    As `step_model._fill` and the ``floors`` potential; adds its derivatives at once.
    """
    known, missing = sampled.size, z.size
    filled = np.empty(known + missing)
    filled[:known] = sampled
    log, d_pair = 0.0, 0.0
    for u in range(missing):
        sd = sd_pair * t.fill_sd[u]
        log += math.log(sd)
        d_pair += 1.0 / sd_pair
        filled[known + u] = sd * z[u]
        for p in range(known):
            filled[known + u] += t.fill[u, p] * sampled[p]
    for j in range(grid.size):
        grid[j] = filled[t.order[j]]
    d_grid = np.zeros(grid.size)
    for k in range(grid.size):
        wide, along = variance[t.grid_block[k]], 0.0
        for j in range(grid.size):
            along += t.grid_basis[j, k] * (grid[j] - t.level[0])
        log -= 0.5 * (LOG_TWO_PI + math.log(wide) + along * along / wide)
        d_variance[t.grid_block[k]] += 0.5 * (along * along / wide - 1.0) / wide
        for j in range(grid.size):
            d_grid[j] -= t.grid_basis[j, k] * along / wide
    for j in range(grid.size):
        at = t.order[j]
        if at < known:
            d_sampled[at] += d_grid[j]
            continue
        u = at - known
        d_z[u] += d_grid[j] * sd_pair * t.fill_sd[u]
        d_pair += d_grid[j] * t.fill_sd[u] * z[u]
        for p in range(known):
            d_sampled[p] += d_grid[j] * t.fill[u, p]
    return log, d_pair


@compiled
def steps(t, branch, floor, q, growth, host, relative, absolute, nu, d_branch, d_floor, d_growth, d_host, d_relative):
    """Log likelihood of the measured steps, and its derivatives; returns also those by the absolute noise, nu and q."""
    log = d_absolute = d_nu = d_q = 0.0
    if t.student:
        shared = math.lgamma(0.5 * (nu + 1.0)) - math.lgamma(0.5 * nu) - 0.5 * math.log(math.pi * nu)
        d_shared = 0.5 * (digamma(0.5 * (nu + 1.0)) - digamma(0.5 * nu)) - 0.5 / nu
    for i in range(t.measured.size):
        T, y, rel = branch[i], t.measured[i], relative[t.model[i]]
        by_T, by_H, H, own = 1.0, 1.0, 0.0, 0.0
        step = T
        if t.has_floor:
            H = floor[t.pair[i]]
            if not t.positive:
                step = T + H + growth[i]
            else:
                own = math.exp(H) * growth[i]
                H = own + host[i]
                qi = t.overlap_free[i] * q + (1.0 - t.overlap_free[i]) * t.overlap[i]
                power = max(qi, 1e-3)
                longer, shorter = max(T, H), min(T, H)
                ratio = math.log(max(shorter, 1e-12)) - math.log(max(longer, 1e-12))
                small = math.exp(ratio / power)
                grown, part = math.log1p(small), small / (1.0 + small)
                factor = math.exp(power * grown)
                step = longer * factor
                by_long = factor * (1.0 - part)
                by_short = step * part / shorter if shorter > 1e-12 else 0.0
                by_T, by_H = (by_long, by_short) if T >= H else (by_short, by_long)
        variance = absolute * absolute + (rel * step) ** 2 + t.known_sd[i] ** 2
        r = y - step
        if t.student:
            z2 = r * r / variance
            log += shared - 0.5 * math.log(variance) - 0.5 * (nu + 1.0) * math.log1p(z2 / nu)
            weight = (nu + 1.0) / (nu + z2)
            d_nu += d_shared - 0.5 * math.log1p(z2 / nu) + 0.5 * weight * z2 / nu
        else:
            log -= 0.5 * (LOG_TWO_PI + math.log(variance) + r * r / variance)
            weight = 1.0
        d_variance = 0.5 * (weight * r * r / variance - 1.0) / variance
        d_step = weight * r / variance + d_variance * 2.0 * rel * rel * step
        d_relative[t.model[i]] += d_variance * 2.0 * rel * step * step
        d_absolute += d_variance * 2.0 * absolute
        d_branch[i] += d_step * by_T
        if not t.has_floor:
            continue
        if not t.positive:
            d_floor[t.pair[i]] += d_step
            d_growth[i] += d_step
            continue
        d_floor[t.pair[i]] += d_step * by_H * own
        d_growth[i] += d_step * by_H * own / growth[i]
        d_host[i] += d_step * by_H
        if qi > 1e-3:
            d_q += t.overlap_free[i] * d_step * step * (grown - part * ratio / power)
    return log, d_absolute, d_nu, d_q


@compiled
def log_density(t, x, grad, grid):
    """Log density of x on the real line; fills `grad` [x] and the floors `grid` (logarithms where positive).

    Returns the density and the logit of the first eta_bw.
    """
    grad[:] = 0.0
    cells, models, n, sets = t.measured.size, t.models, t.start.size, t.sets
    at, log = 0, 0.0

    c, d_c = np.ones((6, max(sets, 1))), np.zeros((6, max(sets, 1)))
    where = np.full(6, -1)
    if sets:
        for k in range(6):
            if (k == 4 and not t.query) or (k == 5 and not t.latency):
                continue
            where[k] = at
            if k >= 3:
                log += normal(x[at : at + sets], t.logarithms[k - 3, 0], t.logarithms[k - 3, 1], grad[at : at + sets])
                c[k] = np.exp(x[at : at + sets])
            elif k or not t.ridge:
                log += logit_beta(x[at : at + sets], t.eta[k], grad[at : at + sets])
                c[k] = 1.0 / (1.0 + np.exp(-x[at : at + sets]))
            at += sets

    at_noise = at
    at_spread, at_mean, at_contrasts = at, at + 2, at + 3
    at_absolute = at_contrasts + models - 1
    at = at_absolute + 1
    spread = math.exp(x[at_spread])
    more, grad[at_spread] = half_normal(x[at_spread], t.noise[2], grad[at_spread])
    log += more + normal(x[at_noise + 1 : at_absolute], 0.0, 1.0, grad[at_noise + 1 : at_absolute])
    log += normal(x[at_absolute : at_absolute + 1], t.noise[3], t.noise[4], grad[at_absolute : at_absolute + 1])
    absolute = math.exp(x[at_absolute])
    total = math.sqrt(t.noise[1] ** 2 + spread * spread / models)
    off, relative = np.zeros(models), np.empty(models)
    for m in range(models):
        for k in range(models - 1):
            off[m] += t.noise_basis[m, k] * x[at_contrasts + k]
        relative[m] = math.exp(t.noise[0] + total * x[at_mean] + spread * off[m])
    at_nu, nu = at, 1.0
    if t.student:
        nu = math.exp(x[at])
        log += log_gamma(x[at : at + 1], t.nu[0], t.nu[1], grad[at : at + 1])
        at += 1
    at_q, q = at, t.anchor_q
    if t.q_mode == Q_FREE:
        log += uniform_logit(x[at : at + 1], grad[at : at + 1])
        q = Q_MAX / (1.0 + math.exp(-x[at]))
        at += 1
    at_launch = at
    growth = np.ones(cells) if t.positive else np.zeros(cells)
    if t.growth == GROWS_BY_MS:
        log += normal(x[at : at + t.launch_gpus], t.launch[0], t.launch[1], grad[at : at + t.launch_gpus])
        for i in range(cells):
            growth[i] = math.exp(x[at + t.launch_gpu[i]]) * t.launches * (t.relative_launches[i] - 1.0)
    elif t.growth == GROWS_BY_SHARE:
        log += uniform_logit(x[at : at + t.launch_gpus], grad[at : at + t.launch_gpus])
        for i in range(cells):
            share = 1.0 / (1.0 + math.exp(-x[at + t.launch_gpu[i]]))
            growth[i] = 1.0 + share * (t.relative_launches[i] - 1.0)
    at += t.launch_gpus if t.growth else 0
    at_terms, terms = at, len(t.units)
    host = t.host.copy()
    for k in range(terms):
        some = slice(at, at + t.term_gpus)
        log += log_gamma(x[some], t.term[k, 0], t.term[k, 1], grad[some])
        for i in range(cells):
            host[i] += math.exp(x[at + t.term_gpu[i]]) * t.units[k, i]
        at += t.term_gpus
    if not t.positive:  # added like growth
        growth += host

    at_sd, effects = at, 3 if t.grouped else 1
    sd, d_sd, variance, d_variance = np.zeros(3), np.zeros(3), np.ones(4), np.zeros(4)
    if t.has_floor:
        for k in range(effects):
            if t.positive:
                more, grad[at + k] = half_normal(x[at + k], t.scales[k], grad[at + k])
            else:
                more, grad[at + k] = half_t(x[at + k], t.scales[k], grad[at + k])
            log += more
            sd[k] = math.exp(x[at + k])
        variances(t, sd, variance)
        at += effects
    at_z, at_missing = at, at + n

    # eta_bw, T_gpu
    branch, partial = np.empty(cells), np.empty((6, cells if sets else 0))
    weight, value, ridged, logit = np.empty(cells), np.empty(cells), np.empty(6 + 3 * n), 0.0
    if t.ridge:
        for i in range(cells):
            y = t.measured[i]
            weight[i] = 1.0 / (absolute * absolute + (relative[t.model[i]] * y) ** 2 + t.known_sd[i] ** 2)
        logit, more = ridge(t, x[0], c, weight, growth, variance, ridged)
        d_logit = np.zeros(1)
        log += more + logit_beta(np.array([logit]), t.eta[0], d_logit)
        c[0, 0] = 1.0 / (1.0 + math.exp(-logit))
    elif sets:
        logit = x[0]
    if sets:
        gpu_branch(t, c, branch, partial)
    else:
        branch[:] = t.branch

    # floors
    floor = np.empty(n + t.known.size)
    floor[n:] = t.known
    weights, told = np.zeros(n), np.zeros(n)
    square = (n, n) if t.positive else (0, 0)
    spreads, root, pull, turned = np.empty(square), np.zeros(square), np.empty(n), np.empty(n)
    floored = t.has_floor and n > 0
    clipped = np.zeros(n)
    if floored:
        guess(t, branch, relative, absolute, q, growth, host, weight, value)
        for i in range(cells):
            if t.pair[i] < n:
                weights[t.pair[i]] += weight[i]
                told[t.pair[i]] += weight[i] * value[i]
        for p in range(n):
            if weights[p] < 1e-6:
                clipped[p], weights[p] = 1.0, 1e-6
            told[p] /= weights[p]
        z = x[at_z:at_missing]
        if t.positive:
            log += place_positive(t, variance, weights, told, z, floor, spreads, root, pull, turned)
        else:
            log += place_added(t, variance, weights, told, z, floor)

    # the density of what was placed, and back
    d_floor, d_branch, d_relative = np.zeros(floor.size), np.zeros(cells), np.zeros(models)
    d_growth, d_host, d_weight, d_value = np.zeros(cells), np.zeros(cells), np.zeros(cells), np.zeros(cells)
    more, d_absolute, d_nu, d_q = steps(
        t, branch, floor, q, growth, host, relative, absolute, nu, d_branch, d_floor, d_growth, d_host, d_relative
    )
    log += more
    if t.has_floor:
        pair_effect = 2 if t.grouped else 0
        more, d_pair = grid_prior(
            t, floor, x[at_missing:], sd[pair_effect], variance, grid, d_floor, grad[at_missing:], d_variance
        )
        log += more
        d_sd[pair_effect] += d_pair
    if floored:
        d_weights, d_told = np.zeros(n), np.zeros(n)
        z, d_z = x[at_z:at_missing], grad[at_z:at_missing]
        if t.positive:
            place_positive_adjoint(
                t, variance, weights, told, spreads, root, pull, turned, d_floor, d_variance, d_weights, d_told, d_z
            )
        else:
            place_added_adjoint(t, variance, weights, told, z, d_floor, d_variance, d_weights, d_told, d_z)
        for i in range(cells):
            p = t.pair[i]
            if p < n:
                d_value[i] = d_told[p] * weight[i] / weights[p]
                kept = 0.0 if clipped[p] else d_weights[p] - d_told[p] * told[p] / weights[p]
                d_weight[i] = d_told[p] * value[i] / weights[p] + kept
        more, d_more = guess_adjoint(
            t,
            branch,
            relative,
            absolute,
            q,
            growth,
            host,
            weight,
            d_weight,
            d_value,
            d_branch,
            d_relative,
            d_growth,
            d_host,
        )
        d_absolute += more
        d_q += d_more
    for k in range(6):
        if where[k] >= 0:
            for i in range(cells):
                d_c[k, t.constants_of[i]] += partial[k, i] * d_branch[i]
    if t.ridge:
        eta = c[0, 0]
        d_weight[:] = 0.0
        d_x = d_logit[0] + d_c[0, 0] * eta * (1.0 - eta)
        grad[0] += ridge_adjoint(t, x[0], c, weight, growth, variance, ridged, d_x, d_c, d_weight, d_growth, d_variance)
        for i in range(cells):
            m, y = t.model[i], t.measured[i]
            d_v = -d_weight[i] * weight[i] * weight[i]
            d_absolute += 2.0 * absolute * d_v
            d_relative[m] += 2.0 * relative[m] * y * y * d_v
    if t.has_floor:
        variances_adjoint(t, sd, d_variance, d_sd)
        for k in range(effects):
            grad[at_sd + k] += d_sd[k] * sd[k]
    for k in range(6):
        if where[k] >= 0 and (k or not t.ridge):
            for s in range(sets):
                slope = c[k, s] if k >= 3 else c[k, s] * (1.0 - c[k, s])
                grad[where[k] + s] += d_c[k, s] * slope
    if t.growth == GROWS_BY_MS:
        for i in range(cells):
            per_launch = math.exp(x[at_launch + t.launch_gpu[i]]) * t.launches * (t.relative_launches[i] - 1.0)
            grad[at_launch + t.launch_gpu[i]] += d_growth[i] * per_launch
    elif t.growth == GROWS_BY_SHARE:
        for i in range(cells):
            share = 1.0 / (1.0 + math.exp(-x[at_launch + t.launch_gpu[i]]))
            by_share = d_growth[i] * (t.relative_launches[i] - 1.0)
            grad[at_launch + t.launch_gpu[i]] += by_share * share * (1.0 - share)
    for k in range(terms):
        for i in range(cells):
            at = at_terms + k * t.term_gpus + t.term_gpu[i]
            grad[at] += (d_host[i] if t.positive else d_growth[i]) * math.exp(x[at]) * t.units[k, i]
    if t.q_mode == Q_FREE:
        grad[at_q] += d_q * q * (1.0 - q / Q_MAX)
    if t.student:
        grad[at_nu] += d_nu * nu
    grad[at_absolute] += d_absolute * absolute
    d_spread, d_mean = 0.0, 0.0
    for m in range(models):
        d_log = d_relative[m] * relative[m]
        d_mean += d_log
        d_spread += d_log * off[m]
        for k in range(models - 1):
            grad[at_contrasts + k] += d_log * spread * t.noise_basis[m, k]
    grad[at_mean] += d_mean * total
    d_spread += d_mean * x[at_mean] * spread / (models * total)
    grad[at_spread] += d_spread * spread
    return log, logit


@compiled
def expand(t, draws, grids, logits):
    """Floors [draw, grid] and logits of eta_bw [draw] of many vectors x, `draws` [draw, x]."""
    grad = np.empty(draws.shape[1])
    for k in range(len(draws)):
        _, logits[k] = log_density(t, draws[k], grad, grids[k])
