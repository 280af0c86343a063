"""Threads of the native recurrence do not race, and what looks for races would find one."""

import shutil

import pytest
import thread_sanitizer

from infolm.nn.recurrence import compiling

SOURCE = compiling.SOURCE.read_text(encoding="utf-8")


def checked(folder, source, rounds):
    program = thread_sanitizer.build(folder, source) if shutil.which("setarch") else None
    if program is None:
        pytest.skip("needs a C++ compiler with ThreadSanitizer, and setarch")
    return thread_sanitizer.run(program, rounds)


def test_threads_do_not_race(tmp_path):
    done = checked(tmp_path, SOURCE, 20)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "40 programs, 0 differ from one thread's\n"


def test_threads_that_do_not_wait_for_the_packing_are_found(tmp_path):
    waits = "while (packed_panels < panels) std::this_thread::yield();"
    packs = "w->pack(panel);"
    assert SOURCE.count(waits) == SOURCE.count(packs) == 1
    # Slow packing: on a busy machine one thread could pack everything before another starts.
    slowly = "std::this_thread::sleep_for(std::chrono::milliseconds(2)); " + packs
    broken = "#include <chrono>\n" + SOURCE.replace(waits, "").replace(packs, slowly)
    done = checked(tmp_path, broken, 20)
    assert done.returncode == 66
    assert "data race" in done.stderr
