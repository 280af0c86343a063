"""All that is done to break infolm; the counts go to `results/faults.md`.

    python tests/support/fault_programme.py                        `make faults`: hours
    python tests/support/fault_programme.py --scale 0.01           a hundredth of it
    python tests/support/fault_programme.py --only kills threads   some of it
    python tests/support/fault_programme.py --page                 write the page anew, run nothing

A part has pieces, such as one for each command. A piece's figures are kept in `results/faults.json`
as soon as it ends, with how much was asked for and how long it took. So the programme may be
stopped at any time: the next one does what is left. `--anew` does all again. The exit code is 1 if
anything was found.
"""

import argparse
import ast
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from fault_cases import FAILING, KILLED
from fuzz_readers import READERS

ROOT = Path(__file__).parents[2]
SUPPORT = "tests/support"
FIGURES, PAGE = ROOT / "results" / "faults.json", ROOT / "results" / "faults.md"
TESTS = ("tests/faults", "tests/recipes/test_combinations.py")
KILLS, LINES = 1000, 10_000
DIVIDED = {"train": 3, "ingest": 3, "tune": 10, "race": 5}
"""Commands whose faults would take more than some minutes, and into how many pieces they go."""
INJECTED = tuple(
    f"{name} {number}/{DIVIDED[name]}" if name in DIVIDED else name
    for name in FAILING
    for number in range(1, DIVIDED.get(name, 1) + 1)
)


class Part(NamedTuple):
    """command: the arguments of Python for a piece at a scale. told: the page's text for the
    figures of the pieces that have been run."""

    title: str
    command: Callable[[str, float], list[str]]
    told: Callable[[dict[str, Any]], str]
    pieces: Sequence[str] = ("all",)
    json: bool = True  # or the figures are the last line


POINTS = {  # of what was once wrong: a test that fails without its mending
    "A stranger's folder overwrites files through links": (
        "tests/faults/test_links.py::test_a_planted_link_is_refused_and_its_target_untouched",
        "tests/faults/test_links.py::test_checkpoints_are_never_deleted_through_a_link",
    ),
    "Concurrent writers lose measurements, readers see half a file": (
        "tests/faults/test_concurrent.py::test_nothing_is_lost_and_nothing_is_torn",
    ),
    "Changed files are used without a word": (
        "tests/faults/test_manifest.py::test_one_changed_letter_is_refused_by_name",
        "tests/data/test_store.py::"
        "test_every_changed_byte_of_every_block_is_noticed_and_its_place_told",
    ),
    "A damaged native library ends the process, or another is taken silently": (
        "tests/nn/recurrence/test_native.py::test_truncated_does_not_end_the_process",
        "tests/faults/test_manifest.py::test_another_build_of_the_cells_is_said_on_resume",
    ),
    "A damaged line cuts the history": (
        "tests/faults/test_metrics.py::test_in_the_middle_all_other_lines_stay",
    ),
    "Destructive advice where a repair is possible": (
        "tests/faults/test_repair.py::test_the_best_weights_come_back_from_a_checkpoint",
    ),
    "Stack traces": (
        "tests/faults/test_last_resort.py::test_what_nobody_foresaw_is_a_sentence_and_a_log",
        "tests/faults/test_last_resort.py::test_a_diverged_loss_at_the_end_of_training",
        "tests/faults/test_last_resort.py::test_numbers_and_nests_beyond_reason",
        "tests/faults/test_last_resort.py::test_alone_are_refused",
        "tests/faults/test_last_resort.py::test_damaged_tuned_settings",
        "tests/faults/test_last_resort.py::test_an_array_that_declares_more_than_there_is",
        "tests/faults/test_last_resort.py::"
        "test_a_checkpoint_with_a_right_digest_and_the_wrong_structure",
        "tests/faults/test_last_resort.py::test_square_brackets_in_a_folders_name",
    ),
    "No upper bounds": ("tests/faults/test_bounds.py::test_a_giant_is_refused_at_once",),
    "A full disk hides results; litter; the C locale": (
        "tests/faults/test_last_resort.py::test_what_was_measured_is_printed_first",
        "tests/faults/test_links.py::test_a_killed_making_of_a_run_is_swept_at_the_next_start",
        "tests/faults/test_locale.py::test_names_texts_titles_and_prompts_may_have_any_letters",
    ),
    "Settings tuned for former weights, where the clock was set back": (
        "tests/faults/test_clocks.py::"
        "test_settings_of_former_weights_are_tuned_anew_though_the_clock_was_set_back",
    ),
    "A folder that may not be read is taken for an empty one": (
        "tests/faults/test_injected.py::test_a_folder_that_may_not_be_read_is_not_an_empty_one",
    ),
    "`infolm repair` takes a file that may not be read for a damaged one": (
        "tests/faults/test_repair.py::test_what_may_not_be_read_is_not_taken_for_damaged",
    ),
    "An old checkpoint stays when a process is killed before it removes it": (
        "tests/training/test_loop.py::"
        "test_old_checkpoints_that_a_kill_left_are_removed_on_resuming",
    ),
    "A trial is given up that was killed three times together with its command": (
        "tests/studies/tuning/test_study.py::test_one_that_was_killed_with_its_command_is_not",
    ),
    "Temporary files of safetensors stay when a process is killed": (
        "tests/faults/test_links.py::test_what_a_writer_made_beside_its_file_goes_too",
    ),
    "A power cut takes a new folder with all that was flushed in it": (
        "tests/faults/test_injected.py::test_a_new_folder_is_on_the_disk_with_those_above_it",
    ),
    "Exports and fine-tuned models are renamed before they are on the disk": (
        "tests/faults/test_injected.py::test_what_is_exported_is_on_the_disk_before_it_is_named",
    ),
    "Checkpoints of finished trainings stay in a sweep or a study that ended as it removed them": (
        "tests/studies/reproduction/test_sweep.py::"
        "test_given_again_it_removes_the_checkpoints_that_a_dead_command_left",
        "tests/studies/tuning/test_study.py::"
        "test_it_removes_the_checkpoints_that_a_dead_command_left",
    ),
    "A temporary folder stays beside an export that is there": (
        "tests/exports/test_base.py::"
        "test_an_export_that_is_there_is_rid_of_what_a_dead_one_left_beside_it",
    ),
    "Each model that is opened leaves some kilobytes of memory": (
        "tests/nn/recurrence/test_paths.py::test_a_cell_that_is_gone_leaves_nothing",
    ),
    "A power cut takes a fine-tuned model that is being replaced": (
        "tests/faults/test_injected.py::"
        "test_a_fine_tuned_model_is_replaced_when_the_new_one_is_on_the_disk",
    ),
    "Damaged and hostile records of races and tables end in stack traces": (
        "tests/studies/race/test_record.py::test_what_no_race_writes_is_refused_with_a_sentence",
        "tests/studies/tables/test_work.py::test_a_damaged_record_is_named_and_left_as_it_is",
    ),
    "Measurements of a table are dropped when its measure or recipe changes": (
        "tests/studies/tables/test_work.py::test_another_measure_or_recipe_makes_it_stale",
    ),
    "A temporary folder stays beside a race's run that is there": (
        "tests/studies/race/test_race.py::test_what_a_dead_race_left_beside_its_run_is_removed",
    ),
}


def missing_tests() -> list[str]:
    """Tests of `POINTS` that are not there."""
    gone = []
    for test in (each for tests in POINTS.values() for each in tests):
        path, _, name = test.partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        if name not in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}:
            gone.append(test)
    return gone


def run(part: str, piece: str, scale: float) -> dict[str, Any]:
    """One piece's figures."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        told = ["--json", str(out)] if PARTS[part].json else []
        command = [sys.executable, "-W", "ignore", *PARTS[part].command(piece, scale), *told]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        print(done.stdout, flush=True)
        last = (done.stdout.strip().splitlines() or [""])[-1]
        figures = json.loads(out.read_text()) if out.exists() else last
    return {
        "scale": scale,
        "passed": done.returncode == 0,
        "seconds": round(time.monotonic() - began),
        "figures": figures,
    }


# -- the page --------------------------------------------------------------------------------------


def table(head: str, rows: list[list[Any]]) -> str:
    names = [name.strip() for name in head.split("|")]
    right = [name.endswith(":") for name in names]
    lines = [" | ".join(name.rstrip(":") for name in names)]
    lines.append(" | ".join("---:" if each else "---" for each in right))
    lines += [" | ".join(f"{c:,}" if isinstance(c, int) else str(c) for c in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def findings(pieces: dict[str, Any]) -> int:
    return sum(len(figures["findings"]) for figures in pieces.values())


def _kills(pieces: dict[str, Any]) -> str:
    rows = [[name, figures["total"]] for name, figures in pieces.items()]
    rows.append(["together", sum(figures["total"] for figures in pieces.values())])
    return (
        "SIGKILL at random moments, once to three times before the command may end. What was there "
        "before was intact each time, and\nthe end the same bytes as without a kill, but for "
        f"{findings(pieces)} findings.\n\n" + table("command | kills:", rows)
    )


def _inject(piece: str, scale: float) -> list[str]:
    name, _, part = piece.partition(" ")
    command = [f"{SUPPORT}/inject.py", "--only", name, "--share", str(scale)]
    return [*command, "--part", part] if part else command


def _injected(pieces: dict[str, Any]) -> str:
    kinds = ["ENOSPC", "EIO", "EACCES", "short", "kill"]
    power = ["power-data", "power-all", "power-some"]
    known: dict[str, Counter[str]] = {}
    for piece, figures in pieces.items():
        name = piece.partition(" ")[0]
        counts = known.setdefault(name, Counter())
        for key, number in figures["commands"][name].items():
            of_all = key in ("operations", "faults")  # whatever the piece
            counts[key] = number if of_all else counts[key] + number
    rows = [
        [name, each["operations"], each["faults"], each["tried"]]
        + [each.get(kind, 0) for kind in kinds]
        + [sum(each.get(kind, 0) for kind in power)]
        for name, each in known.items()
    ]
    head = " | ".join(f"{kind}:" for kind in [*kinds, "power"])
    return (
        "One operation on a file fails or is the last: no room, a bad disk, no right, a short "
        "write, SIGKILL, a power cut that takes all\nthat was not flushed. Then what was there is "
        "compared, the command is given again, and its result compared with an undisturbed one's.\n"
        f"{sum(each['tried'] for each in known.values()):,} faults were tried, with "
        f"{findings(pieces)} findings.\n\n"
        + table(f"command | operations: | possible faults: | tried: | {head}", rows)
        + "\n\nNot seen: what SQLite writes, and the workers of `infolm tune`, which "
        "`kill_many.py` covers."
    )


def _readers(pieces: dict[str, Any]) -> str:
    each = [figures for (figures,) in pieces.values()]
    rows = [[e["reader"], e["inputs"], e["branches"], e["findings"]] for e in each]
    return (
        "Fuzzed by coverage (atheris 3.0.0). An input is a finding if its reader raises anything "
        "but infolm's own error, or takes 60 seconds\nor 3 GB.\n\n"
        + table("reader | inputs: | branches of infolm: | findings:", rows)
        + "\n\nWhat earlier runs found is in `tests/faults/test_readers.py`."
    )


def _commands(pieces: dict[str, Any]) -> str:
    codes: Counter[str] = Counter()
    for figures in pieces.values():
        codes.update(figures["codes"])
    said = ", ".join(f"{count:,} with exit code {code}" for code, count in codes.items())
    slowest = max(figures["slowest_seconds"] for figures in pieces.values())
    return (
        f"{codes.total():,} recipes and command lines with random values: {said}; "
        f"{findings(pieces)} findings; the slowest took\n{slowest} s of CPU time."
    )


def _soak(pieces: dict[str, Any]) -> str:
    (figures,) = pieces.values()
    rows = [
        [name, figures["first"][name], figures["last"][name], figures["budgets"][name]]
        for name in figures["budgets"]
    ]
    told = (
        f"{figures['rounds']:,} rounds of training, resuming, evaluating, generating, scoring, "
        f"reporting, exporting and serving in one process, {figures['seconds']:,} s.\n\n"
        + table("what | after the first rounds: | at the end: | may grow by:", rows)
    )
    if "megabytes" in figures:
        told += f"\n\nMegabytes after each tenth: {', '.join(map(str, figures['megabytes']))}."
    return told


def _plain(pieces: dict[str, Any]) -> str:
    return "\n".join(map(str, pieces.values()))


PARTS = {
    "injected": Part(
        "Files: every operation fails in turn",
        _inject,
        _injected,
        INJECTED,
    ),
    "kills": Part(
        "Processes: killed at random moments",
        lambda piece, scale: [
            *(f"{SUPPORT}/kill_many.py", str(max(1, round(KILLS * scale / len(KILLED))))),
            *("--only", piece),
        ],
        _kills,
        KILLED,
    ),
    "readers": Part(
        "Readers of files, fuzzed by coverage",
        lambda piece, scale: [f"{SUPPORT}/fuzz_readers.py", piece, "--minutes", str(10 * scale)],
        _readers,
        tuple(READERS),
    ),
    "commands": Part(
        "Recipes and command lines",
        lambda piece, scale: [
            *(f"{SUPPORT}/fuzz_commands.py", str(max(1, round(LINES * scale / 10)))),
            *("--seed", piece),
        ],
        _commands,
        tuple(map(str, range(10))),
    ),
    "threads": Part(
        "ThreadSanitizer on the native recurrence",
        lambda _, scale: [f"{SUPPORT}/thread_sanitizer.py", str(max(5, round(400 * scale)))],
        _plain,
        json=False,
    ),
    "soak": Part(
        "An hour of everything",
        lambda _, scale: [f"{SUPPORT}/soak.py", "--minutes", str(60 * scale)],
        _soak,
    ),
    "tests": Part(
        "The tests of faults", lambda _, scale: ["-m", "pytest", "-q", *TESTS], _plain, json=False
    ),
}


def page(known: dict[str, Any]) -> str:
    """`results/faults.md`."""
    shown = {
        name: {piece: known[name][piece] for piece in part.pieces if piece in known.get(name, {})}
        for name, part in PARTS.items()
    }
    seconds = sum(piece["seconds"] for pieces in shown.values() for piece in pieces.values())
    written = [
        "# Faults\n\nWhat was done to break infolm, and what came of it. `make faults` does all of "
        "this in some hours and writes this page\n(`tests/support/fault_programme.py`). Each part "
        "says how much of the whole was run when its figures were measured, on two busy cores,\n"
        f"Python 3.11, Linux. Together these figures took {seconds:,} s."
    ]
    for name, part in PARTS.items():
        pieces = shown[name]
        command = " ".join(part.command(part.pieces[0], 1.0))
        text = f"## {part.title}\n\n`python -W ignore {command}`"
        if len(part.pieces) > 1:
            text += f" and so on for {len(part.pieces)}"
        if pieces:
            share = sum(min(each["scale"], 1) for each in pieces.values()) / len(part.pieces)
            took = sum(each["seconds"] for each in pieces.values())
            text += f" ({share:.1%} of it in {took:,} s)\n\n"
            text += part.told({piece: each["figures"] for piece, each in pieces.items()})
        else:
            text += "\n\nNot run yet."
        written.append(text)
    rows = [
        [number, what, "<br>".join(f"`{test.removeprefix('tests/')}`" for test in tests)]
        for number, (what, tests) in enumerate(POINTS.items(), 1)
    ]
    written.append(
        "## What was wrong once, and the test that fails without its mending\n\n"
        + table("number: | what | tests", rows)
    )
    return "\n\n".join(written) + "\n"


def left(known: dict[str, Any], scale: float, parts: Sequence[str]) -> list[tuple[str, str]]:
    """The pieces that have not been run at this scale, or were not passed."""
    return [
        (part, piece)
        for part in parts
        for piece in PARTS[part].pieces
        if not (found := known[part].get(piece)) or found["scale"] < scale or not found["passed"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    known = {part: known.get(part, {}) for part in PARTS}
    for test in missing_tests():
        print(f"{test} is not there")
    writing = threading.Lock()

    def do(part: str, piece: str) -> bool:
        figures = run(part, piece, asked.scale)
        with writing:
            known[part][piece] = figures
            FIGURES.write_text(json.dumps(known, indent=1) + "\n")
            PAGE.write_text(page(known), encoding="utf-8")
        return bool(figures["passed"])

    work = (
        []
        if asked.page
        else left({p: {} for p in PARTS} if asked.anew else known, asked.scale, asked.only)
    )
    with ThreadPoolExecutor(asked.workers) as pool:
        passed = list(pool.map(lambda piece: do(*piece), work))
    PAGE.write_text(page(known), encoding="utf-8")
    sys.exit(bool(missing_tests()) or not all(passed))


if __name__ == "__main__":
    main()
