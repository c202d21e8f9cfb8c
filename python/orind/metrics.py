"""Parser of `/metrics`."""

import re
from typing import Dict, Iterator, List, NamedTuple, Optional

_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_LINE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)")


class Sample(NamedTuple):
    """One value of a metric."""

    name: str
    labels: Dict[str, str]
    value: float


class Metrics:
    """Metrics of a daemon: `metrics["orind_slots"]`, or `value` with labels."""

    def __init__(self, text: str) -> None:
        self.samples: List[Sample] = []
        for line in text.splitlines():
            found = None if line.startswith("#") else _LINE.match(line)
            if found:
                labels = {name: _plain(value) for name, value in _LABEL.findall(found.group(2) or "")}
                self.samples.append(Sample(found.group(1), labels, float(found.group(3))))

    def value(self, name: str, **labels: str) -> Optional[float]:
        """Returns the value of the first sample that has these labels, or `None`."""
        for sample in self.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
        return None

    def __getitem__(self, name: str) -> float:
        value = self.value(name)
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def __len__(self) -> int:
        return len(self.samples)


def _plain(value: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found.group(1) == "n" else found.group(1), value)
