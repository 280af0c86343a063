"""`infolm mi`: mutual information of samples, or of segments of a text."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infolm.cli.app import JsonOption, app, print_table
from infolm.errors import InfolmError

if TYPE_CHECKING:
    from infolm.data.ingest import Report
    from infolm.data.tables import Samples
    from infolm.information.estimate import Estimator, Unit
    from infolm.information.panel import Answer, Panel

OF_SAMPLES, OF_TEXT = "Options of samples X and Y", "Options of a text"


def _list_estimators(wanted: bool) -> None:
    if not wanted:
        return
    from infolm.information.registry import describe

    header = ["estimator", "what it is", "gives", "use it for"]
    print_table(header, [list(line) for line in describe()])
    raise typer.Exit


@app.command()
def mi(
    x: Annotated[
        str,
        typer.Argument(
            metavar="X", help="Samples: a .npy file, or FILE.csv:COLUMN,... (Parquet too); or TEXT."
        ),
    ],
    y: Annotated[
        str | None,
        typer.Argument(metavar="Y", help="The other samples, row by row; none: X is a text."),
    ] = None,
    estimators: Annotated[
        list[str] | None,
        typer.Option(
            "--estimator",
            "-e",
            metavar="NAME[,NAME]...",
            help="Names from --list.",
            show_default="a panel; js-dv for a text",
        ),
    ] = None,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="The panel without its critic; takes seconds.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = False,
    given: Annotated[
        str | None,
        typer.Option(
            metavar="Z",
            help="Condition on Z: the information of X and Y given Z.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = None,
    transfer: Annotated[
        bool,
        typer.Option(
            "--transfer",
            help="Transfer entropy from the series X to the series Y.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = False,
    history: Annotated[
        int | None,
        typer.Option(
            help="With --transfer: the number of past rows.",
            show_default="1",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = None,
    matrix: Annotated[
        bool,
        typer.Option(
            "--matrix",
            help="Estimate for all pairs of the columns of X.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = False,
    prove: Annotated[
        bool,
        typer.Option(
            "--prove",
            help="Plant known amounts of information into copies of the columns, and estimate "
            "them.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = False,
    missing: Annotated[
        str,
        typer.Option(
            metavar="refuse|drop",
            help="What to do with rows that miss a value.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = "refuse",
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw the matrix, the proof or the text's distances (.png)."
        ),
    ] = None,
    neighbours: Annotated[
        int | None,
        typer.Option(
            help="Nearest neighbours of ksg, ksg2 and mixture.",
            show_default="3",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(help="Folds of the neural bounds.", show_default="5; 10 for a text"),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum training steps in each fold of the neural bounds.",
            show_default="2000",
        ),
    ] = None,
    sequence: Annotated[
        bool,
        typer.Option(
            "--sequence",
            help="Rows are a time series: folds are contiguous.",
            rich_help_panel=OF_SAMPLES,
        ),
    ] = False,
    length: Annotated[
        int | None,
        typer.Option(help="Tokens of a segment.", show_default="40", rich_help_panel=OF_TEXT),
    ] = None,
    gap: Annotated[
        int | None,
        typer.Option(
            help="Tokens between the two segments.", show_default="10", rich_help_panel=OF_TEXT
        ),
    ] = None,
    distances: Annotated[
        str | None,
        typer.Option(
            metavar="GAP,GAP...",
            help="Several gaps, to see how far dependence reaches.",
            rich_help_panel=OF_TEXT,
        ),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="With --distances: another text to measure and draw.",
            rich_help_panel=OF_TEXT,
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            help="Tokens between training pairs; test pairs share no token.",
            show_default="15; a sixth of a pair",
            rich_help_panel=OF_TEXT,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Split of a corpus; a file is read whole.",
            show_default="train",
            rich_help_panel=OF_TEXT,
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="word|char|byte",
            help="The kind of token.",
            show_default="word, or the corpus's own",
            rich_help_panel=OF_TEXT,
        ),
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option(help="Maximum size of the vocabulary.", rich_help_panel=OF_TEXT)
    ] = None,
    pretokenised: Annotated[
        bool,
        typer.Option(
            "--pretokenised",
            help="Words are separated by blanks already, as in generated text.",
            rich_help_panel=OF_TEXT,
        ),
    ] = False,
    bits: Annotated[bool, typer.Option("--bits", help="Report bits instead of nats.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    as_json: JsonOption = False,
    listed: Annotated[
        bool,
        typer.Option(
            "--list",
            help="List the estimators, and when to use which.",
            is_eager=True,
            callback=_list_estimators,
        ),
    ] = False,
) -> None:
    """Estimate mutual information of paired samples, or of segments of a text.

    \b
    infolm mi x.npy y.npy
    infolm mi people.csv:height,weight people.csv:age --fast
    infolm mi x.npy y.npy -e mine,ksg
    infolm mi x.npy y.npy --given z.npy
    infolm mi people.csv --matrix --plot people.png
    infolm mi x.npy y.npy --prove
    infolm mi ptb --length 40 --gap 10
    infolm mi generated.txt --pretokenised

    \b
    Columns are named, or counted from 1; row i of X and of Y is one pair.
    A text is a name from `infolm corpora` or a file. A pair is two of its
    segments, some tokens apart.
    """
    names = [name.strip() for each in estimators or [] for name in each.split(",") if name.strip()]
    settings = _given(
        fast=fast or None,
        neighbours=neighbours,
        folds=folds,
        steps=steps,
        sequence=sequence or None,
        seed=seed,
    )
    reading = _given(
        split=split, tokens=tokens, vocabulary=vocabulary, pretokenised=pretokenised or None
    )
    segments = _given(length=length, gap=gap, stride=stride)
    unit: Unit = "bits" if bits else "nats"
    if missing not in ("refuse", "drop"):
        raise InfolmError(f"--missing is refuse or drop, not '{missing}'")
    samples = _OfSamples(missing, settings, unit, as_json, plot)
    if matrix:
        if y is not None or given is not None or transfer or prove or names:
            raise InfolmError(
                "--matrix takes one file and always uses the panel: leave the rest out"
            )
        result = samples.matrix(x)
    elif y is None:
        for option, wanted in (("given", given), ("transfer", transfer), ("prove", prove)):
            if wanted:
                raise InfolmError(f"--{option} is for samples X and Y: name Y too")
        if beside and distances is None:
            raise InfolmError("--beside is for --distances: leave it out, or give --distances too")
        if distances is not None:
            gaps, texts = _gaps(distances, gap), [x, *(beside or [])]
            found = _mi_by_distance(texts, names, reading, segments, settings, unit, gaps, plot)
            if not as_json:
                _print_distances(found)
            result = found[0] | ({"beside": found[1:]} if beside else {})
        else:
            result = _mi_of_text(x, names, reading, segments, settings, unit, quiet=as_json)
    else:
        for option in {**reading, **segments, **_given(distances=distances, beside=beside)}:
            raise InfolmError(f"--{option} is for a text: leave it out, or leave Y out")
        if history is not None and not transfer:
            raise InfolmError("--history is for --transfer: leave it out")
        if given is not None or transfer:
            result = samples.conditional(x, y, given, history if transfer else None, names)
        elif prove:
            result = samples.proof(x, y, names)
        elif names:
            result = samples.estimates(x, y, names)
        else:
            result = samples.answer(x, y)
    if as_json:
        print(json.dumps(result, indent=2))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class _OfSamples:
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
        a, b = self.read(x, y)
        with StageBars() as stages:
            panel = self.panel(progress=partial(stages, "mine"))
            answer = panel.estimate(a.values, b.values).to(self.unit)
        if not self.quiet:
            _print_source(a, b, self.unit)
            _print_estimates(list(answer.estimates), warnings=False)
            _print_answer(answer)
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
            _print_source(a, b, self.unit)
            _print_estimates(estimates)
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
            _print_source(a, b, self.unit, what)
            _print_answer(answer)
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
                        *(pair.x, pair.y, _decimal(pair.answer.value)),
                        " to ".join(map(_decimal, pair.answer.interval)),
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
            _print_source(a, b, "nats", "planted information")
            print_table(
                ["estimator", "planted", "read", "95% interval", "held", "warned"],
                [
                    [
                        *(each.estimator, f"{each.planted:g}", _decimal(each.value)),
                        " to ".join(map(_decimal, each.interval)),
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


def _print_answer(answer: "Answer") -> None:
    print(f"{answer.verdict[0].upper()}{answer.verdict[1:]}.")
    if answer.kind != "none":
        p = answer.p_value
        print(f"Independence: p {f'= {p:.2g}' if p >= 1e-4 else '< 0.0001'}.")
    if answer.kind == "about":
        print(f"This equals the information of Gaussians with correlation {answer.normalised:.2f}.")
    if answer.warning:
        print(f"Warning: {answer.warning}.")


def _print_source(
    a: "Samples", b: "Samples", unit: "Unit", what: str = "mutual information"
) -> None:
    columns = f"x: {', '.join(a.columns)}; y: {', '.join(b.columns)}"
    if len(columns) > 80:
        columns = f"x has {len(a.columns)} columns, y {len(b.columns)}"
    print(f"{what} in {unit} from {len(a.values):,} pairs ({columns})")


def _mi_of_text(
    source: str,
    names: list[str],
    reading: dict[str, Any],
    segments: dict[str, Any],
    settings: dict[str, Any],
    unit: "Unit",
    quiet: bool,
) -> dict[str, Any]:
    from infolm.data.tables import holds_samples

    if holds_samples(source):
        raise InfolmError(
            f"{source} holds samples: name the samples Y too, as in infolm mi x.npy y.npy"
        )
    for option in ("fast", "neighbours", "sequence"):
        if option in settings:
            raise InfolmError(f"--{option} is for samples X and Y, not for a text: leave it out")

    from infolm.console import StageBars
    from infolm.evaluation.generated import BMI_BOUND, check_text, read_text, text_information

    bounds = list(dict.fromkeys(names)) or [BMI_BOUND]
    check_text(bounds, **segments)
    with StageBars() as stages:
        text = read_text(source, **reading, report=stages)
        result = text_information(text, bounds, **segments, report=stages, **settings).to(unit)
    if not quiet:
        split = f"the {text.split} split of {text.name}" if text.split else text.name
        print(
            f"mutual information in {unit} from {result.estimates[0].samples:,} pairs of segments "
            f"of {split} ({len(text.tokens):,} {text.kind} tokens, {text.types:,} types);\n"
            f"{result.length} tokens each, {result.gap} between them; trained on {result.pairs:,} "
            f"pairs, one every {result.stride} tokens"
        )
        _print_estimates(result.estimates)
        if result.exact is not None:
            print(f"exact: {_decimal(result.exact)} {unit}")
    described = {
        "text": text.name,
        "split": text.split,
        "kind": text.kind,
        "tokens": len(text.tokens),
        "types": text.types,
    }
    return described | result.as_dict()


def _gaps(distances: str, gap: int | None) -> list[int]:
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


def _mi_by_distance(
    sources: list[str],
    names: list[str],
    reading: dict[str, Any],
    segments: dict[str, Any],
    settings: dict[str, Any],
    unit: "Unit",
    gaps: list[int],
    plot: Path | None,
) -> list[dict[str, Any]]:
    """The same estimate at several gaps for each text; a text is read once."""
    from infolm.console import StageBars
    from infolm.evaluation.generated import BMI_BOUND, check_text, read_text, text_information

    bounds = names[:1] or [BMI_BOUND]
    for gap in gaps:
        check_text(bounds, gap=gap, **segments)
    results = []
    with StageBars() as stages:
        texts = [read_text(source, **reading, report=stages) for source in sources]
        for text in texts:
            found = [
                text_information(
                    text,
                    bounds,
                    gap=gap,
                    **segments,
                    report=_stage(stages, f"{text.name}, {gap:,} tokens between"),
                    **settings,
                )
                for gap in gaps
            ]
            measured = [each.to(unit).as_dict() for each in found]
            results.append({"text": text.name, "split": text.split, "distances": measured})
    if plot:
        _draw_distances(results, plot)
    return results


def _stage(report: "Report", name: str) -> "Report":
    """The report under the name of one text and distance, of which each takes minutes."""
    return lambda stage, done, total: report(f"{name}: {stage}", done, total)


def _print_distances(results: list[dict[str, Any]]) -> None:
    lines = []
    for result in results:
        for each in result["distances"]:
            (estimate,) = each["estimates"]
            exact = "" if each["exact"] is None else _decimal(each["exact"])
            interval = " to ".join(map(_decimal, estimate["interval"]))
            lines.append(
                [
                    *(result["text"], f"{each['gap']:,}", _decimal(estimate["value"]), interval),
                    *(_decimal(estimate["permuted"]), exact),
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

    Values below `least` nats, the level of chance, are drawn at `least`.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    least = 1e-4
    figure, panel = plt.subplots(figsize=(6.4, 4.2))
    for at, result in enumerate(results):
        found, colour = result["distances"], f"C{at}"
        places = [max(each["gap"], 0.5) for each in found]
        read = [each["estimates"][0] for each in found]
        values = [max(each["value"], least) for each in read]
        panel.loglog(places, values, "o-", ms=4, color=colour, label=result["text"])
        lows, highs = ([max(each["interval"][side], least) for each in read] for side in (0, 1))
        panel.fill_between(places, lows, highs, alpha=0.15, color=colour, lw=0)
        if found[0]["exact"] is not None:
            exact = [max(each["exact"], least) for each in found]
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


def _decimal(value: float) -> str:
    return f"{round(value, 4) + 0.0:.4f}"  # no -0.0000


def _print_estimates(estimates: list[Any], warnings: bool = True) -> None:
    from infolm.information.registry import side

    print_table(
        ["estimator", "value", "± stderr", "95% interval", "shuffled", "gives"],
        [
            [
                e.estimator,
                _decimal(e.value),
                _decimal(e.stderr),
                " to ".join(map(_decimal, e.interval)),
                _decimal(e.permuted),
                side(e.bound),
            ]
            for e in estimates
        ],
        right={1, 2, 3, 4},
    )
    for e in estimates if warnings else ():
        if e.warning:
            print(f"{e.estimator}: {e.warning}.")
