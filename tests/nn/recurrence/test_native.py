"""The machine computes what its instructions say, the same bits on any number of threads; where it
cannot be made, it is not available."""

import hashlib
import logging
import os
import subprocess
import sys
from functools import partial
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from infolm.nn.recurrence import native
from infolm.nn.recurrence.native import BEFORE, FIXED, NOW, Code, Instruction

DTYPES = [torch.float, torch.double]

UNARY = {
    "affine": lambda a, alpha, beta: alpha * a + beta,
    "sigmoid": lambda a, *_: 1 / (1 + np.exp(-a)),
    "tanh": lambda a, *_: np.tanh(a),
}
BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": np.minimum,
    "below": lambda a, b: np.where(a < b, 1.0, np.where(a == b, 0.5, 0.0)),
    "dsigmoid": lambda g, s: g * s * (1 - s),
    "dtanh": lambda g, y: g * (1 - y * y),
}
POINTWISE = [*UNARY, *BINARY, "muladd"]


def arguments(operation):
    return 1 if operation in UNARY else 2 if operation in BINARY else 3


def evaluate(instruction, inputs):
    if instruction.operation in UNARY:
        return UNARY[instruction.operation](*inputs, instruction.alpha, instruction.beta)
    if instruction.operation in BINARY:
        return BINARY[instruction.operation](*inputs)
    a, b, c = inputs
    return a * b + c


def interpret(instructions, operands, weights, sizes, reverse):
    """What `native.run` does, in numpy, one row after the other."""
    starts = [0, *accumulate(sizes)]

    def at(operand, t, row):
        array, when = operands[operand]
        before = sizes[0] + starts[t - 1] if t else 0
        return array if array.ndim == 1 else array[[0, starts[t], before][when] + row]

    for t in sorted(range(len(sizes)), reverse=reverse):
        for i in instructions:
            for row in range(sizes[t]):
                out, *inputs = (at(o, t, row) for o in (i.out, i.a, i.b, i.c) if o >= 0)
                if i.operation == "linear":
                    matrix, transposed = weights[i.weight]
                    out[:] = (matrix.T if transposed else matrix) @ inputs[0] + sum(inputs[1:])
                else:
                    out[: i.length] = evaluate(i, [x[: i.length] for x in inputs])


@pytest.fixture(scope="module")
def machine():
    if not native.available():
        pytest.skip("no C++ compiler")


def pointwise(operation, *inputs, out=None, **options):
    out = torch.empty_like(inputs[0]) if out is None else out
    numbers = range(1, len(inputs) + 1)
    code = Code([Instruction(operation, 0, *numbers, length=out.shape[1], **options)])
    native.run(code, [(x, FIXED) for x in (out, *inputs)], [], [len(out)], False, 1)
    return out


def linear(weight, v, init=None, out=None, transposed=False, threads=1, rounded=False):
    outputs = weight.shape[1 if transposed else 0]
    out = v.new_empty(len(v), outputs) if out is None else out
    code = Code([Instruction("linear", 0, 1, c=-1 if init is None else 2, weight=0)])
    operands = [(out, FIXED), (v, FIXED), (v if init is None else init, FIXED)]
    native.run(code, operands, [(weight, transposed)], [len(v)], False, threads, rounded)
    return out


@pytest.mark.usefixtures("machine")
class TestPointwise:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("operation", POINTWISE)
    def test_is_its_formula_at_every_length(self, operation, dtype):
        torch.manual_seed(0)
        for length in [*range(1, 35), 255, 256, 257, 640, 1001]:
            inputs = [torch.randn(3, length, dtype=dtype) for _ in range(arguments(operation))]
            inputs[-1][:, ::3] = inputs[0][:, ::3]  # equal ones for below
            got = pointwise(operation, *inputs, alpha=0.5, beta=-2.0)
            instruction = Instruction(operation, 0, 0, alpha=0.5, beta=-2.0)
            true = evaluate(instruction, [x.double().numpy() for x in inputs])
            eps = torch.finfo(dtype).eps
            np.testing.assert_allclose(got.numpy(), true, rtol=4 * eps, atol=8 * eps)

    @pytest.mark.parametrize("operation", POINTWISE)
    def test_may_write_over_any_of_its_inputs(self, operation):
        torch.manual_seed(0)
        count = arguments(operation)
        inputs = [torch.randn(2, 37) for _ in range(count)]
        expected = pointwise(operation, *inputs)
        for chosen in range(count):
            own = [x.clone() for x in inputs]
            assert pointwise(operation, *own, out=own[chosen]).equal(expected)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("operation", ["sigmoid", "tanh"])
    def test_curves_are_exact_to_two_units_in_the_last_place(self, operation, dtype):
        limits = torch.finfo(dtype)
        size = torch.logspace(-37 if dtype == torch.float else -300, 4, 20_001, dtype=torch.double)
        x = torch.cat([torch.linspace(-30, 30, 20_001), size, -size]).to(dtype)[None]
        got = pointwise(operation, x).numpy()[0]
        wide = x.numpy()[0].astype(np.longdouble)
        with np.errstate(over="ignore"):
            true = 1 / (1 + np.exp(-wide)) if operation == "sigmoid" else np.tanh(wide)
        error = np.abs(got - true)
        assert (error <= 2 * limits.eps * np.abs(true) + 4 * limits.tiny).all()

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_curves_saturate_and_keep_nan(self, dtype):
        inf, tiny = float("inf"), torch.finfo(dtype).smallest_normal / 4
        x = torch.tensor([[-inf, -1e4, -tiny, 0.0, tiny, 1e4, inf, float("nan")]], dtype=dtype)
        nan = pytest.approx(float("nan"), nan_ok=True)
        assert pointwise("sigmoid", x)[0].tolist() == [0, 0, 0.5, 0.5, 0.5, 1, 1, nan]
        assert pointwise("tanh", x)[0].tolist() == [-1, -1, -tiny, 0, tiny, 1, 1, nan]

    @pytest.mark.parametrize("operation", [o for o in POINTWISE if o != "below"])
    def test_nan_in_any_input_is_nan(self, operation):
        for chosen in range(arguments(operation)):
            inputs = [torch.ones(1, 19) for _ in range(arguments(operation))]
            inputs[chosen][:] = float("nan")
            assert pointwise(operation, *inputs).isnan().all()

    def test_infinities_are_ieee(self):
        inf = torch.full((1, 11), float("inf"))
        assert pointwise("sub", inf, inf).isnan().all()
        assert pointwise("mul", inf, 0 * torch.ones(1, 11)).isnan().all()
        assert pointwise("add", inf, inf).equal(inf)
        assert pointwise("min", inf, -inf).equal(-inf)

    def test_small_numbers_are_not_flushed_to_zero(self):
        small = torch.full((1, 11), 1e-40)
        assert pointwise("affine", small, alpha=0.5).equal(small / 2)
        assert (small / 2 > 0).all()

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_instructions_follow_each_other_beyond_what_is_done_at_once(self, dtype):
        """x, then x^2, then x^2 + x into the same memory, over rows longer than a chunk."""
        torch.manual_seed(0)
        x = torch.randn(3, 1337, dtype=dtype)
        out = torch.empty_like(x)
        code = Code(
            [Instruction("mul", 1, 0, 0, length=1337), Instruction("add", 1, 1, 0, length=1337)]
        )
        native.run(code, [(x, FIXED), (out, FIXED)], [], [3], False, 1)
        torch.testing.assert_close(out, x * x + x)

    def test_columns_may_overlap_those_of_another_instruction(self):
        """All of an instruction is done before the next one reads shifted columns of its result."""
        torch.manual_seed(0)
        x, y, z = torch.randn(3, 1400), torch.randn(3, 900), torch.empty(3, 900)
        expected = x.clone()
        expected[:, :900] = y
        expected = expected[:, 123:1023] * 2
        code = Code(
            [Instruction("affine", 0, 2, length=900), Instruction("add", 3, 1, 1, length=900)]
        )
        operands = [(x[:, :900], FIXED), (x[:, 123:1023], FIXED), (y, FIXED), (z, FIXED)]
        native.run(code, operands, [], [3], False, 1)
        assert z.equal(expected)


@pytest.mark.usefixtures("machine")
class TestLinear:
    @settings(max_examples=80, deadline=None)
    @given(
        rows=st.integers(1, 15),
        inputs=st.integers(0, 70),
        outputs=st.integers(1, 150),
        transposed=st.booleans(),
        init=st.sampled_from(["none", "vector", "rows", "out"]),
        dtype=st.sampled_from(DTYPES),
        threads=st.integers(1, 3),
        rounded=st.booleans(),
    )
    def test_is_a_product(self, rows, inputs, outputs, transposed, init, dtype, threads, rounded):
        torch.manual_seed(0)
        shape = (inputs, outputs) if transposed else (outputs, inputs)
        # Columns of wider tensors, whose other columns must stay.
        weight = torch.randn(shape[0], shape[1] + 3, dtype=dtype)[:, 2 : 2 + shape[1]]
        v = torch.randn(rows, inputs + 5, dtype=dtype)[:, 1 : 1 + inputs]
        wide = torch.randn(rows, outputs + 4, dtype=dtype)
        before, out = wide.clone(), wide[:, 3:-1]
        added = {
            "none": None,
            "vector": torch.randn(outputs, dtype=dtype),
            "rows": torch.randn(rows, outputs, dtype=dtype),
            "out": out,
        }[init]
        matrix, read = weight.T if transposed else weight, v
        if rounded and dtype == torch.float:
            matrix, read = matrix.bfloat16(), v.bfloat16()
        true = read.double() @ matrix.double().T + (0 if added is None else added.double())
        linear(weight, v, added, out, transposed, threads, rounded)
        tolerance = 20 * (inputs + 1) * torch.finfo(dtype).eps
        torch.testing.assert_close(out.double(), true, rtol=tolerance, atol=tolerance)
        assert wide[:, :3].equal(before[:, :3])
        assert wide[:, -1:].equal(before[:, -1:])

    @pytest.mark.parametrize(
        ("dtype", "rounded"), [*((dtype, False) for dtype in DTYPES), (torch.float, True)]
    )
    @pytest.mark.parametrize("outputs", [16, 43, 130])
    def test_a_row_is_the_same_bits_in_any_company(self, outputs, dtype, rounded):
        torch.manual_seed(0)
        weight, v = torch.randn(outputs, 97, dtype=dtype), torch.randn(27, 97, dtype=dtype)
        init = torch.randn(27, outputs, dtype=dtype)
        run = partial(linear, weight, rounded=rounded)
        alone = torch.cat([run(v[i : i + 1], init[i : i + 1]) for i in range(27)])
        for rows in range(1, 28):
            for threads in (1, 2):
                assert run(v[:rows], init[:rows], threads=threads).equal(alone[:rows])

    @pytest.mark.parametrize("rounded", [False, True])
    def test_both_ways_of_storing_give_the_same_bits(self, rounded):
        torch.manual_seed(0)
        weight, v = torch.randn(43, 97), torch.randn(5, 97)
        stored = weight.T.contiguous()
        one = linear(stored, v, transposed=True, rounded=rounded)
        assert one.equal(linear(weight, v, rounded=rounded))

    def test_nan_and_infinity_stay_in_their_row(self):
        torch.manual_seed(0)
        weight, v = torch.randn(21, 9), torch.randn(8, 9)
        clean = linear(weight, v)
        v[2, 3], v[5, 0] = float("nan"), float("inf")
        got = linear(weight, v)
        assert got[2].isnan().all()
        assert got[5].isinf().all()
        others = [0, 1, 3, 4, 6, 7]
        assert got[others].equal(clean[others])


@pytest.mark.usefixtures("machine")
class TestExponentiate:
    @settings(max_examples=60, deadline=None)
    @given(
        rows=st.integers(0, 20), columns=st.integers(1, 90), spread=st.sampled_from([0.1, 5, 80])
    )
    def test_is_the_softmax_and_its_error(self, rows, columns, spread):
        torch.manual_seed(0)
        logits = (spread * torch.randn(rows, columns)).bfloat16()
        bias, targets = torch.randn(columns), torch.randint(columns, (rows, 1))
        x = logits.double() + bias.double()
        e = (x - x.amax(1, keepdim=True)).exp() if rows else x
        sums = e.sum(1, keepdim=True)
        true = e.scatter_add(1, targets, -sums)
        log_p, z = native.exponentiate(logits, bias, targets)
        torch.testing.assert_close(z.double(), sums, rtol=1e-5, atol=0)
        expected = x.log_softmax(1).gather(1, targets)
        torch.testing.assert_close(log_p.double(), expected, rtol=1e-5, atol=1e-5)
        # bfloat16 has 8 bits, and what is below its smallest normal number is 0
        torch.testing.assert_close(logits.double(), true, rtol=2**-8, atol=1e-6)

    def test_a_row_is_the_same_bits_on_any_number_of_threads(self):
        torch.manual_seed(0)
        logits, bias = torch.randn(50, 43).bfloat16(), torch.randn(43)
        targets, found = torch.randint(43, (50, 1)), []
        before = torch.get_num_threads()
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            own = logits.clone()
            found.append([*native.exponentiate(own, bias, targets), own])
        torch.set_num_threads(before)
        for other in found[1:]:
            assert all(a.equal(b) for a, b in zip(found[0], other, strict=True))

    def test_what_is_not_a_number_stays_in_its_row(self):
        logits = torch.zeros(3, 20).bfloat16()
        logits[1, 7] = float("nan")
        log_p, z = native.exponentiate(logits, torch.zeros(20), torch.tensor([[0], [1], [2]]))
        assert z.isnan().squeeze(1).tolist() == [False, True, False]
        assert log_p.isnan().squeeze(1).tolist() == [False, True, False]

    def test_what_does_not_fit_is_refused(self):
        logits, bias, targets = (
            torch.zeros(3, 4).bfloat16(),
            torch.zeros(4),
            torch.zeros(3, 1).long(),
        )
        for wrong in (
            (logits.float(), bias, targets),
            (logits.T, bias[:3], targets),
            (logits, bias[:3], targets),
            (logits, bias, targets[:2]),
        ):
            with pytest.raises(ValueError, match="bias"):
                native.exponentiate(*wrong)


@st.composite
def programs(draw):
    """Instructions on operands of every kind: two widths; rows fixed, of the step, and of a state;
    columns of a wider tensor; vectors; for packed sizes."""
    widths = draw(st.tuples(st.integers(1, 20), st.integers(1, 20)))
    sizes = sorted(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)), reverse=True)
    batch, total = sizes[0], sum(sizes)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def normal(*shape):
        return random.normal(size=shape)

    operands, places = [], []
    for width in widths:
        wide, state = normal(batch, 2 * width + 3), normal(batch + total, width)
        places.append(range(len(operands), len(operands) + 7))
        operands += [
            (normal(width), FIXED),
            (normal(batch, width), FIXED),
            (normal(total, width), NOW),
            (wide[:, 1 : 1 + width], FIXED),
            (wide[:, 2 + width : 2 + 2 * width], FIXED),
            (state, BEFORE),
            (state[batch:], NOW),
        ]
    weights, instructions = [], []
    for _ in range(draw(st.integers(1, 6))):
        side = draw(st.integers(0, 1))
        own, other = places[side], places[1 - side]
        out = draw(st.sampled_from(own[1:]))
        if draw(st.booleans()):
            transposed = draw(st.booleans())
            matrix = normal(widths[side], widths[1 - side]) / 4
            weights.append((matrix.T.copy() if transposed else matrix, transposed))
            v, init = draw(st.sampled_from(other)), draw(st.sampled_from([-1, *own]))
            instructions.append(Instruction("linear", out, v, c=init, weight=len(weights) - 1))
        else:
            # `below` jumps, and the rounding of what it compares may differ.
            operation = draw(st.sampled_from([o for o in POINTWISE if o != "below"]))
            inputs = draw(st.tuples(*[st.sampled_from(own)] * arguments(operation)))
            inputs += (-1,) * (3 - len(inputs))
            options = {"length": widths[side], "alpha": -0.5, "beta": 0.25}
            instructions.append(Instruction(operation, out, *inputs, **options))
    return instructions, operands, weights, sizes, draw(st.booleans())


def tensors(operands, dtype):
    """The operands, which share memory where the arrays do."""
    memory = {}
    for array, _ in operands:
        whole = array if array.base is None else array.base
        memory.setdefault(id(whole), (whole, torch.tensor(whole, dtype=dtype)))
    result = []
    for array, when in operands:
        whole, tensor = memory[id(array if array.base is None else array.base)]
        offset = (array.ctypes.data - whole.ctypes.data) // 8
        strides = [stride // 8 for stride in array.strides]
        result.append((tensor.as_strided(array.shape, strides, offset), when))
    return result


@pytest.mark.usefixtures("machine")
class TestPrograms:
    @settings(max_examples=150, deadline=None)
    @given(programs(), st.sampled_from(DTYPES))
    def test_are_what_the_interpreter_computes_on_any_number_of_threads(self, program, dtype):
        instructions, operands, weights, sizes, reverse = program
        matrices = [(torch.tensor(w, dtype=dtype), transposed) for w, transposed in weights]
        results = []
        for threads in (1, 2, 3):
            given_ = tensors(operands, dtype)
            native.run(Code(instructions), given_, matrices, sizes, reverse, threads)
            results.append([tensor for tensor, _ in given_])
        for other in results[1:]:
            assert all(map(torch.equal, results[0], other))
        interpret(instructions, operands, weights, sizes, reverse)
        assume(all((abs(array) < 100).all() for array, _ in operands))
        tolerance = 1e-9 if dtype == torch.double else 2e-2
        for got, (true, _) in zip(results[0], operands, strict=True):
            np.testing.assert_allclose(got.numpy(), true, rtol=tolerance, atol=tolerance)

    def test_rows_of_very_different_lengths_may_leave_a_thread_without_work(self):
        torch.manual_seed(0)
        sizes = [4, 1, 1, 1, 1, 1]
        v, weight = torch.randn(9, 5), torch.randn(7, 5)
        code = Code([Instruction("linear", 1, 0, weight=0)])
        for threads in (1, 2, 3, 4):
            out = torch.empty(9, 7)
            native.run(code, [(v, NOW), (out, NOW)], [(weight, False)], sizes, False, threads)
            torch.testing.assert_close(out, v @ weight.T)

    def test_no_steps_and_no_rows_do_nothing(self):
        out = torch.ones(2, 3)
        code = Code([Instruction("affine", 0, 0, length=3, alpha=0.0)])
        for sizes in ([], [0, 0]):
            native.run(code, [(out, FIXED)], [], sizes, False, 2)
        assert out.equal(torch.ones(2, 3))

    def test_a_step_may_have_no_rows(self):
        out = torch.ones(2, 3)
        code = Code([Instruction("affine", 0, 0, length=3, beta=1.0)])
        native.run(code, [(out, FIXED)], [], [2, 1, 0], False, 2)
        assert out[:, 0].tolist() == [3, 2]

    def test_what_does_not_fit_is_refused(self):
        x = torch.ones(2, 3)
        code = Code([Instruction("add", 0, 0, 1, length=3)])
        for operands in (
            [(x, FIXED)],
            [(x, FIXED), (x.double(), FIXED)],
            [(x, FIXED), (torch.ones(3, 2).T, FIXED)],
        ):
            with pytest.raises(ValueError, match="operands"):
                native.run(code, operands, [], [2], False, 1)
        with pytest.raises(ValueError, match="bfloat16"):
            native.run(code, [(x.bfloat16(), FIXED)] * 2, [], [2], False, 1)
        with pytest.raises(KeyError):
            Code([Instruction("convolve", 0, 0)])


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A source that compiles at once, and a cache of its own."""
    source = tmp_path / "tiny.cpp"
    source.write_text('extern "C" int execute() { return 0; } extern "C" void exponentiate() {}\n')
    monkeypatch.setattr(native, "_SOURCE", source)
    monkeypatch.setenv("INFOLM_NATIVE", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "_library", native._library.__wrapped__)
    return source


def cached(source):
    return sorted((source.parent / "cache").glob("*"))


class TestBuilding:
    @pytest.mark.parametrize(("name", "value"), [("PATH", ""), ("CXX", "no-such-compiler")])
    def test_without_a_compiler_there_is_no_machine(self, tiny, monkeypatch, caplog, name, value):
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv(name, value)
        with caplog.at_level(logging.INFO, "infolm"):
            assert not native.available()
        assert "no C++ compiler" in caplog.text

    def test_a_compiler_that_fails_gives_none(self, tiny, monkeypatch):
        monkeypatch.setenv("CXX", "false")
        assert not native.available()

    @pytest.mark.usefixtures("machine")
    def test_source_that_does_not_compile_gives_none_and_leaves_nothing(self, tiny, caplog):
        tiny.write_text("int execute( {")
        with caplog.at_level(logging.INFO, "infolm"):
            assert not native.available()
        assert "execute" in caplog.text
        assert cached(tiny) == []

    @pytest.mark.usefixtures("machine")
    def test_is_made_once_and_again_for_another_source(self, tiny):
        assert native.available()
        first = cached(tiny)
        made = first[0].stat()
        assert native.available()
        assert cached(tiny) == first
        assert first[0].stat() == made
        tiny.write_text(tiny.read_text() + "// another\n")
        assert native.available()
        assert len(cached(tiny)) == 2

    @pytest.mark.usefixtures("machine")
    def test_processes_may_make_it_at_once(self, tiny):
        command = (
            "import sys, pathlib; from infolm.nn.recurrence import native;"
            "native._SOURCE = pathlib.Path(sys.argv[1]); sys.exit(not native.available())"
        )
        line = [sys.executable, "-c", command, str(tiny)]
        running = [subprocess.Popen(line, env=os.environ) for _ in range(2)]
        assert [process.wait() for process in running] == [0, 0]
        assert [path.suffix for path in cached(tiny)] == [".so"]

    @pytest.mark.usefixtures("machine")
    def test_a_folder_that_cannot_be_written_is_replaced(self, tiny, tmp_path, monkeypatch):
        (tmp_path / "file").touch()
        monkeypatch.setenv("INFOLM_NATIVE", str(tmp_path / "file" / "below"))
        monkeypatch.setattr(native.tempfile, "tempdir", str(tmp_path))
        assert native.available()
        assert list(tmp_path.glob("infolm-native-*/*.so"))


@pytest.mark.usefixtures("machine")
class TestTheCachedLibrary:
    """It is loaded only if it is the one that was made, and nobody else could have changed it."""

    @pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:5000], lambda b: b[:-1] + b"x"])
    def test_damaged_is_made_again_with_a_sentence(self, tiny, damage, capsys):
        assert native.available()
        (library,) = cached(tiny)
        right, built = library.read_bytes(), native.build()
        # A library that is loaded may not be changed under the process: another file.
        library.unlink()
        library.write_bytes(damage(right))
        assert native.build() == built
        assert "is damaged" in capsys.readouterr().err
        assert cached(tiny) == [library]
        assert library.read_bytes() == right
        assert "-march=native" in built["flags"]  # it did not fall back to another build

    def test_truncated_does_not_end_the_process(self, tiny):
        assert native.available()
        (library,) = cached(tiny)
        whole = library.read_bytes()
        library.unlink()
        library.write_bytes(whole[:5000])
        command = (
            "import sys, pathlib; from infolm.nn.recurrence import native;"
            "native._SOURCE = pathlib.Path(sys.argv[1]); sys.exit(not native.available())"
        )
        done = subprocess.run([sys.executable, "-c", command, str(tiny)], capture_output=True)
        assert done.returncode == 0, done

    def test_writable_by_others_is_made_again(self, tiny, capsys):
        assert native.available()
        (library,) = cached(tiny)
        library.chmod(0o777)
        assert native.available()
        assert "can be written by other accounts" in capsys.readouterr().err
        assert library.stat().st_mode & 0o777 == 0o755

    def test_a_link_is_made_again_and_its_target_stays(self, tiny, tmp_path, capsys):
        assert native.available()
        (library,) = cached(tiny)
        library.rename(tmp_path / "elsewhere.so")
        library.symlink_to(tmp_path / "elsewhere.so")
        assert native.available()
        assert "symbolic link" in capsys.readouterr().err
        assert not library.is_symlink()
        assert (tmp_path / "elsewhere.so").exists()

    def test_a_folder_of_another_account_is_not_used(self, tiny, tmp_path, monkeypatch, capsys):
        (tmp_path / "cache").mkdir()
        uid = os.getuid()
        monkeypatch.setattr(native.os, "getuid", lambda: uid + 1)
        monkeypatch.setattr(native.tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(native, "_fault", lambda library: "")
        if uid == 0:
            os.chown(tmp_path / "cache", 7, 7)
        native.available()
        assert "belongs to another account" in capsys.readouterr().err
        assert cached(tiny) == []

    def test_our_own_folder_is_closed_to_others(self, tiny, tmp_path):
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache").chmod(0o777)
        assert native.available()
        assert (tmp_path / "cache").stat().st_mode & 0o022 == 0

    def test_the_build_is_named(self, tiny):
        built = native.build()
        assert set(built) == {"library", "compiler", "flags", "instructions"}
        assert built["library"] == hashlib.sha256(cached(tiny)[0].read_bytes()).hexdigest()
        assert any(character.isdigit() for character in built["compiler"])
