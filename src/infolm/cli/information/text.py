"""`infolm mi TEXT`: the information of segments of a text, and how far it reaches."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infolm.cli.app import print_table
from infolm.cli.information.printing import decimal, print_estimates
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.data.ingest import Report
    from infolm.information.estimate import Unit


@dataclass(frozen=True)
class OfText:
    """The variants of the command that read a text; each prints, and returns what `--json`
    prints."""

    reading: dict[str, Any]
    segments: dict[str, Any]
    settings: dict[str, Any]
    unit: "Unit"
    quiet: bool
    plot: Path | None

    def estimates(self, source: str, names: list[str]) -> dict[str, Any]:
        """The bounds named, one by one."""
        from infolm.console import StageBars
        from infolm.evaluation.generated import BMI_BOUND, check_text, read_text, text_information

        bounds = list(dict.fromkeys(names)) or [BMI_BOUND]
        self._check(source)
        if self.plot:
            raise InfolmError("--plot draws a text by distance: give --distances too")
        check_text(bounds, **self.segments)
        with StageBars() as stages:
            text = read_text(source, **self.reading, report=stages)
            result = text_information(
                text, bounds, **self.segments, report=stages, **self.settings
            ).to(self.unit)
        if not self.quiet:
            split = f"the {text.split} split of {text.name}" if text.split else text.name
            print(
                f"mutual information in {self.unit} from {result.estimates[0].samples:,} pairs of "
                f"segments of {split} ({len(text.tokens):,} {text.kind} tokens, {text.types:,} "
                f"types);\n{result.length} tokens each, {result.gap} between them; trained on "
                f"{result.pairs:,} pairs, one every {result.stride} tokens"
            )
            print_estimates(result.estimates)
            if result.exact is not None:
                print(f"exact: {decimal(result.exact)} {self.unit}")
        described = {
            "text": text.name,
            "split": text.split,
            "kind": text.kind,
            "tokens": len(text.tokens),
            "types": text.types,
        }
        return described | result.as_dict()

    def by_distance(self, sources: list[str], names: list[str], gaps: list[int]) -> dict[str, Any]:
        """The first bound at several gaps for each text; a text is read once."""
        from infolm.console import StageBars
        from infolm.evaluation.generated import BMI_BOUND, check_text, read_text, text_information

        bounds = names[:1] or [BMI_BOUND]
        for source in sources:
            self._check(source)
        for gap in gaps:
            check_text(bounds, gap=gap, **self.segments)
        results = []
        with StageBars() as stages:
            texts = [read_text(source, **self.reading, report=stages) for source in sources]
            for text in texts:
                found = [
                    text_information(
                        text,
                        bounds,
                        gap=gap,
                        **self.segments,
                        report=_stage(stages, f"{text.name}, {gap:,} tokens between"),
                        **self.settings,
                    )
                    for gap in gaps
                ]
                measured = [each.to(self.unit).as_dict() for each in found]
                results.append({"text": text.name, "split": text.split, "distances": measured})
        if self.plot:
            _draw_distances(results, self.plot)
        if not self.quiet:
            _print_distances(results)
        first, *beside = results
        return first | ({"beside": beside} if beside else {})

    def _check(self, source: str) -> None:
        from infolm.data.tables import holds_samples

        if holds_samples(source):
            raise InfolmError(
                f"{source} holds samples: name the samples Y too, as in infolm mi x.npy y.npy"
            )
        for option in ("fast", "neighbours", "sequence"):
            if option in self.settings:
                raise InfolmError(
                    f"--{option} is for samples X and Y, not for a text: leave it out"
                )


def whole_numbers(distances: str, gap: int | None) -> list[int]:
    """The gaps that --distances lists."""
    if gap is not None:
        raise InfolmError(
            "--gap is one distance and --distances are several: give only one of the two"
        )
    try:
        return [int(each) for each in distances.split(",")]
    except ValueError:
        raise InfolmError(
            f"--distances are whole numbers with commas between, not '{distances}'"
        ) from None


def _stage(report: "Report", name: str) -> "Report":
    """The report under the name of one text and distance, of which each takes minutes."""
    return lambda stage, done, total: report(f"{name}: {stage}", done, total)


def _print_distances(results: list[dict[str, Any]]) -> None:
    lines = []
    for result in results:
        for each in result["distances"]:
            (estimate,) = each["estimates"]
            exact = "" if each["exact"] is None else decimal(each["exact"])
            interval = " to ".join(map(decimal, estimate["interval"]))
            lines.append(
                [
                    *(result["text"], f"{each['gap']:,}", decimal(estimate["value"]), interval),
                    *(decimal(estimate["permuted"]), exact),
                ]
            )
    first = results[0]["distances"][0]
    print(
        f"mutual information in {first['unit']} of segments of {first['length']} tokens by distance"
    )
    print_table(
        ["text", "tokens between", "value", "95% interval", "shuffled", "exact"],
        lines,
        right={1, 2, 3, 4, 5},
    )


def _draw_distances(results: list[dict[str, Any]], path: Path) -> None:
    """Information against distance, both on a log scale; a distance of 0 is drawn at 1/2.

    A value whose interval begins at 0 is a hollow mark at `least`, about the level of chance.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    least = 1e-3
    figure, panel = plt.subplots(figsize=(6.4, 4.2))
    for at, result in enumerate(results):
        found, colour = result["distances"], f"C{at}"
        places = [max(each["gap"], 0.5) for each in found]
        read = [each["estimates"][0] for each in found]
        seen = [each["interval"][0] > 0 for each in read]
        values = [
            max(e["value"], least) if yes else least for e, yes in zip(read, seen, strict=True)
        ]
        panel.loglog(places, values, "-", color=colour, label=result["text"])
        for place, value, yes in zip(places, values, seen, strict=True):
            face = colour if yes else "white"
            panel.plot(place, value, "o", ms=5, color=colour, mfc=face, clip_on=False, zorder=3)
        lows, highs = ([max(each["interval"][side], least) for each in read] for side in (0, 1))
        panel.fill_between(places, lows, highs, alpha=0.15, color=colour, lw=0)
        if found[0]["exact"] is not None:
            exact = [max(each["exact"], least / 10) for each in found]
            label = f"{result['text']}, exact"
            panel.loglog(places, exact, "--", color=colour, lw=1, label=label)
    first = results[0]["distances"][0]
    panel.set(
        xlabel="tokens between the segments",
        ylabel=f"mutual information, {first['unit']}",
        title=f"segments of {first['length']} tokens, by {first['estimates'][0]['estimator']}",
    )
    panel.set_ylim(bottom=least)
    panel.legend(frameon=False, fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
