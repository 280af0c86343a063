"""Single symbols, all equally likely: a corpus on which a code is never needed, but can carry all
information (Melis 2023, section 5.7.1).

A line is one symbol. Every split has each of them once, so a model is trained and measured on the
distribution itself: its entropy is ln(symbols) nats per line, which is also the maximum mutual
information with a code.
"""

from pydantic import Field

from infolm.section import Section

NAME = "uniform"
VERSION = 1  # raise it when other text comes out


class UniformConfig(Section):
    """The size of the task; by default the thesis's."""

    symbols: int = Field(10_000, ge=2, description="different ones: 0, 1, 2, ...")

    @property
    def name(self) -> str:
        return f"{NAME}-{self.symbols}-v{VERSION}"

    @property
    def vocabulary(self) -> int:
        """With `<eos>` and `<unk>`."""
        return self.symbols + 2


def splits(config: UniformConfig) -> dict[str, str]:
    """The lines of each split."""
    text = "".join(f"{number}\n" for number in range(config.symbols))
    return dict.fromkeys(("train", "valid", "test"), text)
