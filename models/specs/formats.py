"""Number formats: how many bytes a value takes with its scales, and in which format the tensor cores multiply it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NumberFormat:
    """How values are stored.

    Attributes
    ----------
    name : str
    bits : int
        Of one value.
    group, group_bits : int
        Values that share a scale, and the bits of that scale and of its zero point (0: a scale per tensor, channel or
        large block, whose bytes are left out).
    multiplied_as : str
        The format of the product, where inputs are quantised as well: "fp8", "int8", "fp4"; "": 16-bit, to which
        weights are first dequantised.

    Examples
    --------
    >>> FORMATS["mxfp4"].bytes_of(64)
    34
    """

    name: str
    bits: int
    group: int = 0
    group_bits: int = 0
    multiplied_as: str = ""

    @property
    def family(self) -> str:
        """The name without what inputs are: fp8, int8, int4, mxfp4, ..."""
        return self.name.partition(",")[0]

    def bytes_of(self, values: int) -> int:
        """Bytes of so many values and their scales."""
        groups = -(-values // self.group) if self.group else 0
        return -(-(values * self.bits + groups * self.group_bits) // 8)


SIXTEEN_BIT = NumberFormat("16-bit", 16)

FORMATS: dict[str, NumberFormat] = {
    known.name: known
    for known in (
        SIXTEEN_BIT,
        NumberFormat("fp32", 32),
        NumberFormat("fp8", 8, multiplied_as="fp8"),
        NumberFormat("int8", 8, multiplied_as="int8"),
        NumberFormat("fp8, 16-bit inputs", 8),
        NumberFormat("int8, 16-bit inputs", 8),
        NumberFormat("int4", 4, 128, 16),
        NumberFormat("mxfp8", 8, 32, 8, "fp8"),
        NumberFormat("mxfp6", 6, 32, 8),
        NumberFormat("mxfp4", 4, 32, 8),
        NumberFormat("nvfp4", 4, 16, 8, "fp4"),
        NumberFormat("nvfp4, 16-bit inputs", 4, 16, 8),
        NumberFormat("nf4", 4, 64, 32),
    )
}
"""Formats by name, with the groups that are usual.

OCP Microscaling Formats 1.0 (a shared 8-bit exponent for 32 values) for mxfp8, mxfp6 and mxfp4; nvfp4 has an 8-bit
scale for 16 values; GPTQ and AWQ store a 16-bit scale, and a zero point, for 128; bitsandbytes a 32-bit one for 64.
"""

_NAMES = {
    "16-bit": ("", "auto", "bf16", "bfloat16", "fp16", "float16", "half", "f16", "16-bit"),
    "fp32": ("fp32", "float32", "float"),
    "fp8": ("fp8", "float8", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3fn", "float8_e4m3fn", "e4m3", "fp8_block", "w8a8_fp8"),
    "int8": ("int8", "w8a8", "w8a8_int8"),
    "int8, 16-bit inputs": ("w8a16", "q8_0"),
    "int4": ("int4", "w4a16", "awq", "gptq", "awq_marlin", "gptq_marlin"),
    "mxfp8": ("mxfp8",),
    "mxfp6": ("mxfp6",),
    "mxfp4": ("mxfp4",),
    "nvfp4": ("nvfp4", "fp4", "modelopt_fp4"),
    "nvfp4, 16-bit inputs": ("w4a16_nvfp4", "nvfp4a16"),
    "nf4": ("nf4", "bnb_4bit"),
}


def named(text: str) -> NumberFormat:
    """The format of a name as people and result files write it, upper and lower case alike.

    Raises
    ------
    ValueError
        The name is unknown; the message lists the known formats.

    Examples
    --------
    >>> named("bfloat16").bits, named("FP8").bits
    (16, 8)
    """
    key = text.strip().casefold().removeprefix("torch.")
    for name, aliases in _NAMES.items():
        if key in aliases or key == name:
            return FORMATS[name]
    raise ValueError(f"unknown number format {text!r}; known: {', '.join(name for name in FORMATS if ',' not in name)}")


_ALL_IN_16_BIT = ((SIXTEEN_BIT, 1.0),)


@dataclass(frozen=True)
class Formats:
    """How a model is stored where that is not 16-bit throughout.

    Attributes
    ----------
    weights : tuple of (kernel, format, share)
        The share of a kernel's weights (of `ModelShapes.linear_weights`) that is in the format; what is not named is
        16-bit, and so are embedding, norms and biases.
    cache : NumberFormat
    """

    weights: tuple[tuple[str, NumberFormat, float], ...] = ()
    cache: NumberFormat = SIXTEEN_BIT

    def of(self, kernel: str) -> tuple[tuple[NumberFormat, float], ...]:
        """The formats of a kernel's weights and their shares, which add up to 1."""
        if not self.weights:
            return _ALL_IN_16_BIT
        own = tuple((number_format, share) for name, number_format, share in self.weights if name == kernel)
        rest = 1.0 - sum(share for _, share in own)
        return own if rest <= 0 else (*own, (SIXTEEN_BIT, rest))

    @property
    def narrowest(self) -> NumberFormat:
        """The format with the fewest bits that some weights have: by its name a checkpoint goes."""
        return min((stored for _, stored, _ in self.weights), key=lambda stored: stored.bits, default=SIXTEEN_BIT)

    def bytes_of(self, kernel: str, values: int) -> int:
        """Bytes of so many weights of a kernel."""
        own = self.of(kernel)
        if len(own) == 1:
            return own[0][0].bytes_of(values)
        return sum(number_format.bytes_of(round(share * values)) for number_format, share in own)


ALL_SIXTEEN_BIT = Formats()
