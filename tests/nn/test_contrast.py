"""InfoNCE against plain sums: its bound, its blocks, their gradients and their memory."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from largest_tensor import LargestTensor

from infolm.nn.contrast import LOG_ZERO, info_nce, log_sum_exp


def inputs(count, candidates, dtype=torch.double, size=3, seed=0):
    """anchors, candidates, bias and ln weights, of which some are 0 in every row but the first."""
    torch.manual_seed(seed)
    shapes = [(count, size), (candidates, size), (candidates,)]
    tensors = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    weights = torch.randint(0, 3, (count, candidates)).to(dtype).log().clamp(min=LOG_ZERO)
    weights[0] = 0.0
    return *tensors, weights


@pytest.mark.parametrize("block", [1, 5, 12, None])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_blocks_change_neither_the_value_nor_the_gradients(block, biased, weighted, dtype):
    anchors, candidates, bias, weights = inputs(7, 5, dtype)
    bias = bias if biased else None
    plain = anchors @ candidates.T
    plain = plain if bias is None else plain + bias
    plain = (plain + weights if weighted else plain).exp().sum(1).log()
    # A row of which nothing counts is finite, where the plain sum is not.
    some = plain.isfinite()
    found = log_sum_exp(
        anchors, candidates, bias, (lambda rows: weights[rows]) if weighted else None, block
    )
    torch.testing.assert_close(found[some], plain[some])
    by = [x for x in (anchors, candidates, bias) if x is not None]
    pull = torch.randn(int(some.sum()), dtype=dtype)
    torch.testing.assert_close(
        torch.autograd.grad((found[some] * pull).sum(), by),
        torch.autograd.grad((plain[some] * pull).sum(), by),
    )


@pytest.mark.parametrize("block", [4, None])
def test_the_gradients_are_those_of_finite_differences(block):
    anchors, candidates, bias, weights = inputs(5, 4)

    def function(*given):
        return log_sum_exp(*given, lambda rows: weights[rows], block)

    assert torch.autograd.gradcheck(function, (anchors, candidates, bias))


finite = st.floats(-80, 80)


@given(finite, st.lists(finite, max_size=6))
def test_info_nce_never_exceeds_the_logarithm_of_its_set(positive, others):
    total = torch.tensor([float(x) for x in others]).logsumexp(0) if others else torch.tensor(-1e30)
    f = torch.tensor([positive])
    value, size = info_nce(f, total.reshape(1), torch.tensor([len(others)]))
    assert size.item() == pytest.approx(math.log(len(others) + 1))
    assert value.item() <= size.item()
    slow = f.double() - torch.tensor([positive, *others]).double().logsumexp(0) + size.double()
    torch.testing.assert_close(value.double(), slow, atol=1e-4, rtol=1e-6)


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_info_nce_is_the_bound_at_its_best_and_nothing_for_equal_scores(rows, others, seed):
    torch.manual_seed(seed)
    f, count = torch.randn(rows), torch.full((rows,), others)
    best, size = info_nce(f + 100, f, count)
    torch.testing.assert_close(best, size)
    none, _ = info_nce(f, f + math.log(others), count)
    torch.testing.assert_close(none, torch.zeros(rows), atol=1e-5, rtol=0)
    alone, _ = info_nce(f, torch.full((rows,), LOG_ZERO), torch.zeros(rows))
    assert alone.tolist() == [0.0] * rows


def test_no_tensor_is_larger_than_a_block_or_what_is_given():
    anchors, candidates, bias, _ = inputs(300, 200)
    block = 20 * 200
    with LargestTensor() as largest:
        log_sum_exp(anchors, candidates, bias, block=block).sum().backward()
    assert largest.elements == block
    assert anchors.numel() < block < 300 * 200


BIG = """
import re
from pathlib import Path

import torch
from infolm.objectives.masked import ngrams_of_sequences
from infolm.objectives.words import Table, among_batch

def peak():  # kilobytes; `ru_maxrss` is no less than the parent's
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

torch.set_num_threads(1)
words, ngrams, sequences, size, types = 70_000, 10_000, 1024, 8, 1_000
torch.manual_seed(0)
table = Table(torch.randn(types, size, requires_grad=True))
anchors = torch.randn(words, size, requires_grad=True)
groups = torch.arange(words) * sequences // words
owners = torch.arange(ngrams) * sequences // ngrams
whole, parts = (torch.randn(n, size, requires_grad=True) for n in (sequences, ngrams))
before = peak()
loss = among_batch(anchors, torch.randint(types, (words,)), table, groups).estimate().loss
loss = loss + ngrams_of_sequences(whole, parts, owners).estimate().loss
loss.backward()
assert loss.isfinite() and all(x.grad.isfinite().all() for x in (anchors, whole, parts))
print((peak() - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_a_batch_of_the_paper_s_fits_in_memory():
    """70,000 words and 10,000 n-grams, with their gradients. The scores alone, 70,000 by the 1,000
    kinds of word, would take 267 MB."""
    done = subprocess.run([sys.executable, "-c", BIG], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 350


@pytest.mark.parametrize("block", [12, None])
def test_sums_are_in_single_precision_even_of_half_an_encoder(block):
    anchors, candidates, bias, _ = inputs(7, 5, torch.float)
    plain = log_sum_exp(anchors.bfloat16(), candidates, bias, block=block)
    with torch.autocast("cpu", torch.bfloat16):
        found = log_sum_exp(anchors.bfloat16(), candidates, bias, block=block)
    assert found.dtype == torch.float
    torch.testing.assert_close(found, plain, rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(found.sum(), candidates)
    torch.testing.assert_close(gradient, torch.autograd.grad(plain.sum(), candidates)[0])
