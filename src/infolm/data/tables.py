"""Samples from files: `.npy`, CSV (`.csv`, `.tsv`) and Parquet (`.parquet`).

    read_samples("x.npy")
    read_samples("people.csv:height,weight")     # columns by their names
    read_samples("people.csv:2,3")               # or by their places, from 1

Cells that are empty, NA, NaN or null are missing. They are refused, unless `missing` is "drop":
then they are NaN, and `complete` drops their rows from all samples at once.

A column is searched by its name first, then by its place. A name with a comma is put in
quotes. A column of words becomes the codes 0, 1, ... of the words in alphabetical order.

CSV is UTF-8 and separated by commas, semicolons or tabs, whichever its first line has most of. The
first line is the header unless all its cells are numbers.
"""

import csv
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from infolm.errors import InfolmError
from infolm.section import nearest

SUFFIXES = (".npy", ".csv", ".tsv", ".parquet")
MISSING = {"", "na", "n/a", "nan", "null", "none"}
"""Cells of CSV, in any case, that mean a missing value."""
MOST_BYTES = 2 * 2**30
"""Maximum bytes of a text file of samples: in memory it takes several times as much."""

Cells = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples, one per row.

    values: (N, D), finite numbers. columns: their names, or places from 1. words: those of the
    columns that are codes of words.
    """

    values: npt.NDArray[Any]
    columns: tuple[str, ...]
    words: tuple[str, ...]


class _Table(NamedTuple):
    """The columns asked for; `place` says where a row, from 0, is found in the file."""

    names: list[str]
    cells: list[Cells]
    place: Callable[[int], str]


def holds_samples(source: str) -> bool:
    """Whether this names a file of samples, with or without columns behind it."""
    return _parted(source)[0].suffix.lower() in SUFFIXES


def read_samples(source: str, missing: Literal["refuse", "drop"] = "refuse") -> Samples:
    """The rows of a file, or of its columns named after a colon.

    missing: "drop" leaves missing values as NaN, for `complete`.
    """
    path, asked = _parted(source)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InfolmError(f"{path} is not a file of samples: its name must end in {_listed()}")
    if not path.is_file():
        raise InfolmError(f"there is no file {path}: check its name and folder")
    if not path.stat().st_size:
        raise InfolmError(f"{path} is empty: give a file with a sample in each row")
    if suffix in (".csv", ".tsv") and path.stat().st_size > MOST_BYTES:
        raise InfolmError(
            f"{path} has {path.stat().st_size / 2**30:.1f} GB, too many to read as text: write the "
            "columns you need as Parquet or .npy"
        )
    read = {".npy": _read_npy, ".parquet": _read_parquet}.get(suffix, _read_csv)
    table = read(path, asked, missing == "drop")
    if not len(table.cells[0]):
        raise InfolmError(f"{path} has no rows: give a file with a sample in each")
    words = [
        name for name, cells in zip(table.names, table.cells, strict=True) if _are_words(cells)
    ]
    columns = [
        _numbers(cells, f"column '{name}' of {path}", table.place, missing == "drop")
        for name, cells in zip(table.names, table.cells, strict=True)
    ]
    return Samples(np.stack(columns, axis=1), tuple(table.names), tuple(words))


def complete(*samples: Samples) -> tuple[list[Samples], int]:
    """The samples without the rows in which any of them misses a value, and the number of these."""
    gone = np.zeros(len(samples[0].values), bool)
    for each in samples:
        if len(each.values) == len(gone) and each.values.dtype.kind == "f":
            gone |= np.isnan(each.values).any(1)
    if gone.all():
        raise InfolmError(
            "every row misses a value in some column: leave out the columns with missing values"
        )
    if not gone.any():
        return list(samples), 0
    kept = [replace(each, values=each.values[~gone]) for each in samples]
    for each in kept:
        for at, name in enumerate(each.columns):
            column = each.values[:, at]
            if (column == column[0]).all():
                raise InfolmError(
                    f"column '{name}' is constant in the {len(column):,} complete rows, so it "
                    "carries no information: leave it out"
                )
    return kept, int(gone.sum())


def _listed() -> str:
    return f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"


def _parted(source: str) -> tuple[Path, list[str]]:
    """The file and the columns asked for: a file's own name may hold colons too."""
    colons = [at for at, character in enumerate(source) if character == ":"]
    ends = [len(source), *reversed(colons)]
    end = next((at for at in ends if Path(source[:at]).is_file()), None)
    if end is None:  # what is most likely meant, for the message
        named = (at for at in ends if source[:at].lower().endswith(SUFFIXES))
        end = next(named, len(source))
    asked = source[end + 1 :]
    columns = next(csv.reader([asked], skipinitialspace=True)) if asked else []
    return Path(source[:end]), [column.strip() for column in columns]


def _chosen(asked: list[str], names: Sequence[str], path: Path) -> list[int]:
    """The places, from 0, of the columns asked for; of all where none is."""
    if not asked:
        return list(range(len(names)))
    return [_place(column, names, path) for column in asked]


def _place(column: str, names: Sequence[str], path: Path) -> int:
    if column in names:
        return names.index(column)
    if column.isdecimal() and 1 <= int(column) <= len(names):
        return int(column) - 1
    there = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    raise InfolmError(f"{path} has no column '{column}'{nearest(column, names)} (it has {there})")


def _are_words(cells: Cells) -> bool:
    return cells.dtype.kind in "US"


def _numbers(cells: Cells, where: str, place: Callable[[int], str], drop: bool) -> Cells:
    """Words as codes; numbers unchanged, finite and not all equal.

    drop: NaN stays where a number or a word is missing.
    """
    if _are_words(cells):
        gone = np.isin(np.char.lower(cells), list(MISSING))
        cells = np.unique(cells, return_inverse=True)[1]
        if drop and gone.any():
            cells = np.where(gone, np.nan, cells)
    if cells.dtype.kind not in "biuf":
        raise InfolmError(
            f"{where} holds {cells.dtype}, neither numbers nor words: convert it, or leave it out"
        )
    if drop and cells.dtype.kind == "f" and np.isnan(cells).all():
        raise InfolmError(f"{where} has no value in any row: leave it out")
    bad = np.flatnonzero(np.isinf(cells) if drop else ~np.isfinite(cells))
    if len(bad):
        raise InfolmError(
            f"{where} is not a finite number in {place(bad[0])}: drop or correct that row"
        )
    there = cells[~np.isnan(cells)] if cells.dtype.kind == "f" else cells
    if (there == there[0]).all():
        raise InfolmError(f"{where} is constant, so it carries no information: leave it out")
    return cells


def _row(at: int) -> str:
    return f"row {at + 1}"


def _read_npy(path: Path, asked: list[str], drop: bool) -> _Table:
    try:
        with path.open("rb") as file:
            _refuse_short(file)
            array: Cells = np.lib.format.read_array(file, allow_pickle=False)
    # NumPy parses the header with Python's own parser: anything can be raised
    except Exception as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InfolmError(
            f"{path} cannot be read as an array of numbers ({reason}): write it by numpy.save, "
            "without Python objects"
        ) from None
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or not array.shape[1]:
        raise InfolmError(
            f"{path} has the shape {array.shape}: give one sample per row, (N,) or (N, D)"
        )
    names = _places(array.shape[1])
    chosen = _chosen(asked, names, path)
    return _Table([names[at] for at in chosen], [array[:, at] for at in chosen], _row)


def _refuse_short(file: BinaryIO) -> None:
    """Refuse an array that declares more than the file has, before there is memory for it."""
    version = np.lib.format.read_magic(file)
    headers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version in headers:
        shape, _, dtype = headers[version](file)
        there = os.fstat(file.fileno()).st_size - file.tell()
        if math.prod(shape) * dtype.itemsize > there and not dtype.hasobject:
            raise ValueError(f"it declares the shape {shape} and has {there:,} bytes")
    file.seek(0)


def _places(count: int) -> list[str]:
    return [str(place) for place in range(1, count + 1)]


def _read_csv(path: Path, asked: list[str], drop: bool) -> _Table:
    lines = _lines(path)
    names = [cell.strip() for cell in lines[0][1]]
    if all(_is_number(cell) for cell in names):
        names = _places(len(names))
    else:
        del lines[0]
    chosen = _chosen(asked, names, path)

    def place(at: int) -> str:
        return f"line {lines[at][0]}"

    cells = [
        _parsed([cells[at] for _, cells in lines], f"column '{names[at]}' of {path}", place, drop)
        for at in chosen
    ]
    return _Table([names[at] for at in chosen], cells, place)


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The cells of each line with its number; all lines have as many as the first."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            separator = max(",;\t", key=file.readline().count)
            file.seek(0)
            reader = csv.reader(file, delimiter=separator, strict=True)
            lines = [(reader.line_num, cells) for cells in reader]
    except UnicodeDecodeError:
        raise InfolmError(f"{path} is not UTF-8 text: convert it, or give a .npy file") from None
    except csv.Error as error:
        raise InfolmError(f"{path} cannot be read as CSV ({error}): correct its quotes") from None
    while lines and not lines[-1][1]:
        lines.pop()
    if not lines or not lines[0][1]:
        raise InfolmError(f"{path} begins with an empty line: give a file with one sample per line")
    width = len(lines[0][1])
    for number, cells in lines:
        if len(cells) != width:
            raise InfolmError(
                f"line {number} of {path} has {len(cells)} cells and the first line {width}: "
                "correct that line"
            )
    return lines


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _parsed(cells: list[str], where: str, place: Callable[[int], str], drop: bool) -> Cells:
    """Numbers; or words, if no cell is a number.

    drop: missing numbers are NaN, missing words are empty.
    """
    if drop:
        gone = [cell.strip().lower() in MISSING for cell in cells]
        there = [cell for cell, missing in zip(cells, gone, strict=True) if not missing]
        if there and all(map(_is_number, there)):
            known = [math.nan if no else float(cell) for cell, no in zip(cells, gone, strict=True)]
            return np.array(known)
        if there and not any(map(_is_number, there)):
            known_words = ["" if no else cell.strip() for cell, no in zip(cells, gone, strict=True)]
            return np.array(known_words)
        if not there:
            return np.full(len(cells), math.nan)
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        pass
    for at, cell in enumerate(cells):
        if not cell.strip():
            raise InfolmError(f"{where} is empty in {place(at)}: drop or correct that row")
    numeric = [_is_number(cell) for cell in cells]
    if any(numeric):
        at = numeric.index(False)
        raise InfolmError(
            f"{where} mixes numbers and words, '{cells[at]}' in {place(at)}: drop or correct "
            "such rows"
        )
    return np.array([cell.strip() for cell in cells])


def _read_parquet(path: Path, asked: list[str], drop: bool) -> _Table:
    try:
        from pyarrow import ArrowException, compute, parquet
    except ImportError:
        raise InfolmError(
            f"reading {path} needs PyArrow: pip install 'infolm[parquet]', or give a .csv file"
        ) from None
    columns = []
    try:
        file = parquet.ParquetFile(path)
        names = list(file.schema_arrow.names)
        chosen = [names[at] for at in _chosen(asked, names, path)]
        table = file.read(columns=chosen)
        for name in chosen:
            column = table.column(name)
            if column.null_count and not drop:
                at = compute.index(column.is_null(), True).as_py()
                raise InfolmError(
                    f"column '{name}' of {path} is empty in {_row(at)}: drop or correct that row"
                )
            columns.append(_decoded(column))
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InfolmError(
            f"{path} cannot be read as Parquet ({reason}): give another file"
        ) from None
    return _Table(chosen, columns, _row)


def _decoded(column: Any) -> Cells:
    """Text as NumPy text; all else as PyArrow gives it."""
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_string(column.type) or types.is_large_string(column.type):
        return np.array([cell or "" for cell in column.to_pylist()], dtype=str)
    cells: Cells = column.to_numpy()
    return cells
