"""The plot of a report: one SVG that shows every record and takes the page's colours."""

import math
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from infolm.reports.curves import (
    POINTS,
    draw,
    draw_after,
    draw_regulariser,
    epoch_ticks,
    limits,
    perplexity_ticks,
)
from infolm.reports.history import History

SVG = "{http://www.w3.org/2000/svg}"


def step(number: int, nll: float, epoch: int = 0) -> dict[str, Any]:
    values = {"likelihood/nll": nll, "tokens_per_second": 1000.0 + number}
    return {"kind": "step", "step": number, "epoch": epoch, **values}


def validation(number: int, loss: float, epoch: int = 0) -> dict[str, Any]:
    return {"kind": "validation", "step": number, "epoch": epoch, "loss": loss}


def event(number: int, name: str) -> dict[str, Any]:
    return {"kind": "event", "step": number, "name": name}


def parse(records: list[dict[str, Any]]) -> ElementTree.Element:
    return ElementTree.fromstring(draw(History.of(records)))


def points(svg: ElementTree.Element, name: str) -> list[tuple[float, float]]:
    """The corners of the line drawn in the group `name`."""
    path = svg.find(f".//{SVG}g[@id='{name}']/{SVG}path")
    assert path is not None
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path.get("d", ""))]


def texts(svg: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in svg.iter(f"{SVG}text")]


RUN = [
    step(10, 6.0),
    step(20, 5.0),
    validation(20, 5.2, epoch=1),
    step(30, 4.5, epoch=1),
    validation(30, 4.6, epoch=1),
    event(30, "triggered"),
    step(40, 4.0, epoch=1),
    validation(40, 4.7, epoch=2),
    event(40, "stopped"),
]


def test_every_record_is_a_point() -> None:
    svg = parse(RUN)
    assert len(points(svg, "training")) == len(points(svg, "speed")) == 4
    assert len(points(svg, "validation")) == 3
    dots = svg.findall(f".//{SVG}g[@id='validation']//{SVG}use")
    assert len(dots) == 3


def test_points_lie_where_the_axes_say() -> None:
    """Both curves share the axes, so their places follow from two points of one of them."""
    svg = parse(RUN)
    (x0, y0), *_, (x1, y1) = points(svg, "training")  # (10, 6.0) ... (40, 4.0)
    for (x, y), (at, loss) in zip(
        points(svg, "validation"), [(20, 5.2), (30, 4.6), (40, 4.7)], strict=True
    ):
        assert x == pytest.approx(x0 + (x1 - x0) * (at - 10) / 30, abs=1e-3)
        assert y == pytest.approx(y0 + (y1 - y0) * (6.0 - loss) / 2, abs=1e-3)


def test_events_stand_at_their_steps_and_in_the_legend() -> None:
    svg = parse(RUN)
    x = [x for x, _ in points(svg, "training")]
    for number, at in enumerate((x[2], x[3])):
        line = points(svg, f"event-{number}")
        assert [place for place, _ in line] == pytest.approx([at, at], abs=1e-3)
    assert {"training", "validation", "triggered", "stopped"} <= set(texts(svg))
    assert f"best validation: perplexity {math.exp(4.6):.4g}" in texts(svg)


def test_an_event_that_comes_often_is_named_once() -> None:
    svg = parse([*RUN, event(50, "rate reduced"), event(60, "rate reduced")])
    assert texts(svg).count("rate reduced") == 1
    assert len(points(svg, "event-2")) == len(points(svg, "event-3")) == 2


def two_tailed(number: int, lengths: tuple[int, int], **losses: float) -> dict[str, Any]:
    values = {"loss": losses["long"], "answer": "long", **losses}
    return validation(number, 0.0) | values | dict(zip(LENGTHS, lengths, strict=True))


LENGTHS = ("short_length", "long_length")
MEANS = [
    step(10, 6.0),
    two_tailed(10, (10, 10), raw=5.0, long=4.9),
    two_tailed(20, (10, 20), raw=5.1, short=4.8, long=4.7),
    two_tailed(30, (20, 30), raw=4.9, short=4.6, long=4.65),
    event(30, "switched"),
    event(30, "triggered"),
    two_tailed(40, (10, 30), raw=4.8, short=4.7, long=4.5),
]


def test_two_means_have_a_panel_of_their_losses_and_one_of_the_length() -> None:
    svg = parse(MEANS)
    counts = {name: len(points(svg, name)) for name in ("raw", "short", "long", "length")}
    assert counts == {"raw": 4, "short": 3, "long": 4, "length": 4}
    heights = [y for _, y in points(svg, "length")]  # of 10, 20, 20 and 30 iterates
    assert heights[1] == pytest.approx(heights[2])
    assert heights[0] - heights[1] == pytest.approx(heights[2] - heights[3], abs=1e-3)
    assert {"raw", "short", "long", "switched", "triggered"} <= set(texts(svg))
    found = svg.find(f"{SVG}desc")
    assert found is not None
    assert "The long mean has 30 iterates at the end and at most 30." in str(found.text)
    assert "switched" not in str(found.text)


def test_what_befalls_the_means_stands_by_their_length_alone() -> None:
    svg = parse(MEANS)
    (_, top), (_, bottom) = points(svg, "event-0")  # switched
    lengths = [y for _, y in points(svg, "length")]
    assert min(top, bottom) <= min(lengths) <= max(lengths) <= max(top, bottom)
    (_, above), (_, below) = points(svg, "event-1")  # triggered
    assert max(above, below) < min(top, bottom)


def test_one_mean_needs_no_further_panel() -> None:
    svg = parse(RUN)
    assert svg.find(f".//{SVG}g[@id='length']") is None
    assert svg.find(f".//{SVG}g[@id='raw']") is None


BMI = [
    step(10, 6.0) | {"bmi/loss": 1.4, "bmi/jensen_shannon": -1.4, "bmi/mine": 0.0},
    step(20, 5.0) | {"bmi/loss": 1.0, "bmi/jensen_shannon": -1.0, "bmi/mine": 0.4},
    validation(20, 5.2, epoch=1),
    event(20, "triggered"),
    event(20, "phase two"),
    step(30, 4.5) | {"bmi/jensen_shannon": -0.8, "bmi/mine": 0.6, "bmi/raml": 5.0},
    validation(30, 4.8, epoch=1),
    step(40, 4.0) | {"bmi/jensen_shannon": -0.6, "bmi/mine": 1.0, "bmi/raml": 4.0},
    validation(40, 4.6, epoch=2),
]


def regulariser(records: list[dict[str, Any]]) -> ElementTree.Element:
    return ElementTree.fromstring(draw_regulariser(History.of(records), "bmi"))


def test_bounds_share_a_panel_with_their_levels_of_ignorance() -> None:
    svg = regulariser(BMI)
    bound, mine = points(svg, "bmi-jensen_shannon"), points(svg, "bmi-mine")
    assert [x for x, _ in bound] == [x for x, _ in mine]
    nat = bound[0][1] - bound[1][1]  # 0.4 nats
    assert mine[0][1] - mine[1][1] == pytest.approx(nat, abs=1e-3)
    (_, nothing), _ = points(svg, "bmi-mine-ignorance")
    assert nothing == pytest.approx(mine[0][1], abs=1e-3)
    (_, ignorant), _ = points(svg, "bmi-jensen_shannon-ignorance")
    assert ignorant - nothing == pytest.approx(2 * math.log(2) * nat / 0.4, abs=1e-2)
    assert {"bound (eq. 6)", "MINE (eq. 4)", "nats"} <= set(texts(svg))
    assert texts(svg).count("an untrained critic") == 1


def test_phase_two_is_marked_in_every_panel_and_named_once() -> None:
    svg = regulariser(BMI)
    x = points(svg, "bmi-mine")[1][0]
    for panel in ("jensen_shannon", "raml"):
        (left, top), (right, bottom) = points(svg, f"bmi-{panel}-event-1")
        assert (left, right) == pytest.approx((x, x), abs=1e-3)
        inside = [y for _, y in points(svg, f"bmi-{panel}")]
        assert min(top, bottom) < min(inside) <= max(inside) < max(top, bottom)
    assert texts(svg).count("phase two") == 1
    assert "triggered" not in texts(svg)


def test_a_panel_reaches_to_the_level_of_ignorance() -> None:
    svg = regulariser([step(20, 5.0) | {"bmi/accuracy": 0.9}, event(20, "phase two")])
    (_, bottom), (_, top) = points(svg, "bmi-accuracy-event-0")
    (_, level), _ = points(svg, "bmi-accuracy-ignorance")
    assert top < level < bottom


def test_what_comes_with_phase_two_begins_there() -> None:
    svg = regulariser(BMI)
    assert [x for x, _ in points(svg, "bmi-raml")] == [x for x, _ in points(svg, "bmi-mine")[2:]]
    assert svg.find(f".//{SVG}g[@id='bmi-loss']") is None  # the bound with another sign


def test_a_quantity_of_an_unknown_kind_has_its_panel() -> None:
    svg = regulariser([step(i, 5.0) | {"bmi/surprise": float(i)} for i in range(1, 9)])
    assert len(points(svg, "bmi-surprise")) == 8
    assert "surprise" in texts(svg)


def test_after_the_switch_perplexities_have_their_own_scale() -> None:
    svg = ElementTree.fromstring(draw_after(History.of(BMI), 20))
    (x0, y0), (x1, y1), (x2, y2) = points(svg, "after-validation")
    assert x1 - x0 == pytest.approx(x2 - x1, abs=1e-3)
    shares = (math.exp(5.2) - math.exp(4.8)) / (math.exp(5.2) - math.exp(4.6))
    assert (y1 - y0) / (y2 - y0) == pytest.approx(shares, abs=1e-3)
    assert {"perplexity", "steps", "validation"} <= set(texts(svg))
    found = svg.find(f"{SVG}desc")
    assert found is not None
    assert found.text == (
        "The validation perplexity goes from 181.27 at step 20 to 99.48 at step 40."
    )


def test_plots_of_one_page_have_identities_of_their_own() -> None:
    history = History.of(BMI)
    drawn = [draw(history), draw_after(history, 20), draw_regulariser(history, "bmi")]
    seen: set[str] = set()
    for svg in drawn:
        tree = ElementTree.fromstring(svg)
        own = {found.get("id", "") for found in tree.iter()} - {""}
        assert not own & seen
        seen |= own
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', svg)) <= own
        assert set(tree.get("aria-labelledby", "").split()) <= own


@pytest.mark.parametrize(
    "values",
    [{"accuracy": 0.5}, {"mine": -1e4}, {"mine": math.nan, "accuracy": 0.5}, {"loss": 1.0}],
    ids=["one point", "huge", "nan", "a loss alone"],
)
def test_odd_regularisers_are_drawn(values: dict[str, float]) -> None:
    named = {f"bmi/{name}": value for name, value in values.items()}
    svg = regulariser([step(20, 7.5) | named, event(20, "phase two")])
    assert "nan" not in ElementTree.tostring(svg, "unicode").lower()


def test_a_regulariser_takes_the_pages_colours() -> None:
    history = History.of(BMI)
    for drawn in (draw_regulariser(history, "bmi"), draw_after(history, 20)):
        assert not re.search(r"#[0-9a-f]{6}\b", drawn)


def test_axes_have_nats_perplexities_steps_and_epochs() -> None:
    svg = parse(RUN)
    assert {"nats per token", "perplexity", "steps", "epochs complete", "tokens/s"} <= set(
        texts(svg)
    )
    assert {"100", "200", "400"} <= set(texts(svg))  # e^4 = 55 to e^6 = 403


def test_the_plot_says_in_words_what_it_shows() -> None:
    svg = parse(RUN)
    assert svg.get("role") == "img"
    named = [svg.find(f"*[@id='{name}']") for name in svg.get("aria-labelledby", "").split()]
    title, description = ("" if found is None else found.text for found in named)
    assert title == "Learning curve and speed"
    assert description == (
        "The training loss goes from 6.000 to 4.000 nats per token by step 40. "
        "The validation loss is least at step 30, 4.600 nats per token. "
        "Event at step 30: triggered. Event at step 40: stopped."
    )


def test_colours_are_the_pages_own() -> None:
    drawn = draw(History.of(RUN))
    assert not re.search(r"#[0-9a-f]{6}\b", drawn)
    assert {"var(--training)", "var(--validation)", "var(--event)", "var(--ink)"} <= set(
        re.findall(r"var\(--[a-z]+\)", drawn)
    )


@pytest.mark.parametrize(
    "records",
    [
        [step(20, 7.5)],
        [validation(3, 7.5)],
        [step(20, 7.5), validation(20, 7.5), event(20, "triggered")],
        [step(20, 0.0), step(40, 0.0)],
        [step(20, 900.0), step(40, 3.0), validation(40, 3.0)],
        [step(20, math.nan), step(40, 3.0), validation(40, math.nan)],
        [step(20, 7.5), event(20, "<b>$x^2$</b>")],
        [validation(3, 7.5) | {"raw": 7.5, "long": 8.0, "short_length": 3, "long_length": 3}],
        [validation(3, 7.5) | {"raw": 7.5, "long": 8.0}],
        [validation(3, 7.5) | {"raw": 7.5, "long": 8.0}, step(20, 7.0)],
    ],
    ids=[
        *("one step", "one validation", "one of each", "no loss", "huge", "nan", "odd name"),
        *("means once", "means without lengths", "means long ago"),
    ],
)
def test_odd_histories_are_drawn(records: list[dict[str, Any]]) -> None:
    svg = parse(records)
    assert "nan" not in ElementTree.tostring(svg, "unicode").lower()
    assert "inf" not in " ".join(texts(svg))
    for _, name in History.of(records).events:
        assert name in texts(svg)


def test_a_long_log_is_thinned_out() -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(5, 0.1, 30_000).tolist()
    svg = parse([step(i, loss) for i, loss in enumerate(noise, 1)])
    assert 100 < len(points(svg, "training")) <= POINTS
    assert len(points(svg, "speed")) <= POINTS


def test_the_first_steps_do_not_flatten_the_rest() -> None:
    records = [step(i, 9.0 if i <= 10 else 4.0 + 1 / i) for i in range(1, 1001)]
    low, high = limits(History.of(records))
    assert 3.9 < low < 4.001
    assert 4.09 - 0.04 < high < 4.2
    late = [*records, step(1001, 8.0)]  # but what goes wrong later is shown
    assert limits(History.of(late))[1] > 8


@pytest.mark.parametrize(("low", "high"), [(4.0, 4.1), (3.0, 6.0), (0.0, 9.2), (2.0, 900.0)])
def test_perplexities_are_round_and_few(low: float, high: float) -> None:
    ticks = perplexity_ticks(low, high)
    assert 2 <= len(ticks) <= 13
    assert ticks == sorted(ticks)
    assert all(low <= math.log(tick) <= high for tick in ticks)
    assert all(float(f"{tick:.4g}") == pytest.approx(tick, rel=1e-9) for tick in ticks)


def test_epochs_are_round_and_few() -> None:
    assert epoch_ticks([]) == []
    assert epoch_ticks([(7, 1), (14, 2)]) == [(7, 1), (14, 2)]
    ticks = epoch_ticks([(7 * epoch, epoch) for epoch in range(1, 751)])
    assert ticks == [(700 * i, 100 * i) for i in range(1, 8)]
