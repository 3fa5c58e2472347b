"""Numbers of the priors, and how they make floors and noise: sampled, integrated and drawn from in this room."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Priors:
    """Numbers of the priors; times in ms.

    Attributes
    ----------
    eta_bw : (mean, sd) of a Beta
        Streaming of weights. Measured GEMMs with at most 16 rows and weights over twice the L2 reach a median
        of 0.71 (A100), 0.87 (H100), 0.79 (H200) of the nominal bandwidth; 5 to 95 %: 0.64 to 0.91.
    eta_fa : (mean, sd) of a Beta
        Streaming of the KV cache. Measured decode attention with KV over three times the L2 has medians of
        0.63 to 0.80, and 0.75, 0.88, 0.84 once a constant time per kernel is set apart; wide, since older
        stacks are slower than the kernels of 2025 from which these numbers come.
    eta_tc : (mean, sd) of a Beta
        Tensor cores. Measured GEMMs with 1024 rows or more: medians 0.90, 0.83, 0.77. Narrow enough to keep
        the prior off values (0.27 on an A100) at which small batches would turn compute-bound: a wall in
        the density.
    l_half : (median, sd of the logarithm) of a LogNormal, tokens
        The constant time of a decode-attention kernel is worth about 300 tokens at batch 16, more below.
    rho_q : (median, sd of the logarithm) of a LogNormal
        Rate of the query-head limb over the nominal bandwidth. Query heads of one group share lines in the
        L2, so that it may exceed 1; wide, since only data with several query-to-KV ratios see it.
    floor_overall_ms : (mean, sd) of a Normal
        Steps of public stacks lie within about 10 ms of the time that their bytes take.
    floor_overall : (median in ms, sd of the logarithm) of a LogNormal
        The same for floors H >= 0.
    floor_sd_gpu_ms, floor_sd_group_ms, floor_sd_pair_ms : scale of a half-t with 3 degrees of freedom
        2 ms for SKUs keeps the size of a level test near nominal with three SKUs; classes (or models) differ
        more: a published MoE floor lies 18 ms above the dense one, which the t tail allows.
    floor_sd_gpu, floor_sd_group, floor_sd_pair : scale of a half-normal
        The same for the logarithm of floors H >= 0: hosts differ by tens of percent, classes by factors. No t tail:
        on a logarithm it would allow floors that differ by powers of ten.
    launch_ms : (median, sd of the logarithm) of a LogNormal
        Host time per kernel launch, or latency per kernel: a few microseconds with graphs, tens without.
    sequence_ms : (shape, mean) of a Gamma
        Host time per sequence of a step. Measured 0.042 to 0.046 ms on one host for six models, 0.05 to 0.13 on others
        (microsoft/vidur, CPU overhead of vLLM on A100 and A40 hosts); fits to steps of a 2025 stack give 0.05 to 0.07,
        to those of a 2024 server 0.2 to 0.4. Of shape 1 its density is largest at 0: a stack may hide it wholly.
    sequence_layer_ms : (shape, mean) of a Gamma
        The same over about 32 layers.
    noise_relative : (median, sd of the logarithm) of a LogNormal
        Noise and discrepancy together, as a share of the step, at the level common to all models; with one
        measurement a cell the two are one.
    noise_spread : scale of a half-normal
        sd of log σ between models. Published residuals of one study run from 3 to 9 %: one σ for all would lend a
        model the leftovers of another.
    noise_ms : (median, sd of the logarithm) of a LogNormal
        The part that does not scale with the step.
    student_nu : (shape, rate) of a Gamma
        Degrees of freedom of the Student-t likelihood (Juarez and Steel 2010).
    """

    eta_bw: tuple[float, float] = (0.80, 0.08)
    eta_fa: tuple[float, float] = (0.72, 0.14)
    eta_tc: tuple[float, float] = (0.80, 0.08)
    l_half: tuple[float, float] = (200.0, 1.0)
    rho_q: tuple[float, float] = (1.5, 0.6)
    floor_overall_ms: tuple[float, float] = (0.0, 5.0)
    floor_overall: tuple[float, float] = (4.0, 1.0)
    floor_sd_gpu_ms: float = 2.0
    floor_sd_group_ms: float = 3.0
    floor_sd_pair_ms: float = 1.0
    floor_sd_gpu: float = 0.4
    floor_sd_group: float = 0.7
    floor_sd_pair: float = 0.25
    launch_ms: tuple[float, float] = (0.008, 1.0)
    sequence_ms: tuple[float, float] = (1.0, 0.1)
    sequence_layer_ms: tuple[float, float] = (1.0, 0.003)
    noise_relative: tuple[float, float] = (0.05, 0.8)
    noise_spread: float = 0.5
    noise_ms: tuple[float, float] = (0.1, 1.0)
    student_nu: tuple[float, float] = (2.0, 0.1)

    def floor_level(self, positive: bool) -> tuple[float, float]:
        """Mean and sd of the level common to all floors: ms, or (`positive`) of the logarithm of floors H >= 0."""
        middle, sd = self.floor_overall if positive else self.floor_overall_ms
        return float(np.log(middle)) if positive else middle, sd

    def floor_scale(self, effect: str, positive: bool) -> float:
        """Scale of the prior of the sd of an effect ("gpu", "group" or "pair") on floors, as in `floor_level`."""
        return float(getattr(self, f"floor_sd_{effect}{'' if positive else '_ms'}"))

    def noise_level(self) -> tuple[float, float]:
        """Mean and sd of the logarithm of the relative noise of a model before any cell is seen."""
        median, sd = self.noise_relative
        return float(np.log(median)), sd


def beta_shapes(moments: tuple[float, float]) -> tuple[float, float]:
    """Shapes of the Beta distribution with this mean and sd."""
    mean, sd = moments
    size = mean * (1.0 - mean) / sd**2 - 1.0
    return mean * size, (1.0 - mean) * size


DEFAULT_PRIORS = Priors()

OF_OTHER_FLOORS = (
    "floor_overall",
    "floor_sd_gpu",
    "floor_sd_group",
    "floor_sd_pair",
    "sequence_ms",
    "sequence_layer_ms",
)
"""Priors that signed floors without terms do not have."""
