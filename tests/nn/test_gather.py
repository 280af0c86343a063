"""Rows of two processes: in order, with their gradients; and losses as of one process with all."""

import subprocess
import sys

import torch

from infolm.nn.gather import gather, processes

COMMON = """
import torch
from infolm.objectives.masked import ngrams_of_sequences
from infolm.objectives.words import Table, among_batch

torch.set_num_threads(1)
torch.manual_seed(0)
# Five sequences with 0 to 4 hidden words and n-grams; the second process has two of them.
groups = torch.tensor([0, 0, 1, 2, 2, 2, 3, 3, 3, 3])
words = torch.tensor([1, 1, 4, 1, 2, 2, 0, 4, 4, 5])
owners = torch.tensor([0, 1, 1, 1, 3, 3, 4])

def double(*shape):
    return torch.randn(shape, dtype=torch.double)

anchors, table, bias = double(10, 3), double(6, 3), double(6)
sequences, ngrams = double(5, 3), double(7, 3)

def loss_of(rank, count):
    '''The loss, its terms and its gradients, of the sequences rank, rank + count, ...'''
    mine, has = groups % count == rank, owners % count == rank
    parts = [anchors[mine], table, bias, sequences[rank::count], ngrams[has]]
    parts = [part.clone().requires_grad_() for part in parts]
    a, vectors, b, whole, rows = parts
    shares = float(mine.float().mean()), float(has.float().mean())
    first = among_batch(a, words[mine], Table(vectors, b), groups[mine] // count, words)
    second = ngrams_of_sequences(whole, rows, owners[has] // count)
    first, second = first.estimate(shares[0]), second.estimate(shares[1])
    loss = first.loss + 0.4 * second.loss
    loss.backward()
    numbers = [loss.item(), first.count, second.count]
    numbers += [e.count * float(e.terms["information"]) for e in (first, second)]
    return numbers, [part.grad for part in parts], (mine, has)
"""

WORKER = """
import sys
from torch import distributed
from infolm.nn.gather import gather, processes

rank, count, address = int(sys.argv[1]), int(sys.argv[2]), f"file://{sys.argv[3]}"
whole_numbers, whole_gradients, _ = loss_of(0, 1)
distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=count)
assert processes() == (rank, count)

# -- rows: none, one, two, ..., each knows whose it is
rows = (torch.arange(2.0 * rank).view(rank, 2) + 10 * rank).requires_grad_()
every = gather(rows)
slow = [torch.arange(2.0 * r).view(r, 2) + 10 * r for r in range(count)]
assert torch.equal(every, torch.cat(slow))
pull = torch.arange(every.numel()).view_as(every) * (rank + 1.0)  # other in each process
(every * pull).sum().backward()
first = sum(range(rank))
weights = sum(r + 1.0 for r in range(count))
expected = torch.arange(every.numel()).view_as(every)[first : first + rank] * weights
assert torch.equal(rows.grad, expected)
assert gather(torch.tensor([rank])).tolist() == list(range(count))

# -- losses: the sum over the processes is what one process has
numbers, gradients, (mine, has) = loss_of(rank, count)
numbers = torch.tensor(numbers, dtype=torch.double)
distributed.all_reduce(numbers)
torch.testing.assert_close(numbers.tolist(), [float(n) for n in whole_numbers])
parts = [mine, None, None, slice(rank, None, count), has]
for gradient, whole, part in zip(gradients, whole_gradients, parts):
    if part is None:  # of a weight that every process has
        distributed.all_reduce(gradient)
    torch.testing.assert_close(gradient, whole if part is None else whole[part])
distributed.destroy_process_group()
"""


def test_processes_together_have_the_loss_and_gradients_of_one(tmp_path):
    count = 2
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                COMMON + WORKER,
                str(rank),
                str(count),
                str(tmp_path / "meeting"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    said = [worker.communicate(timeout=120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * count, "".join(said)


def test_one_process_gathers_its_own_rows():
    rows = torch.randn(3, 2)
    assert gather(rows) is rows
    assert processes() == (0, 1)
