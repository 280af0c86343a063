"""GLUE's files: each layout as it is distributed, and all that can be wrong with one."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infolm.errors import InfolmError
from infolm.finetuning.tasks import TASKS, Example, Labelled, read_task

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Files of a folder by name: lines of cells separated by '|', or bytes as they are."""

    def write(files: dict[str, str | bytes], folder: str = "") -> Path:
        for name, content in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(exist_ok=True)
            if isinstance(content, str):
                content = content.replace("|", "\t").encode()
            path.write_bytes(content)
        return tmp_path

    return write


# A line or two of each task, in the columns of its distribution

COLA = "gj04|1||They drank the pub dry.\ngj04|0|*|They drank the pub.\n"
SST2 = "sentence|label\nhide new secretions |0\n\"quoted\" and 'so' |1\n"
MRPC = (
    "\ufeffQuality|#1 ID|#2 ID|#1 String|#2 String\r\n"
    '1|702876|702977|He called "the witness" .|Referring to him as only "the witness .\r\n'
    "0|2108705|2108831|Yucaipa owned it .|Yucaipa bought it .\r\n"
)
QQP = "id|qid1|qid2|question1|question2|is_duplicate\n133|213|214|How is it?|How so?|0\n"
PARSES = "sentence1_binary_parse|sentence2_binary_parse|sentence1_parse|sentence2_parse"
MNLI = (
    f"index|promptID|pairID|genre|{PARSES}|sentence1|sentence2|label1|gold_label\n"
    "0|31193|31193n|government|( )|( )|(ROOT)|(ROOT)|Cream skims.|Product.|neutral|neutral\n"
    "1|31194|31194c|telephone|( )|( )|(ROOT)|(ROOT)|You know.|You do not.|neutral|contradiction\n"
)
MNLI_DEV = (
    f"index|promptID|pairID|genre|{PARSES}|sentence1|sentence2|"
    "label1|label2|label3|label4|label5|gold_label\n"
    "0|6|6n|slate|( )|( )|(ROOT)|(ROOT)|Rights.|Benefits.|"
    "neutral|entailment|neutral|neutral|neutral|entailment\n"
)
QNLI = "index|question|sentence|label\n0|When?|In 1990.|entailment\n"
RTE = "index|sentence1|sentence2|label\n0|No weapons.|Weapons.|not_entailment\n"
STSB = (
    "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2|score\n"
    "0|main-captions|MSRvid|2012test|0001|none|none|A plane.|An air plane.|4.750\n"
)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "cola",
            COLA,
            [Example("They drank the pub dry.", None, 1), Example("They drank the pub.", None, 0)],
        ),
        (
            "sst2",
            SST2,
            [Example("hide new secretions", None, 0), Example("\"quoted\" and 'so'", None, 1)],
        ),
        (
            "mrpc",
            MRPC,
            [
                Example('He called "the witness" .', 'Referring to him as only "the witness .', 1),
                Example("Yucaipa owned it .", "Yucaipa bought it .", 0),
            ],
        ),
        ("qqp", QQP, [Example("How is it?", "How so?", 0)]),
        ("qnli", QNLI, [Example("When?", "In 1990.", 0)]),
        ("rte", RTE, [Example("No weapons.", "Weapons.", 1)]),
        ("stsb", STSB, [Example("A plane.", "An air plane.", 4.75)]),
    ],
)
def test_each_task_is_read_as_it_is_distributed(
    write: Write, name: str, content: str, expected: list[Example]
) -> None:
    direct = read_task(name, write({"train.tsv": content, "dev.tsv": content}))
    assert direct == Labelled(expected, {"dev": expected}, {})


def test_mnli_has_two_parts_and_its_gold_label(write: Write) -> None:
    other = MNLI_DEV.replace("Rights.", "Wrongs.")
    files = {"train.tsv": MNLI, "dev_matched.tsv": MNLI_DEV, "dev_mismatched.tsv": other}
    found = read_task("mnli", write(files))
    assert found.train == [
        Example("Cream skims.", "Product.", 1),
        Example("You know.", "You do not.", 2),
    ]
    assert found.dev == {
        "matched": [Example("Rights.", "Benefits.", 0)],
        "mismatched": [Example("Wrongs.", "Benefits.", 0)],
    }


def test_the_folder_may_hold_glues_folders(write: Write) -> None:
    for task in TASKS.values():
        columns = [*task.texts, task.label, "more"]
        cells = [*task.texts, task.labels[1] if task.labels else "2.5", ""]
        content = "|".join(columns) + "\n" + "|".join(cells) + "\n"
        dev = [name for names in task.layouts[0].dev.values() for name in names]
        folder = write(dict.fromkeys(("train.tsv", *dev), content), task.title)
        found = read_task(task.name, folder)
        pair = task.texts[1] if len(task.texts) == 2 else None
        assert found.train == [Example(task.texts[0], pair, 1 if task.labels else 2.5)]
        assert found == read_task(task.name, folder / task.title)


def test_cola_as_its_authors_give_it_out_has_glues_dev(write: Write) -> None:
    files = {
        "in_domain_train.tsv": COLA,
        "in_domain_dev.tsv": "b|1||In it.",
        "out_of_domain_dev.tsv": "c|0|*|Out of it.",
    }
    found = read_task("cola", write(files))
    assert len(found.train) == 2
    assert found.dev == {"dev": [Example("In it.", None, 1), Example("Out of it.", None, 0)]}


@pytest.mark.parametrize("ids", ["dev_ids.tsv", "mrpc_dev_ids.tsv"])
def test_mrpc_as_its_authors_give_it_out_is_divided_by_glues_list(write: Write, ids: str) -> None:
    # The same numbers the other way round are another pair.
    files = {
        "msr_paraphrase_train.txt": MRPC,
        "msr_paraphrase_test.txt": MRPC.replace("Yucaipa", "It"),
        ids: "2108705|2108831\n702977|702876\n",
    }
    found = read_task("mrpc", write(files))
    assert [example.label for example in found.train] == [1]
    assert found.dev == {"dev": [Example("Yucaipa owned it .", "Yucaipa bought it .", 0)]}
    assert found.test["test"][1] == Example("It owned it .", "It bought it .", 0)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cola", "index|sentence\n0|Bill whistled past the house.\n"),
        ("sst2", "index|sentence\n0|uneasy mishmash of styles\n"),
        ("mrpc", "index|#1 ID|#2 ID|#1 String|#2 String\n0|1|2|It is.|It was.\n"),
        ("stsb", "index|sentence1|sentence2\n0|A girl.|A boy.\n"),
        ("qqp", ""),
    ],
)
def test_a_test_file_without_labels_is_not_read(write: Write, name: str, content: str) -> None:
    train = {"cola": COLA, "sst2": SST2, "mrpc": MRPC, "stsb": STSB, "qqp": QQP}[name]
    folder = write({"train.tsv": train, "dev.tsv": train, "test.tsv": content})
    assert read_task(name, folder).test == {}
    labelled = read_task(name, write({"test.tsv": train}))
    assert labelled.test == {"test": labelled.train}


def test_mrpcs_own_test_file_counts_beside_glues(write: Write) -> None:
    unlabelled = "index|#1 ID|#2 ID|#1 String|#2 String\n0|1|2|It is.|It was.\n"
    files = {"train.tsv": MRPC, "dev.tsv": MRPC, "test.tsv": unlabelled}
    found = read_task("mrpc", write({**files, "msr_paraphrase_test.txt": MRPC}))
    assert found.test == {"test": found.train}
    own = read_task("mrpc", write({"test.tsv": MRPC.replace("Yucaipa", "It")}))
    assert own.test["test"][1] == Example("It owned it .", "It bought it .", 0)


def test_mnlis_test_parts_with_labels_are_read(write: Write) -> None:
    files = {"train.tsv": MNLI, "dev_matched.tsv": MNLI_DEV, "dev_mismatched.tsv": MNLI_DEV}
    found = read_task("mnli", write({**files, "test_mismatched.tsv": MNLI_DEV}))
    assert found.test == {"mismatched": found.dev["mismatched"]}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.rstrip("\n"),
        lambda text: "\n" + text.replace("\n", "\n\n"),
        lambda text: text.replace("|", " | "),
        lambda text: "\n".join("|".join(line.split("|")[::-1]) for line in text.split("\n")),
    ],
)
def test_line_ends_marks_blanks_and_the_order_of_columns_change_nothing(
    write: Write, change: Callable[[str], str]
) -> None:
    plain = read_task("rte", write({"train.tsv": RTE, "dev.tsv": RTE}))
    assert read_task("rte", write({"train.tsv": change(RTE), "dev.tsv": RTE})) == plain


def test_cola_may_have_a_header(write: Write) -> None:
    found = read_task("cola", write({"train.tsv": "label|sentence\n0|Of.\n", "dev.tsv": COLA}))
    assert found.train == [Example("Of.", None, 0)]


texts = st.text(
    st.characters(exclude_characters="\t\n", exclude_categories=["Cs"]), min_size=1
).filter(lambda text: text == text.strip() and not text.startswith("\ufeff"))


@settings(deadline=None)
@given(st.lists(st.tuples(texts, texts, st.sampled_from(["0", "1"])), min_size=1, max_size=8))
def test_any_text_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("qqp")
    lines = [("question1", "question2", "is_duplicate"), *rows]
    content = "".join("\t".join(cells) + "\n" for cells in lines).encode()
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_bytes(content)
    expected = [Example(text, pair, float(label)) for text, pair, label in rows]
    assert read_task("qqp", folder).train == expected


# What is wrong is said in a sentence, with the file and the line


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("sst2", "", r"dev\.tsv has no examples: get"),
        ("cola", "", r"dev\.tsv has no examples"),
        ("sst2", "\n\r\n", r"dev\.tsv has no examples"),
        ("sst2", "sentence|label\n", r"dev\.tsv has no examples"),
        ("sst2", b"sentence\tlabel\nfine\t1\ncaf\xe9\t0\n", r"line 3 of .*dev\.tsv is not UTF-8"),
        ("sst2", "sentence|label".encode("utf-16"), r"line 1 of .*dev\.tsv is not UTF-8 text: con"),
        (
            "sst2",
            "sentence|grade\nfine|1\n",
            r"line 1 of .*dev\.tsv names no column 'label': write",
        ),
        (
            "rte",
            "index|sentence1|label\n",
            r"line 1 of .* names no column 'sentence2'.*, with sent",
        ),
        ("sst2", "so fine|1\n", r"line 1 of .*dev\.tsv names no column 'sentence'"),
        ("cola", "a|1||Fine.\nb|0\n", r"line 2 of .*dev\.tsv has 2 columns and not 4: correct the"),
        ("cola", "Fine.\n", r"line 1 of .*dev\.tsv has 1 column and not 4"),
        ("sst2", "sentence|label\nfine|1\nbad\n", r"line 3 of .*dev\.tsv has 1 column and not 2"),
        ("sst2", "sentence|label\nfine|or|1\n", r"line 2 of .*dev\.tsv has 3 columns and not 2"),
        ("qqp", QQP + '"|Was he real?|0\n', r"line 3 of .* has 3 columns and not 6: .*QQP-clean"),
        ("sst2", "sentence|label\nfine| \n", r"line 2 of .*dev\.tsv has no label: correct"),
        ("cola", "a|||Fine.\n", r"line 1 of .*dev\.tsv has no label"),
        ("mrpc", MRPC + "|1|2|It is.|It was.\n", r"line 4 of .*dev\.tsv has no Quality"),
        ("sst2", "sentence|label\nfine|2\n", r"line 2 of .* has the label '2': SST-2 has 0 and 1$"),
        ("rte", RTE + "1|It.|So.|no\n", r"line 3 .* 'no': RTE has entailment and not_entailment$"),
        ("stsb", STSB.replace("4.750", ""), r"line 2 of .*dev\.tsv has no score: correct"),
        (
            "stsb",
            STSB.replace("4.750", "high"),
            r"line 2 of .* has the score 'high', which is not a finite nu",
        ),
        (
            "stsb",
            STSB.replace("4.750", "nan"),
            r"line 2 of .* the score 'nan', which is not a finite number",
        ),
        (
            "stsb",
            STSB.replace("4.750", "-inf"),
            r"line 2 of .* the score '-inf', which is not a finite number",
        ),
        (
            "sst2",
            "sentence|label\n\nfine|1\n |1\n",
            r"the sentence on line 4 of .*dev\.tsv is empty",
        ),
        (
            "qqp",
            QQP.replace("How so?", ""),
            r"the question2 on line 2 of .*dev\.tsv is empty: correct",
        ),
    ],
)
def test_a_bad_file_is_one_sentence(
    write: Write, name: str, content: str | bytes, match: str
) -> None:
    good = {"cola": COLA, "sst2": SST2, "mrpc": MRPC, "qqp": QQP, "rte": RTE, "stsb": STSB}[name]
    folder = write({"train.tsv": good, "dev.tsv": content})
    with pytest.raises(InfolmError, match=match):
        read_task(name, folder)


def test_the_three_labels_of_mnli_are_named(write: Write) -> None:
    bad = MNLI_DEV.replace("neutral|entailment\n", "neutral|-\n")
    folder = write({"train.tsv": MNLI, "dev_matched.tsv": MNLI_DEV, "dev_mismatched.tsv": bad})
    told = r"line 2 of .*dev_mismatched\.tsv .*'-': MNLI has entailment, neutral and contradiction$"
    with pytest.raises(InfolmError, match=told):
        read_task("mnli", folder)


def test_the_line_is_the_files_own_number(write: Write) -> None:
    content = "sentence|label\n" + "fine|1\n" * 1_500 + "bad|x\n"
    with pytest.raises(InfolmError, match=r"line 1,502 of .*train\.tsv has the label 'x'"):
        read_task("sst2", write({"train.tsv": content, "dev.tsv": SST2}))


@pytest.mark.parametrize(
    ("name", "files", "match"),
    [
        ("sst2", {}, r" has no train\.tsv, which the train part of SST-2 needs: put"),
        ("cola", {}, r" has no train\.tsv or in_domain_train\.tsv, which .* or has a folder CoLA$"),
        ("sst2", {"train.tsv": SST2}, r" has no dev\.tsv, which the dev part of SST-2"),
        (
            "cola",
            {"in_domain_train.tsv": COLA, "in_domain_dev.tsv": COLA},
            r" has no out_of_domain_dev\.tsv, which the dev part of CoLA",
        ),
        ("mnli", {"train.tsv": MNLI, "dev_matched.tsv": MNLI}, r" has no dev_mismatched\.tsv"),
        (
            "mrpc",
            {"msr_paraphrase_train.txt": MRPC},
            r" has no dev_ids\.tsv or mrpc_dev_ids\.tsv, which the dev part of MRPC",
        ),
        (
            "mrpc",
            {"msr_paraphrase_train.txt": MRPC, "dev_ids.tsv": "1|2\n"},
            r"dev_ids\.tsv lists no pair of .*msr_paraphrase_train\.txt",
        ),
        (
            "mrpc",
            {"msr_paraphrase_train.txt": MRPC, "dev_ids.tsv": "702876|702977\n2108705|2108831"},
            r"dev_ids\.tsv lists all pairs of ",
        ),
        (
            "mrpc",
            {"msr_paraphrase_train.txt": MRPC.replace("#2 ID", "ID"), "dev_ids.tsv": "1|2"},
            r"line 1 of .*msr_paraphrase_train\.txt names no column '#2 ID'",
        ),
    ],
)
def test_a_file_that_is_missing_is_named(
    write: Write, name: str, files: dict[str, str], match: str
) -> None:
    with pytest.raises(InfolmError, match=match):
        read_task(name, write(files))


def test_a_file_that_cannot_be_read_is_named(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    folder = write({"train.tsv": SST2, "dev.tsv": SST2})
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InfolmError, match=r"train\.tsv cannot be read: Permission denied"):
        read_task("sst2", folder)


def test_a_folder_or_a_task_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InfolmError, match=r"there is no folder .*none: give the one with RTE's"):
        read_task("rte", tmp_path / "none")
    with pytest.raises(
        InfolmError, match=r"no task 'sst-2', did you mean 'sst2'\? \(there are col"
    ):
        read_task("sst-2", tmp_path)


def test_the_papers_epochs() -> None:
    assert {name: task.epochs for name, task in TASKS.items() if task.epochs != 10} == {"cola": 4}
    assert list(TASKS) == ["cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte", "stsb"]


# The real files


def real(folder: str) -> Path:
    path = Path(os.environ.get("INFOLM_DATA", "")) / folder
    if not os.environ.get("INFOLM_DATA") or not path.is_dir():
        pytest.skip(f"{folder} is not in $INFOLM_DATA")
    return path


@pytest.mark.data
def test_cola_has_the_known_counts() -> None:
    found = read_task("cola", real("cola"))
    assert len(found.train) == 8_551
    assert len(found.dev["dev"]) == 1_043 == 527 + 516
    first = "Our friends won't buy this analysis, let alone the next one we propose."
    assert found.train[0] == Example(first, None, 1)
    assert found.dev["dev"][-1] == Example("John talked to Bill about himself.", None, 1)


@pytest.mark.data
def test_sst2_has_the_known_counts() -> None:
    found = read_task("sst2", real("sst2"))
    assert len(found.train) == 67_349
    assert len(found.dev["dev"]) == 872
    assert sum(example.label for example in found.dev["dev"]) == 444
