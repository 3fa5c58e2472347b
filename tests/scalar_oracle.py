"""The roofline once more: one cell, Llama-3.1-8B hard-coded, plain Python, no code shared with models/.

Valid for up to 128 sequences: no activation tensor of this model is then larger than an L2 of 40 MB.
"""

import math

GPUS = {  # FLOP/s, bytes/s
    "H100": (989e12, 3350e9),
    "H200": (989e12, 4800e9),
    "A100-40GB": (312e12, 1555e9),
    "A100-80GB": (312e12, 2039e9),
    "L40S": (362e12, 864e9),
    "GH200": (989e12, 4000e9),
}


def kernel_times_ms(
    gpu: str,
    batch: int,
    context: float,
    eta_tc: float = 1.0,
    eta_bw: float = 1.0,
    eta_fa: float = 1.0,
    l_half: float = 0.0,
    latency_ms: float = 0.0,
    rho_q: float | None = None,
) -> list[float]:
    """Kernel times of one decode step, ms, in order of execution with the MoE kernels left out."""
    peak, bandwidth = GPUS[gpu]
    tile = batch / (64 * math.ceil(batch / 64))

    def stream(bytes_: float, flops: float = 0.0, launches: int = 32) -> float:
        compute = flops / (peak * tile) * 1e3 / eta_tc
        memory = bytes_ / bandwidth * 1e3 / eta_bw
        return max(compute, memory) + latency_ms * launches

    def product(weights: int, launches: int = 32) -> float:
        return stream(2 * weights, 2 * batch * weights, launches)

    attention = max(
        4 * batch * context * 4096 * 32 / (peak * (4 / 64)) * 1e3 / eta_tc,
        (
            batch * context * 131072 / bandwidth * 1e3
            + l_half * (batch * 131072 / bandwidth * 1e3)
        )
        / eta_fa,
    )  # fmt: skip
    if rho_q is not None:
        attention = max(attention, 2 * 4096 * 2 * 32 * batch * context / bandwidth * 1e3 / rho_q)
    return [
        stream(batch * 4096 * 2, launches=1),  # embedding rows
        stream(65 * 4096 * 2, launches=65),  # norms
        product(32 * 4096 * (4096 + 2 * 1024)),  # qkv
        stream(0),  # rope
        stream(batch * 131072),  # cache write
        attention + latency_ms * 32,
        product(32 * 4096 * 4096),  # output projection
        product(32 * 2 * 4096 * 14336),  # gate and up
        stream(0),  # activation
        product(32 * 14336 * 4096),  # down
        product(4096 * 128256, launches=1),  # LM head
    ]


def step_ms(gpu: str, batch: int, context: float, **constants: float) -> float:
    """T_gpu, ms: the kernels summed from the first to the last."""
    total = 0.0
    for kernel in kernel_times_ms(gpu, batch, context, **constants):
        total = total + kernel
    return total
