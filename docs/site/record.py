"""A terminal session as an animated SVG: the commands are run, and what they print is drawn.

    python docs/site/record.py docs/terminal.svg 'infolm train ...' 'infolm score ...'

Commands run one after another in a pseudo-terminal, in the present folder. A command that takes
minutes is shown in seconds, evenly faster. The picture loops; where the reader prefers no motion it
shows the end. `make recording` makes the one of the README.
"""

import argparse
import fcntl
import html
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyte

COLUMNS, ROWS = 88, 200
"""Of the terminal. It is taller than any session, so that nothing scrolls; the picture is cut."""

LONGEST, PAUSE, HOLD = 7.0, 0.35, 8.0
"""Seconds of film: of a command at most, between two of them, and how long the end is shown."""

FRAME = 0.2
"""Seconds of film between two looks at the screen, at least."""

WIDTH, HEIGHT = 8.4, 19.0
"""Of a character, in units of the picture. Text is stretched to it, whatever the reader's font."""

PAPER = "#21252b"
"""The colour of the terminal, and of letters on a coloured ground."""

COLOURS = {
    "default": "#d8dee9",
    "black": "#6b7486",
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "white": "#eceff4",
}

Style = tuple[str, bool, str]
"""Foreground, whether bold, and background."""

Line = tuple[tuple[int, str, Style], ...]
"""Column, text and style of each run of characters that look alike."""


@dataclass
class Shown:
    """A line of the screen from one moment to another (None: to the end)."""

    row: int
    line: Line
    start: float
    end: float | None = None


def session(commands: list[str]) -> Iterator[tuple[float, bytes]]:
    """What the terminal is sent and when, in seconds of the film."""
    now = 0.0
    for command in commands:
        yield now, b"\x1b[1;32m$\x1b[0m "
        for word in command.split(" "):
            now += 0.12
            yield now, word.encode() + b" "
        now += PAUSE
        yield now, b"\r\n"
        chunks = list(printed(command))
        lasted = chunks[-1][0] if chunks else 0.0
        pace = min(1.0, LONGEST / max(lasted, 1e-9))
        yield from ((now + pace * after, chunk) for after, chunk in chunks)
        now += pace * lasted + 2 * PAUSE
        yield now, b"\r\n"


def printed(command: str) -> Iterator[tuple[float, bytes]]:
    """What a command prints in a pseudo-terminal, and how many seconds after its start."""
    start = time.monotonic()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    process = subprocess.Popen(
        command, shell=True, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux says so when the other side is closed
            break
        if not chunk:
            break
        yield time.monotonic() - start, chunk
    os.close(ours)
    if process.wait():
        sys.exit(f"{command!r} failed: mend it and record again.")


def line_of(screen: Any, row: int) -> Line:
    """A row of the screen, cut into runs of one style, without blanks at its end."""
    runs: list[tuple[int, str, Style]] = []
    cells = screen.buffer[row]
    for column in range(COLUMNS):
        cell = cells[column]
        colours = (cell.fg, cell.bg) if not cell.reverse else (cell.bg, cell.fg)
        style = (colours[0], bool(cell.bold), colours[1])
        if runs and runs[-1][2] == style:
            start, text, _ = runs[-1]
            runs[-1] = (start, text + cell.data, style)
        else:
            runs.append((column, cell.data, style))
    while runs and not runs[-1][1].strip() and runs[-1][2][2] == "default":
        runs.pop()
    if runs and runs[-1][2][2] == "default":
        start, text, style = runs[-1]
        runs[-1] = (start, text.rstrip(), style)
    return tuple(runs)


def watch(commands: list[str]) -> tuple[list[Shown], float, int]:
    """All lines that were ever shown, the length of the film and the number of rows."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    shown: list[Shown] = []
    current: dict[int, Shown] = {}
    last = -FRAME

    def look(now: float) -> None:
        for row in sorted(screen.dirty):
            line = line_of(screen, row)
            if row in current and current[row].line == line:
                continue
            if row in current:
                current.pop(row).end = now
            if line:
                current[row] = Shown(row, line, now)
                shown.append(current[row])
        screen.dirty.clear()

    now = 0.0
    for now, chunk in session(commands):
        stream.feed(chunk)
        if now - last >= FRAME:
            look(now)
            last = now
    look(now)
    return shown, now + HOLD, 1 + max(each.row for each in current.values())


def colour(name: str) -> str:
    """pyte gives names for the sixteen and digits for the others."""
    return COLOURS.get(name.removeprefix("bright"), f"#{name}" if len(name) == 6 else name)


def drawn(line: Line, row: int) -> str:
    """A line as elements of SVG."""
    y = 40 + HEIGHT * row
    parts = []
    for column, text, (front, bold, back) in line:
        x, width = 16 + WIDTH * column, WIDTH * len(text)
        if back != "default":
            box = f'<rect x="{x:.1f}" y="{y - 14:.1f}" width="{width:.1f}" height="{HEIGHT:.0f}"'
            parts.append(f'{box} fill="{colour(back)}"/>')
        if not text.strip():
            continue
        boxed = back != "default" and front in ("default", "black")
        ink = PAPER if boxed else colour(front)
        look = "" if front == back == "default" else f' fill="{ink}"'
        look += ' font-weight="bold"' if bold else ""
        length = f'x="{x:.1f}" y="{y:.1f}" textLength="{width:.1f}"'
        parts.append(f"<text {length}{look}>{html.escape(text, quote=False)}</text>")
    return "".join(parts)


def picture(shown: list[Shown], seconds: float, rows: int, title: str) -> str:
    """The film: each line is visible from its start to its end, over and over."""
    rules, groups = [], []
    for number, each in enumerate(shown):
        start = 100 * each.start / seconds
        end = 100 * each.end / seconds if each.end is not None else 100
        rules.append(
            f"@keyframes k{number}{{0%{{visibility:hidden}}{start:.2f}%{{visibility:visible}}"
            f"{end:.2f}%{{visibility:{'hidden' if each.end is not None else 'visible'}}}"
            + ("100%{visibility:hidden}}" if each.end is not None else "}")
        )
        rules.append(f"#l{number}{{animation-name:k{number}}}")
        kind = ' class="gone"' if each.end is not None else ""
        groups.append(f'<g id="l{number}"{kind}>{drawn(each.line, each.row)}</g>')
    width, height = 32 + WIDTH * COLUMNS, 52 + HEIGHT * rows
    style = (
        f"text{{white-space:pre;fill:{COLOURS['default']};"
        "font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}"
        f"g{{animation:{seconds:.1f}s step-end infinite}}.gone{{visibility:hidden}}"
        "@media(prefers-reduced-motion:reduce){g{animation:none}}"
    )
    # A rule of CSS overrides an attribute: colours are set where they differ.
    body = "\n".join(groups).replace(' fill="', ' style="fill:')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'role="img"><title>{html.escape(title)}</title>'
        f"<style>{style}{''.join(rules)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>'
        '<g style="animation:none"><circle cx="20" cy="16" r="5" style="fill:#e06c75"/>'
        '<circle cx="38" cy="16" r="5" style="fill:#e5c07b"/>'
        f'<circle cx="56" cy="16" r="5" style="fill:#98c379"/></g>\n{body}\n</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("svg", type=Path)
    parser.add_argument("commands", nargs="+")
    asked = parser.parse_args()
    shown, seconds, rows = watch(asked.commands)
    title = "A terminal: " + "; ".join(asked.commands)
    asked.svg.write_text(picture(shown, seconds, rows, title), encoding="utf-8")
    size = asked.svg.stat().st_size
    print(f"{asked.svg}: {seconds:.0f} seconds, {len(shown)} lines, {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
