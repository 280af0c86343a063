"""Counts for Prometheus, in its text format."""

import threading
from collections.abc import Callable

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histogram, in seconds."""

HELP = {
    "infolm_requests_total": ("counter", "Requests answered, by path and status."),
    "infolm_prompt_tokens_total": ("counter", "Tokens of prompts, by model."),
    "infolm_completion_tokens_total": ("counter", "Tokens written, by model."),
    "infolm_first_token_seconds": ("histogram", "From a request to its first token, by model."),
    "infolm_active": ("gauge", "Continuations being generated, by model."),
    "infolm_waiting": ("gauge", "Requests waiting for a model, by model."),
}

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters, a histogram and gauges; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, Labels], float] = {}
        self._observed: dict[tuple[str, Labels], list[float]] = {}
        self._gauges: dict[tuple[str, Labels], Callable[[], float]] = {}

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """To a counter."""
        key = name, tuple(labels.items())
        with self._lock:
            self._values[key] = self._values.get(key, 0) + value

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """In a histogram."""
        key = name, tuple(labels.items())
        with self._lock:
            row = self._observed.setdefault(key, [0.0] * (len(BUCKETS) + 2))
            for place, bound in enumerate(BUCKETS):
                row[place] += seconds <= bound
            row[-2] += 1
            row[-1] += seconds

    def gauge(self, name: str, value: Callable[[], float], **labels: str) -> None:
        """A gauge whose value is computed on request."""
        self._gauges[name, tuple(labels.items())] = value

    def text(self) -> str:
        """All of them, as Prometheus reads it."""
        with self._lock:
            values, observed = dict(self._values), {k: list(v) for k, v in self._observed.items()}
        values |= {key: value() for key, value in self._gauges.items()}
        lines = []
        for name, (kind, text) in HELP.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [_line(n, labels, v) for (n, labels), v in values.items() if n == name]
            for (n, labels), row in observed.items():
                if n == name:
                    bounds = [*map(str, BUCKETS), "+Inf"]
                    lines += [
                        _line(f"{n}_bucket", (*labels, ("le", bound)), count)
                        for bound, count in zip(bounds, row, strict=False)
                    ]
                    lines += [
                        _line(f"{n}_count", labels, row[-2]),
                        _line(f"{n}_sum", labels, row[-1]),
                    ]
        return "\n".join(lines) + "\n"


def _line(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{inside}}} {value:g}" if inside else f"{name} {value:g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
