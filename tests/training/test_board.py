"""What is written for TensorBoard, read by TensorBoard."""

import threading
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from infolm.training import board
from infolm.training.board import Board


def read(folder):
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def test_numbers_and_text_come_back(tmp_path):
    before = threading.active_count()
    ours = Board(tmp_path / "new", 1)
    for step in range(1, 4):
        ours.number("validation/loss", 1 / step, step)
    ours.text("sample", "the cat\nsat", 3)
    assert threading.active_count() == before
    ours.close()
    shown = read(tmp_path / "new")
    events = shown.Scalars("validation/loss")
    assert [event.step for event in events] == [1, 2, 3]
    assert [event.value for event in events] == pytest.approx([1, 1 / 2, 1 / 3])
    (text,) = shown.Tensors("sample/text_summary")
    assert text.tensor_proto.string_val == [b"the cat\nsat"]


def test_steps_that_are_taken_again_are_shown_once(tmp_path):
    for first, value in ((1, 0.0), (3, 1.0)):
        ours = Board(tmp_path, first)
        for step in range(first, 5):
            ours.number("loss", value, step)
        ours.close()
    events = read(tmp_path).Scalars("loss")
    assert [(event.step, event.value) for event in events] == [(1, 0), (2, 0), (3, 1), (4, 1)]


def test_what_is_written_can_be_seen_while_training_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(board, "SECONDS", 0.0)
    ours = Board(tmp_path, 1)
    ours.number("loss", 2.0, 1)
    assert [event.value for event in read(tmp_path).Scalars("loss")] == [2.0]
    ours.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_of_who_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(board, "SECONDS", 0.0)
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr("builtins.open", lambda *_: full)
        with pytest.raises(OSError, match="No space left"):
            Board(tmp_path, 1)
