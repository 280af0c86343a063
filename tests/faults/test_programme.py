"""What was wrong once has a test; the long programme resumes; its page says what was measured."""

import json
import sys

import fault_programme
from fault_programme import FIGURES, PAGE, PARTS, left, page


def test_each_point_has_a_test_that_is_there():
    assert fault_programme.missing_tests() == []


def test_the_page_is_of_the_figures():
    assert page(json.loads(FIGURES.read_text())) == PAGE.read_text()


def test_what_is_left_was_not_run_or_ran_less_or_found_something():
    known = {part: {} for part in PARTS}
    assert len(left(known, 1, ["kills", "soak"])) == len(PARTS["kills"].pieces) + 1
    known["soak"]["all"] = {"scale": 0.5, "passed": True}
    assert left(known, 0.5, ["soak"]) == []
    assert left(known, 1, ["soak"]) == [("soak", "all")]
    known["soak"]["all"] = {"scale": 1, "passed": False}
    assert left(known, 0.5, ["soak"]) == [("soak", "all")]


def test_pieces_are_kept_as_they_end_and_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(fault_programme, "FIGURES", tmp_path / "faults.json")
    monkeypatch.setattr(fault_programme, "PAGE", tmp_path / "faults.md")
    ran = []

    def run(part, piece, scale):
        ran.append(piece)
        figures = {"total": 7, "findings": [] if piece != "sweep" else ["lost"]}
        return {"scale": scale, "passed": piece != "sweep", "seconds": 1, "figures": figures}

    def programme(*arguments):
        monkeypatch.setattr(sys, "argv", ["programme", *arguments])
        try:
            fault_programme.main()
        except SystemExit as end:
            return bool(end.code)

    monkeypatch.setattr(fault_programme, "run", run)
    assert programme("--only", "kills", "--workers", "2")  # something was found
    assert sorted(ran) == sorted(PARTS["kills"].pieces)
    assert programme("--only", "kills")
    assert ran[17:] == ["sweep"]
    assert programme("--only", "kills", "--anew")
    assert len(ran) == 17 + 1 + 17
    assert "| together | 119 |" in (tmp_path / "faults.md").read_text()


def test_pieces_of_one_command_are_one_row_of_the_page():
    whole = {"operations": 9, "faults": 40}
    pieces = {
        "tune 1/12": {"commands": {"tune": {**whole, "tried": 4, "kill": 3}}, "findings": ["lost"]},
        "tune 2/12": {"commands": {"tune": {**whole, "tried": 3, "EIO": 3}}, "findings": []},
    }
    told = PARTS["injected"].told(pieces)
    assert "| tune | 9 | 40 | 7 | 0 | 3 | 0 | 0 | 3 | 0 |" in told
    assert "7 faults were tried, with 1 findings" in told
    command = PARTS["injected"].command("tune 2/12", 0.5)
    assert command[1:] == ["--only", "tune", "--share", "0.5", "--part", "2/12"]
