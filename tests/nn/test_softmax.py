"""The lean softmax equals log_softmax and cross entropy, values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from infolm.nn import softmax
from infolm.nn.softmax import Softmax


def make(vocabulary=13, size=5, tied=True, seed=0):
    torch.manual_seed(seed)
    head = Softmax(vocabulary, size, tied, bound=0.5).double()
    return head, torch.randn(vocabulary, size, dtype=torch.double, requires_grad=True)


def logits(head, x, embedding):
    return functional.linear(x, embedding if head.weight is None else head.weight, head.bias)


@settings(deadline=None, max_examples=25)
@given(tokens=st.integers(1, 40), vocabulary=st.integers(2, 30), rows=st.integers(1, 50))
def test_loss_and_gradients_are_those_of_cross_entropy_for_any_block(tokens, vocabulary, rows):
    head, embedding = make(vocabulary)
    x = torch.randn(tokens, 5, dtype=torch.double, requires_grad=True)
    y = torch.randint(0, vocabulary, (tokens,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(softmax, "_block_rows", lambda _: rows)
        ours = head.nll_sum(x, y, embedding)
        each = head.log_prob(x, y, embedding)
    theirs = functional.cross_entropy(logits(head, x, embedding), y, reduction="sum")
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(-each.sum(), theirs)
    inputs = [x, embedding, head.bias]
    torch.testing.assert_close(
        torch.autograd.grad(3 * ours, inputs), torch.autograd.grad(3 * theirs, inputs)
    )


def test_gradients_by_finite_differences():
    head, embedding = make()
    x = torch.randn(4, 5, dtype=torch.double, requires_grad=True)
    y = torch.randint(0, 13, (4,))
    assert torch.autograd.gradcheck(lambda a, b: head.nll_sum(a, y, b), (x, embedding))


def test_an_untied_weight_is_used_and_trained():
    head, embedding = make(tied=False)
    x, y = torch.randn(4, 5, dtype=torch.double), torch.randint(0, 13, (4,))
    head.nll_sum(x, y, embedding).backward()
    assert embedding.grad is None or not embedding.grad.any()
    assert head.weight.grad.abs().sum() > 0


def test_probabilities_sum_to_one_and_agree_with_log_prob():
    head, embedding = make()
    x = torch.randn(3, 2, 5, dtype=torch.double)
    whole = head.log_probs(x, embedding)
    torch.testing.assert_close(whole.exp().sum(-1), torch.ones(3, 2, dtype=torch.double))
    y = torch.randint(0, 13, (3, 2))
    torch.testing.assert_close(
        head.log_prob(x, y, embedding), whole.gather(-1, y[..., None]).squeeze(-1)
    )


def test_a_hopeless_target_has_a_finite_loss_in_single_precision():
    head = Softmax(3, 1, True, bound=0.0)
    embedding = torch.tensor([[200.0], [0.0], [-200.0]], requires_grad=True)
    loss = head.nll_sum(torch.ones(1, 1), torch.tensor([2]), embedding)
    assert loss.item() == pytest.approx(400)


def test_no_tokens_by_vocabulary_tensor_is_made():
    """The largest tensor alive in forward and backward is a block of logits."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in torch.utils._pytree.tree_leaves(out):
                if isinstance(tensor, torch.Tensor):
                    self.elements = max(self.elements, tensor.numel())
            return out

    vocabulary, tokens = 50_000, 500
    head = Softmax(vocabulary, 4, True, bound=0.1)
    embedding = torch.randn(vocabulary, 4, requires_grad=True)
    x = torch.randn(tokens, 4, requires_grad=True)
    y = torch.randint(0, vocabulary, (tokens,))
    with Largest() as largest:
        head.nll_sum(x, y, embedding).backward()
        head.log_prob(x, y, embedding)
    assert largest.elements <= softmax.BLOCK_ELEMENTS < tokens * vocabulary
