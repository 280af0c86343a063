"""`infolm mi X Y`: information of samples, of all pairs of columns, given others, or planted."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infolm.cli.app import print_table
from infolm.cli.information.printing import decimal, print_answer, print_estimates, print_source
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.data.tables import Samples
    from infolm.information.estimate import Estimator, Unit
    from infolm.information.panel import Panel


@dataclass(frozen=True)
class OfSamples:
    """The variants of the command that read samples; each prints, and returns what `--json`
    prints."""

    missing: Any
    settings: dict[str, Any]
    unit: "Unit"
    quiet: bool
    plot: Path | None

    def read(self, *sources: str) -> "list[Samples]":
        from infolm.data.tables import complete, read_samples

        found = [read_samples(source, self.missing) for source in sources]
        kept, gone = complete(*found) if self.missing == "drop" else (found, 0)
        if gone and not self.quiet:
            print(f"{gone:,} rows with a missing value are left out")
        return kept

    def _refuse_plot(self) -> None:
        if self.plot:
            raise InfolmError("--plot draws a matrix or a proof: give --matrix or --prove too")

    def panel(self, **more: Any) -> "Panel":
        from dataclasses import fields

        from infolm.information.panel import Panel

        known = {each.name for each in fields(Panel)}
        for option in self.settings:
            if option not in known:
                raise InfolmError(
                    f"--{option} does nothing for the panel: leave it out, or choose an estimator "
                    "with -e"
                )
        return Panel(**self.settings, **more)

    def estimators(self, names: list[str], stages: Any) -> dict[str, "Estimator"]:
        from functools import partial

        from infolm.information.registry import entry, estimator

        entries = {name: entry(name) for name in names}
        for option in self.settings if entries else ():
            if not any(option in each.settings for each in entries.values()):
                raise InfolmError(f"--{option} does nothing for {', '.join(entries)}: leave it out")
        made = {}
        for name, each in entries.items():
            offered = self.settings | ({"progress": partial(stages, name)} if stages else {})
            taken = {key: offered[key] for key in each.settings if key in offered}
            made[name] = estimator(name, **taken)
        return made

    def answer(self, x: str, y: str) -> dict[str, Any]:
        """The panel's answer, and the estimates behind it."""
        from functools import partial

        from infolm.console import StageBars

        self.panel()  # reports wrong options before any work
        self._refuse_plot()
        a, b = self.read(x, y)
        with StageBars() as stages:
            panel = self.panel(progress=partial(stages, "mine"))
            answer = panel.estimate(a.values, b.values).to(self.unit)
        if not self.quiet:
            print_source(a, b, self.unit)
            print_estimates(list(answer.estimates), warnings=False)
            print_answer(answer)
        return {
            "answer": answer.as_dict(),
            "estimates": [estimate.as_dict() for estimate in answer.estimates],
        }

    def estimates(self, x: str, y: str, names: list[str]) -> dict[str, Any]:
        """The estimators named, one by one."""
        from infolm.console import StageBars
        from infolm.information.estimate import pairs
        from infolm.information.registry import ESTIMATORS, entry

        self.estimators(names, None)
        self._refuse_plot()
        a, b = self.read(x, y)
        for name in names:
            for column in () if entry(name).categories else a.words + b.words:
                able = ", ".join(name for name, each in ESTIMATORS.items() if each.categories)
                raise InfolmError(
                    f"column '{column}' holds words, which {name} would take for numbers: choose "
                    f"another estimator with -e, among {able}"
                )
        pairs(a.values, b.values)  # reports wrong samples before any work
        found = {}
        with StageBars() as stages:
            made = self.estimators(names, stages)
            for name in sorted(made, key=lambda name: entry(name).neural):  # quick estimators first
                try:
                    found[name] = made[name].estimate(a.values, b.values).to(self.unit)
                except InfolmError as error:
                    many = len(made) > 1
                    raise InfolmError(f"{name}: {error}" if many else str(error)) from None
        estimates = [found[name] for name in made]
        if not self.quiet:
            print_source(a, b, self.unit)
            print_estimates(estimates)
        return {"estimates": [estimate.as_dict() for estimate in estimates]}

    def conditional(
        self, x: str, y: str, given: str | None, history: int | None, names: list[str]
    ) -> dict[str, Any]:
        """I(X; Y | Z), or the transfer entropy from X to Y with a history."""
        from infolm.information.conditional import conditional_information, transfer_entropy

        taken = {key: self.settings[key] for key in ("neighbours", "seed") if key in self.settings}
        for option in self.settings.keys() - taken:
            raise InfolmError(f"--{option} does nothing with --given or --transfer: leave it out")
        if names or self.plot:
            raise InfolmError("--given and --transfer take no --estimator and no --plot")
        if given is not None:
            a, b, c = self.read(x, y, given)
            answer = conditional_information(a.values, b.values, c.values, **taken)
            what = f"information of x and y given {', '.join(c.columns)}"
        else:
            a, b = self.read(x, y)
            answer = transfer_entropy(a.values, b.values, history=history or 1, **taken)
            what = f"transfer entropy from x to y, history {history or 1}"
        answer = answer.to(self.unit)
        if not self.quiet:
            print_source(a, b, self.unit, what)
            print_answer(answer)
        return {"answer": answer.as_dict()}

    def matrix(self, x: str) -> dict[str, Any]:
        """All pairs of columns."""
        from dataclasses import replace
        from functools import partial

        from infolm.console import StageBars
        from infolm.information.matrix import draw_matrix, matrix

        panel = replace(self.panel(), fast=True)
        (a,) = self.read(x)
        with StageBars() as stages:
            found = matrix(a.values, a.columns, panel, partial(stages, "pairs of columns"))
        found = [replace(pair, answer=pair.answer.to(self.unit)) for pair in found]
        if self.plot:
            draw_matrix(found, a.columns, self.plot)
        if not self.quiet:
            print(f"mutual information in {self.unit} from {len(a.values):,} rows")
            print_table(
                ["x", "y", "value", "95% interval", "p", "corrected p", "warned"],
                [
                    [
                        *(pair.x, pair.y, decimal(pair.answer.value)),
                        " to ".join(map(decimal, pair.answer.interval)),
                        *(f"{p:.2g}" for p in (pair.answer.p_value, pair.corrected_p)),
                        "yes" if pair.answer.warning else "",
                    ]
                    for pair in found
                ],
                right={2, 3, 4, 5},
            )
            for pair in found:
                if pair.answer.warning:
                    print(f"{pair.x}, {pair.y}: {pair.answer.warning}.")
        return {
            "pairs": [
                {"x": pair.x, "y": pair.y, "corrected_p": pair.corrected_p} | pair.answer.as_dict()
                for pair in found
            ]
        }

    def proof(self, x: str, y: str, names: list[str]) -> dict[str, Any]:
        """The estimates of planted amounts by the panel and the named estimators."""
        from dataclasses import asdict, replace
        from functools import partial

        from infolm.console import StageBars
        from infolm.information import prove

        a, b = self.read(x, y)
        with StageBars() as stages:
            readers: dict[str, Any] = {
                name: each.estimate for name, each in self.estimators(names, stages).items()
            }
            if not names:
                readers = {"panel": replace(self.panel(), permutations=39).estimate}
                for name in ("ksg", "copula"):
                    readers[name] = self.reader(name)
            seed = self.settings["seed"]
            step = partial(stages, "planted")
            readings = prove.proved(a.values, b.values, readers, seed, step)
        sentences = [prove.sentence(readings, name, len(a.values)) for name in readers]
        if self.plot:
            prove.draw(readings, self.plot)
        if not self.quiet:
            print_source(a, b, "nats", "planted information")
            print_table(
                ["estimator", "planted", "read", "95% interval", "held", "warned"],
                [
                    [
                        *(each.estimator, f"{each.planted:g}", decimal(each.value)),
                        " to ".join(map(decimal, each.interval)),
                        "yes" if each.held else "no",
                        "yes" if each.warning else "",
                    ]
                    for each in readings
                ],
                right={1, 2, 3},
            )
            for told in sentences:
                print(f"{told[0].upper()}{told[1:]}.")
        return {"planted": [asdict(reading) for reading in readings], "sentences": sentences}

    def reader(self, name: str) -> Any:
        from infolm.information.registry import estimator

        return estimator(name, seed=self.settings["seed"]).estimate
