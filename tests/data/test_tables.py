"""Samples from files: what is read, and what is refused."""

import csv
import string
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from infolm.data.tables import holds_samples, read_samples
from infolm.errors import InfolmError

TABLE = {
    "height": [1.5, 2.0, 0.25],
    "age": [30, 41, 30],
    "town": ["Ulm", "Bonn", "Ulm"],
}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, text):
    with open(name, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    return name


@pytest.fixture
def people():
    """The table as CSV and as Parquet."""
    rows = zip(*TABLE.values(), strict=True)
    lines = [",".join(TABLE), *(",".join(map(str, row)) for row in rows)]
    write("people.csv", "\n".join(lines) + "\n")
    parquet.write_table(pa.table(TABLE), "people.parquet")


@pytest.mark.parametrize("file", ["people.csv", "people.parquet"])
@pytest.mark.parametrize("columns", ["height,age", "1,2", "height, 2"])
def test_columns_by_name_or_by_place(people, file, columns):
    samples = read_samples(f"{file}:{columns}")
    np.testing.assert_array_equal(samples.values, [[1.5, 30], [2, 41], [0.25, 30]])
    assert samples.columns == ("height", "age")
    assert samples.words == ()


@pytest.mark.parametrize("file", ["people.csv", "people.parquet"])
def test_words_become_codes_in_alphabetical_order(people, file):
    samples = read_samples(file)
    assert samples.columns == tuple(TABLE)
    assert samples.words == ("town",)
    np.testing.assert_array_equal(samples.values[:, 2], [1, 0, 1])


def test_a_dictionary_column_is_of_words():
    column = pa.array(["b", "a", "b"]).dictionary_encode()
    parquet.write_table(pa.table({"a": column, "b": [True, False, True]}), "d.parquet")
    samples = read_samples("d.parquet")
    assert samples.words == ("a",)
    np.testing.assert_array_equal(samples.values, [[1, 1], [0, 0], [1, 1]])


def test_columns_come_in_the_order_asked_for(people):
    for file in ("people.csv", "people.parquet"):
        assert read_samples(f"{file}:town,height").columns == ("town", "height")


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_, np.uint64, ">f8"])
def test_an_array_keeps_its_numbers(dtype):
    array = np.array([[0, 1], [1, 0], [0, 1]]).astype(dtype)
    np.save("x.npy", array)
    np.testing.assert_array_equal(read_samples("x.npy").values, array)
    np.testing.assert_array_equal(read_samples("x.npy:2").values, array[:, 1:])
    np.save("x.npy", array[:, 0])
    np.testing.assert_array_equal(read_samples("x.npy").values, array[:, :1])


def test_an_array_of_words():
    np.save("x.npy", np.array(["b", "a", "b"]))
    samples = read_samples("x.npy")
    assert samples.words == ("1",)
    np.testing.assert_array_equal(samples.values[:, 0], [1, 0, 1])


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n\n"])
def test_separators_and_line_ends(separator, ending):
    text = f"\ufeffa{separator}b\n1{separator}2\n3{separator}4{ending}"
    samples = read_samples(write("x.csv", text))
    np.testing.assert_array_equal(samples.values, [[1, 2], [3, 4]])
    assert samples.columns == ("a", "b")


def test_without_a_header_columns_have_places():
    samples = read_samples(write("x.csv", "1,2\n3,4\n") + ":2")
    assert samples.columns == ("2",)
    np.testing.assert_array_equal(samples.values, [[2], [4]])


def test_a_name_goes_before_a_place():
    samples = read_samples(write("x.csv", "b,1\n1,5\n3,6\n") + ":1")
    np.testing.assert_array_equal(samples.values, [[5], [6]])


def test_a_name_with_a_comma_is_quoted():
    samples = read_samples(write("x.csv", '"a,b",c\n1,5\n3,6\n') + ':"a,b",c')
    assert samples.columns == ("a,b", "c")


def test_a_file_whose_name_has_a_colon():
    text = "a,b\n1,2\n3,4\n"
    write("2024:x.csv", text)
    write("x.csv:a", text)
    assert read_samples("2024:x.csv").columns == ("a", "b")
    assert read_samples("2024:x.csv:b").columns == ("b",)
    assert read_samples(write("y.csv", "x.csv,b\n1,2\n3,4\n") + ":x.csv").columns == ("x.csv",)
    assert not holds_samples("x.csv:a")  # the file of that very name, which ends in nothing known


def test_what_holds_samples():
    assert holds_samples("nowhere/x.CSV:a,b")
    assert holds_samples("x.npy")
    for text in ("ptb", "book.txt", "run/sample"):
        assert not holds_samples(text)


numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.lists(st.tuples(numbers, numbers), min_size=2, max_size=20).filter(
        lambda rows: all(len(set(column)) > 1 for column in zip(*rows, strict=True))
    ),
    st.text(string.ascii_letters + ' ,"_', min_size=1, max_size=8).filter(str.strip),
)
def test_what_python_writes_is_read_exactly(tmp_path_factory, rows, name):
    path = tmp_path_factory.mktemp("written") / "x.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["first", f"x{name}"])
        writer.writerows(rows)
    samples = read_samples(str(path))
    np.testing.assert_array_equal(samples.values, rows)
    assert samples.columns == ("first", f"x{name}".strip())


def refused(source, *words):
    with pytest.raises(InfolmError) as caught:
        read_samples(source)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_files_that_are_not_there():
    refused("x.npy", "no file x.npy")
    refused("x.csv:a,b", "no file x.csv:")
    refused("x.parquet:a", "no file x.parquet")


def test_files_of_another_kind():
    write("x.xlsx", "a")
    refused("x.xlsx", "x.xlsx", ".npy, .csv, .tsv or .parquet")
    refused("x", ".npy")


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "x.npy").mkdir()
    refused("x.npy", "no file")


@pytest.mark.parametrize("file", ["people.csv", "people.parquet"])
def test_unknown_columns(people, file):
    refused(f"{file}:hieght", "'hieght'", "did you mean 'height'?", "age, town")
    refused(f"{file}:0", "'0'")
    refused(f"{file}:4", "'4'")


def test_unknown_columns_of_an_array():
    np.save("x.npy", np.eye(2))
    refused("x.npy:3", "no column '3'", "1, 2")


@pytest.mark.parametrize("file", ["x.npy", "x.csv", "x.parquet"])
def test_empty_files(file):
    refused(write(file, ""), f"{file} is empty")


def test_files_without_rows():
    refused(write("x.csv", "a,b\n"), "no rows")
    refused(write("y.csv", "\n\n"), "empty line")
    np.save("x.npy", np.empty((0, 2)))
    refused("x.npy", "no rows")
    parquet.write_table(pa.table({"a": pa.array([], pa.float64())}), "x.parquet")
    refused("x.parquet", "no rows")


def test_ragged_rows():
    refused(write("x.csv", "a,b\n1,2\n3\n"), "line 3", "1 cells", "2")
    refused(write("x.csv", "a\n1\n\n3\n"), "line 3", "0 cells")


@pytest.mark.parametrize("cell", ["", " ", "nan", "NaN", "inf", "-inf"])
def test_cells_that_are_no_number(cell):
    refused(write("x.csv", f"a,b\n1,2\n3,{cell}\n5,6\n"), "column 'b'", "line 3")
    assert read_samples("x.csv:a").columns == ("a",)


def test_an_empty_cell_among_words():
    refused(write("x.csv", "a,b\n1,u\n3,\n5,v\n"), "column 'b'", "empty in line 3")


@pytest.mark.parametrize("cell", ["NA", "12 kg", "1,5"])
def test_a_word_among_numbers(cell):
    refused(write("x.csv", f'a,b\n1,2\n3,"{cell}"\n5,6\n'), "column 'b'", f"'{cell}' in line 3")


def test_holes_in_arrays_and_parquet():
    np.save("x.npy", np.array([[0, 1.0], [1, np.nan], [2, 2]]))
    refused("x.npy", "column '2'", "row 2")
    parquet.write_table(pa.table({"a": [1.0, None], "b": ["u", None]}), "x.parquet")
    refused("x.parquet:a", "column 'a'", "empty in row 2")
    refused("x.parquet:b", "column 'b'", "empty in row 2")


def test_constant_columns():
    refused(write("x.csv", "a,b\n1,u\n2,u\n"), "column 'b'", "constant")
    refused(write("x.csv", "a,b\n1,u\n1,v\n"), "column 'a'", "constant")


def test_pickles_are_never_loaded(tmp_path):
    np.save("x.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    refused("x.npy", "x.npy", "without Python objects")
    (tmp_path / "y.npy").write_bytes(b"\x80\x04N.")
    refused("y.npy", "y.npy", "numpy.save")


def test_damaged_files(tmp_path):
    np.save("x.npy", np.arange(100.0))
    whole = (tmp_path / "x.npy").read_bytes()
    for end in (4, 40, len(whole) - 8):
        (tmp_path / "x.npy").write_bytes(whole[:end])
        refused("x.npy", "x.npy cannot be read")
    np.savez("z.npz", np.arange(3))
    (tmp_path / "z.npz").rename("z.npy")
    refused("z.npy", "z.npy cannot be read")
    write("x.parquet", "no Parquet at all")
    refused("x.parquet", "x.parquet cannot be read as Parquet")
    write("x.csv", 'a,b\n1,"2\n')
    refused("x.csv", "x.csv cannot be read as CSV")
    (tmp_path / "x.csv").write_bytes("größe\n1\n2\n".encode("latin-1"))
    refused("x.csv", "not UTF-8")


@pytest.mark.parametrize(
    ("array", "word"),
    [
        (np.ones((2, 2, 2)), "(2, 2, 2)"),
        (np.float64(1), "()"),
        (np.ones((3, 0)), "(3, 0)"),
        (np.array([1j, 2]), "complex128"),
        (np.array(["2024-01-01", "2024-01-02"], "M8[D]"), "datetime64"),
    ],
)
def test_arrays_that_are_no_samples(array, word):
    np.save("x.npy", array)
    refused("x.npy", word)


def test_a_parquet_column_that_is_no_sample():
    parquet.write_table(pa.table({"a": [[1], [2]]}), "x.parquet")
    refused("x.parquet", "column 'a'", "object")


def test_without_pyarrow_the_sentence_says_what_to_install(people, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused("people.parquet", "pip install 'infolm[parquet]'")
    assert read_samples("people.csv").columns == tuple(TABLE)


def test_reading_needs_neither_torch_nor_pyarrow():
    script = (
        "import sys, infolm.data.tables;"
        "assert not {'torch', 'pyarrow', 'tokenizers', 'scipy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
