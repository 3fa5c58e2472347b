"""rooffloor: tests with real statistics whether an LLM decode-latency model transfers to another family or GPU."""

__version__ = "0.1.0"
