"""What the variants of `infolm mi` print alike."""

from typing import TYPE_CHECKING, Any

from infolm.cli.app import print_table

if TYPE_CHECKING:
    from infolm.data.tables import Samples
    from infolm.information.estimate import Unit
    from infolm.information.panel import Answer


def decimal(value: float) -> str:
    return f"{round(value, 4) + 0.0:.4f}"  # no -0.0000


def print_answer(answer: "Answer") -> None:
    print(f"{answer.verdict[0].upper()}{answer.verdict[1:]}.")
    if answer.kind != "none":
        p = answer.p_value
        print(f"Independence: p {f'= {p:.2g}' if p >= 1e-4 else '< 0.0001'}.")
    if answer.kind == "about":
        print(f"This equals the information of Gaussians with correlation {answer.normalised:.2f}.")
    if answer.warning:
        print(f"Warning: {answer.warning}.")


def print_source(
    a: "Samples", b: "Samples", unit: "Unit", what: str = "mutual information"
) -> None:
    columns = f"x: {', '.join(a.columns)}; y: {', '.join(b.columns)}"
    if len(columns) > 80:
        columns = f"x has {len(a.columns)} columns, y {len(b.columns)}"
    print(f"{what} in {unit} from {len(a.values):,} pairs ({columns})")


def print_estimates(estimates: list[Any], warnings: bool = True) -> None:
    from infolm.information.registry import side

    print_table(
        ["estimator", "value", "± stderr", "95% interval", "shuffled", "gives"],
        [
            [
                e.estimator,
                decimal(e.value),
                decimal(e.stderr),
                " to ".join(map(decimal, e.interval)),
                decimal(e.permuted),
                side(e.bound),
            ]
            for e in estimates
        ],
        right={1, 2, 3, 4},
    )
    for e in estimates if warnings else ():
        if e.warning:
            print(f"{e.estimator}: {e.warning}.")
