"""The softmax over the vocabulary, or a mixture of them, without a (tokens x vocabulary) tensor.

The logits of a few hundred tokens at a time are computed, used and overwritten. Since the loss is a
weighted sum of the tokens' losses, its gradient is known as soon as the logits are: it is computed
in the forward pass, while they are still in the processor's cache. Peak memory is one block of
logits, whatever the number of tokens; three matrix products are nine tenths of the time.
Where each token's own log-likelihood is asked for, a few blocks may be kept.

A Mixture of Softmaxes and an average over dropout masks are the same sum, p = sum_c alpha_c p_c,
and use the same blocks: a token's components are in one block. Only the latent vectors, which are
narrow, are kept for all tokens and components.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from infolm.nn import rounding
from infolm.nn.dropout import Rates, mask
from infolm.nn.recurrence import native

Tempering = Literal["mixture", "expert"]
"""Where a temperature applies: to the mixture, or to each of its softmaxes."""


class Candidates(NamedTuple):
    """A random part of the vocabulary, with which all targets of a batch are compared.

    words: (k,), in order, no word twice, the targets among them. log_included: ln of the
    probability that a word is among them, (k,). See `Softmax.nll_sum`.
    """

    words: Tensor
    log_included: Tensor


SMALLEST_BLOCK, LARGEST_BLOCK = 2**22, 2**27
"""Limits of the logits held at once: 16 MB and 512 MB in single precision."""
ROUNDED_BLOCK = 15 * 2**20
"""Logits of two bytes held at once on a CPU: 30 MB. Of 32 MB and more the C library gives the pages
back to the system, which clears them again at each step (`keep_freed_memory`)."""
KEPT = 2**27
"""Up to so many bytes of logits are kept for the backward pass of `Softmax.log_likelihood`."""


def block_elements(device: torch.device, itemsize: int) -> int:
    """How many logits of `itemsize` bytes are held at once.

    On a CPU the smallest block: larger ones are no faster, and it is little beside the gradient of
    any weight. In bfloat16 they are: the products of a vocabulary of 10,000 then take 0.85 of the
    time. A GPU needs larger products: 1/32 of its memory, at most a quarter of what is free,
    within the limits. That is a power of two, since blocks change the rounding of the sums: it
    does not follow every change of the free memory, and a run gives the same numbers again.
    """
    if device.type != "cuda":
        return SMALLEST_BLOCK if itemsize > 2 else ROUNDED_BLOCK
    free, total = torch.cuda.mem_get_info(device)
    # Memory that PyTorch has reserved but does not use is free for us, though not for the driver.
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    fitting = max(1, min(total // 32, free // 4) // itemsize)
    return min(max(2 ** (fitting.bit_length() - 1), SMALLEST_BLOCK), LARGEST_BLOCK)


def _block_tokens(weight: Tensor, components: int) -> int:
    """How many tokens go into a block: at least 16 rows of logits, for efficient products."""
    rows = block_elements(weight.device, weight.itemsize) // len(weight)
    return max(1, max(16, rows) // components)


def _exponentiate(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Overwrites logits (n, V) by e = exp(logits - their maximum), targets (n, 1).

    Gives ln softmax(logits)[t] and Z = sum_w e_w, at least 1, both (n, 1). The target's logit is
    read before it is exponentiated, so a probability that underflows has a finite logarithm.
    """
    largest = logits.amax(1, keepdim=True)
    chosen = logits.gather(1, targets) - largest
    z = logits.sub_(largest).exp_().sum(1, keepdim=True)
    return chosen - z.log(), z


def _exponentiate_rounded(logits: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """`_exponentiate` of logits + bias, (n, V) in bfloat16; they become e - Z onehot(t)."""
    if logits.device.type == "cpu" and native.available():
        return native.exponentiate(logits, bias, targets)
    exact = logits + bias
    log_p, z = _exponentiate(exact, targets)
    logits.copy_(exact.scatter_add_(1, targets, -z))
    return log_p, z


def _logits(inputs: Tensor, weight: Tensor, bias: Tensor, memory: Tensor, rounded: bool) -> Tensor:
    """W y + b of n rows, (n, V), in `memory`; rounded: W y in bfloat16, and rows of zeros below."""
    if rounded:
        rows = rounding.rounded(inputs)
        return torch.mm(rows, weight.t(), out=memory[: len(rows)])
    return torch.addmm(bias, inputs, weight.t(), out=memory[: len(inputs)])


def _memory(weight: Tensor, rows: int, rounded: bool) -> Tensor:
    """For the logits of this many rows. All blocks use the same: fresh pages for each would cost
    some 5 % of the time."""
    rows = rounding.filled(rows, weight.device) if rounded else rows
    return weight.new_empty(rows, len(weight))


def _without_target(
    logits: Tensor, bias: Tensor, targets: Tensor, rounded: bool
) -> tuple[Tensor, Tensor]:
    """Overwrites logits by e - Z onehot(t), and gives ln p(t) and Z, as `_exponentiate` does."""
    if rounded:
        return _exponentiate_rounded(logits, bias, targets)
    log_p, z = _exponentiate(logits, targets)
    logits.scatter_add_(1, targets, -z)
    return log_p, z


class _Block(NamedTuple):
    """Some tokens' logits, exponentiated.

    tokens: which. inputs: their latents y, (n, E). exponentials: e - Z onehot(t), (n, V), where
    rounded with rows of zeros below. log_p: ln softmax(W y + b)[t], and z: Z, both (n, 1).
    """

    tokens: slice
    inputs: Tensor
    exponentials: Tensor
    log_p: Tensor
    z: Tensor


class _Given(NamedTuple):
    """y (N, C, E), a (N, C), W (V, E), b (V,), t (N,); rounded: products of matrices are in
    bfloat16, exponentials and sums are not."""

    y: Tensor
    log_weights: Tensor
    weight: Tensor
    bias: Tensor
    targets: Tensor
    rounded: bool

    def narrow(self) -> Tensor:
        """W as it is multiplied."""
        return self.weight.bfloat16() if self.rounded else self.weight

    def tokens(self, narrow: Tensor) -> list[slice]:
        """Those of each block."""
        size = _block_tokens(narrow, self.y.shape[1])
        return [slice(start, start + size) for start in range(0, len(self.y), size)]

    def blocks(
        self, narrow: Tensor, own: Tensor | None = None, kept: bool = False
    ) -> Iterator[_Block]:
        """Every `_Block`. own: added to the logit of each target, (N,), a constant. kept: each has
        its own memory; otherwise it is overwritten by the next."""
        memory, components = None, self.y.shape[1]
        for tokens in self.tokens(narrow):
            inputs = self.y[tokens].flatten(0, 1)
            target = self.targets[tokens].repeat_interleave(components)[:, None]
            if memory is None or kept:
                memory = _memory(narrow, len(inputs), self.rounded)
            whole = _logits(inputs, narrow, self.bias, memory, self.rounded)
            logits = whole[: len(inputs)]
            if own is not None:
                added = own[tokens].repeat_interleave(components)[:, None]
                logits.scatter_add_(1, target, added.to(logits.dtype))
            yield _Block(
                tokens, inputs, whole, *_without_target(logits, self.bias, target, self.rounded)
            )

    def gradients(
        self, blocks: Iterable[_Block], narrow: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The sum of `_NegativeLogLikelihood` and its gradients by y, a, W and b."""
        y, components = self.y, self.y.shape[1]
        grad_y, grad_log_weights = y.new_empty(y.shape), torch.empty_like(self.log_weights)
        grad_weight, grad_bias = torch.zeros_like(self.weight), torch.zeros_like(self.bias)
        total = y.new_zeros(())
        for tokens, inputs, whole, log_p, z in blocks:
            joint = self.log_weights[tokens] + log_p.view(-1, components)
            count = counts[tokens, None]
            total -= (count * joint.logsumexp(1, keepdim=True)).sum()
            posterior = count * joint.softmax(1)
            grad_log_weights[tokens] = -posterior
            # e - Z onehot(t) is Z times the gradient by the logits of one component alone.
            # Posterior and 1/Z scale the narrow factors of the products, never a block of logits.
            scale = posterior.view(-1, 1) / z
            if self.rounded:
                both = whole.t() @ rounding.rounded(torch.cat([scale * inputs, scale], 1))
                grad_weight += both[:, :-1]
                grad_bias += both[:, -1]
            else:
                grad_weight.addmm_(whole.t(), scale * inputs)
                grad_bias.addmv_(whole.t(), scale.squeeze(1))
            grad_y[tokens].flatten(0, 1).copy_((whole @ narrow)[: len(inputs)]).mul_(scale)
        return total, grad_y, grad_log_weights, grad_weight, grad_bias


class _NegativeLogLikelihood(torch.autograd.Function):
    """sum_n -v_n ln p(t_n), p(t_n) = sum_c exp(a_nc) softmax(W y_nc + b)[t_n], and its gradients.

    Shapes: those of `_Given`, and v (N,), constants. With r_nc, the posterior probability of
    component c given t_n, the gradient with respect to a component's logits is
    v_n r_nc (softmax(W y_nc + b) - onehot(t_n)), and with respect to a_nc it is -v_n r_nc. With one
    component, a = 0 and v = 1 this is cross entropy.
    """

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        log_weights: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        counts: Tensor,
        rounded: bool,
        own: Tensor | None,
    ) -> Tensor:
        given = _Given(y, log_weights, weight, bias, targets, rounded)
        narrow = given.narrow()
        total, *gradients = given.gradients(given.blocks(narrow, own), narrow, counts)
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        return *(grad * saved for saved in ctx.saved_tensors), None, None, None, None


class _LogLikelihood(torch.autograd.Function):
    """ln p(t_n) of each token, (N,), as above. The weight of each in the loss is known only when
    all are computed: the backward pass, which is that of the weighted sum, reads the blocks of the
    forward pass where they are `kept`, and otherwise computes them again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        log_weights: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        rounded: bool,
        kept: bool,
    ) -> Tensor:
        given = _Given(y, log_weights, weight, bias, targets, rounded)
        blocks, log_p = [], y.new_empty(len(y))
        for block in given.blocks(given.narrow(), kept=kept):
            own = block.log_p.view(-1, y.shape[1])
            log_p[block.tokens] = (log_weights[block.tokens] + own).logsumexp(1)
            if kept:
                blocks += [block.exponentials, block.log_p, block.z]
        ctx.save_for_backward(y, log_weights, weight, bias, targets, *blocks)
        ctx.rounded = rounded
        return log_p

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        y, log_weights, weight, bias, targets, *kept = ctx.saved_tensors
        given = _Given(y, log_weights, weight, bias, targets, ctx.rounded)
        narrow = given.narrow()
        blocks: Iterable[_Block] = given.blocks(narrow)
        if kept:
            blocks = [
                _Block(tokens, y[tokens].flatten(0, 1), *kept[3 * n : 3 * n + 3])
                for n, tokens in enumerate(given.tokens(narrow))
            ]
        return *given.gradients(blocks, narrow, -grad)[1:], None, None, None


Method = TypeVar("Method", bound=Callable[..., Any])


def _in_full(method: Method) -> Method:
    """In the weights' precision under autocast too, for a sum over a vocabulary is long."""

    @wraps(method)
    def precise(self: nn.Module, x: Tensor, *rest: Any, **named: Any) -> Any:
        with torch.autocast(x.device.type, enabled=False):
            return method(self, x, *rest, **named)

    return cast(Method, precise)


class Softmax(nn.Module):
    """p(w | x), a softmax over the vocabulary or a mixture of K of them.

    One expert: p(w | x) = softmax(W y + b)[w] with y = x, or y = P x where a W that is tied, or
    `projected`, reads vectors of another size than x has.

    K experts, the Mixture of Softmaxes (Yang et al. 2017, "Breaking the Softmax Bottleneck"):

        p(w | x) = sum_k pi_k softmax(W y_k + b)[w],  pi = softmax(R x),  y_k = tanh(P_k x + p_k).

    W is tied to the input embedding unless `tied` is false. A tied weight belongs to the embedding
    and is handed in at each call, so that it stands in `state_dict` once. Shapes: x (..., H) with
    H = `inputs`; P (K E, H), p (K E,), R (K, H) with E = `size`; W (V, E), or (V, H) for one
    expert with a weight of its own that is not `projected`; b (V,). A target of -1 is padding.

    In training y is dropped at the rate `rates.latent`, every expert's and every dropout sample's
    by a mask of its own: one for each column over all steps if `locked`, as in the program of Yang
    et al., or a new one each step, as in that of Melis et al. (2020). pi is computed from the
    undropped x. Without P there is no such dropout.
    """

    def __init__(
        self,
        vocabulary: int,
        inputs: int,
        size: int,
        tied: bool,
        experts: int,
        bound: float,
        projected: bool = False,
        rates: Rates | None = None,
        locked: bool = True,
    ) -> None:
        super().__init__()

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

        mixture = experts > 1
        self.experts = experts
        self.rates, self.locked = rates or Rates(), locked
        self.bias = uniform(vocabulary)
        self.weight = None
        if not tied:
            columns = size if mixture or projected else inputs
            self.weight = nn.Parameter(torch.empty(vocabulary, columns))
            nn.init.uniform_(self.weight, -1 / math.sqrt(columns), 1 / math.sqrt(columns))
        narrowed = (tied or projected) and inputs != size
        self.projection = uniform(experts * size, inputs) if mixture or narrowed else None
        self.projection_bias = uniform(experts * size) if mixture else None
        self.prior = uniform(experts, inputs) if mixture else None

    @torch.no_grad()
    def begin_with(self, counts: Tensor) -> None:
        """b = ln((n + 1) / sum(n + 1)) with n the counts of a text, (V,): while the weights are
        small, the model is the text's unigram distribution and its logits are normalised."""
        self.bias.copy_((counts.double() + 1).log().log_softmax(0))

    def _weight(self, embedding: Tensor) -> Tensor:
        return embedding if self.weight is None else self.weight

    def _kept(
        self, targets: Tensor, samples: int, like: Tensor, sizes: Tensor | None = None
    ) -> Tensor | None:
        """The latents' mask, (N, D, K E), at the N targets that are no padding; None: no dropout.

        targets: (T, B), or (N,), the rows of packed sentences, `sizes[t]` of them at step t.
        """
        p = self.rates.latent
        if not self.training or p == 0 or self.projection is None:
            return None
        counting, width = targets >= 0, len(self.projection)
        if not self.locked:
            return mask((int(counting.sum()), samples, width), p, like, dim=0)
        if sizes is None:
            columns = torch.arange(targets.shape[-1], device=like.device).expand(targets.shape)
        else:
            columns = torch.cat([torch.arange(n, device=like.device) for n in sizes.tolist()])
        every = mask((int(columns.max()) + 1, samples, width), p, like, dim=0)
        return every[columns[counting]]

    def _components(
        self, x: Tensor, weight: Tensor, kept: Tensor | None = None, rounded: bool = False
    ) -> tuple[Tensor, Tensor]:
        """x: (N, D, H) -> latents y (N, D K, E) and ln(pi_k / D) (N, D K); kept: their mask;
        rounded: the product by P is that of matrices in bfloat16."""
        tokens, samples, _ = x.shape
        y = x = x.to(weight.dtype)
        if self.projection is not None:
            with torch.autocast(x.device.type, torch.bfloat16, enabled=rounded):
                y = functional.linear(x, self.projection, self.projection_bias).to(weight.dtype)
        if self.prior is None:
            log_weights = x.new_zeros(tokens, samples)
        else:
            y = y.tanh_()
            log_weights = functional.linear(x, self.prior).log_softmax(-1).flatten(1)
        if kept is not None:
            y = y * kept
        y = y.reshape(tokens, samples * self.experts, weight.shape[1])
        return y, log_weights - math.log(samples)

    def nll_sum(
        self,
        x: Tensor,
        targets: Tensor,
        embedding: Tensor,
        counts: Tensor | None = None,
        sizes: Tensor | None = None,
        among: Candidates | None = None,
    ) -> Tensor:
        """The summed negative log-likelihood in nats, a scalar to differentiate.

        x: (*targets.shape, H), or (*targets.shape, D, H): D dropout samples, whose probabilities
        are averaged, p = 1/D sum_d p_d (Melis 2023, section 4.3). counts: how much each target
        counts, shaped like them, without gradient; none: 1. sizes: of packed sentences, how many
        rows each step has. Under autocast the products by W and P are rounded, the rest is in full.

        among: words S by which Z is estimated, the sampled softmax (Bengio & Senecal 2008). A word
        other than the target t stands for all words that might have been drawn in its place,

            Z_S = exp(s(t)) + sum_{w in S, w != t} exp(s(w)) / P(w in S),

        whose expectation is Z (Horvitz & Thompson 1952). Time and memory are those of |S| words.
        """
        weight, bias = self._weight(embedding), cast(Tensor, self.bias)
        rounded = torch.is_autocast_enabled(x.device.type) and weight.dtype == torch.float
        rows, words = counted(x, targets)
        kept = self._kept(targets, rows.shape[1], weight, sizes)
        with torch.autocast(x.device.type, enabled=False):
            y, log_weights = self._components(rows, weight, kept, rounded)
            counts = y.new_ones(len(words)) if counts is None else counts[targets >= 0].to(y.dtype)
            own = None
            if among is not None:
                log_included = among.log_included.to(weight.dtype)
                words = torch.searchsorted(among.words, words)
                own = log_included[words]
                weight = weight.index_select(0, among.words)
                bias = bias.index_select(0, among.words) - log_included
            given = y, log_weights, weight, bias, words, counts
            return _NegativeLogLikelihood.apply(*given, rounded, own)

    @_in_full
    def scores(
        self, x: Tensor, targets: Tensor, words: Tensor, embedding: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The logits W y + b of each token's target, (N,), and of the same k words, (N, k).

        x: (N, H), targets: (N,), words: (k,); for one expert. The rows of W are gathered together,
        so that its gradient is made once.
        """
        weight = self._weight(embedding)
        y = self._components(x[:, None], weight)[0].squeeze(1)
        gathered = torch.cat([targets, words])
        own, shared = functional.embedding(gathered, weight).split([len(targets), len(words)])
        own_bias, shared_bias = self.bias[gathered].split([len(targets), len(words)])
        return (y * own).sum(1) + own_bias, torch.addmm(shared_bias, y, shared.t())

    def log_likelihood(self, x: Tensor, targets: Tensor, embedding: Tensor) -> Tensor:
        """ln p(target | x) of each token, (N,), to differentiate with weights that depend on them;
        x: (N, H), targets: (N,). Where they do not, `nll_sum` needs less memory, and where there
        are more than `KEPT` bytes of logits it costs three quarters of this. Under autocast it is
        rounded as there."""
        weight = self._weight(embedding)
        rounded = torch.is_autocast_enabled(x.device.type) and weight.dtype == torch.float
        with torch.autocast(x.device.type, enabled=False):
            y, log_weights = self._components(x[:, None], weight, rounded=rounded)
            logits = log_weights.numel() * len(weight) * (2 if rounded else weight.itemsize)
            kept = torch.is_grad_enabled() and logits <= KEPT
            return _LogLikelihood.apply(y, log_weights, weight, self.bias, targets, rounded, kept)

    @torch.no_grad()
    def log_prob(
        self,
        x: Tensor,
        targets: Tensor,
        embedding: Tensor,
        temperature: float = 1.0,
        tempering: Tempering = "mixture",
    ) -> Tensor:
        """ln p(target | x) for each token, shaped like `targets`, 0 for padding; no gradient.

        x is as in `nll_sum`, the temperature as in `log_probs`: that of the mixture. Of each
        expert, p_tau(w) = sum_k pi_k softmax((W y_k + b) / tau)[w], which for one is the same.
        """
        weight = self._weight(embedding)
        rows, words = counted(x, targets)
        size = _block_tokens(weight, rows.shape[1] * self.experts)
        blocks = list(zip(rows.split(size), words[:, None].split(size), strict=True))
        kept = self._kept(targets, rows.shape[1], weight)
        masks = [None] * len(blocks) if kept is None else kept.split(size)
        log_p = torch.cat(
            [
                self._log_prob(*block, weight, temperature, tempering, own)
                for block, own in zip(blocks, masks, strict=True)
            ]
        )
        return log_p.new_zeros(targets.shape).masked_scatter(targets >= 0, log_p)

    def log_probs(self, x: Tensor, embedding: Tensor, temperature: float = 1.0) -> Tensor:
        """The whole distribution ln p_tau(. | x), (..., V), for few positions at a time.

        p_tau(w) = p(w)^(1/tau) / sum_v p(v)^(1/tau) with p the mixture, not its parts: tau = 1 is
        p, tau -> 0 its mode, tau -> infinity uniform. For one expert that is softmax(logits / tau).
        """
        weight = self._weight(embedding)
        rows = x.reshape(-1, 1, x.shape[-1])
        if torch.compiler.is_exporting():  # a graph for any number of rows has one block
            whole = self._log_probs(rows, weight, temperature)
        else:
            blocks = rows.split(_block_tokens(weight, self.experts))
            parts = [self._log_probs(block, weight, temperature) for block in blocks]
            whole = torch.cat(parts) if len(parts) > 1 else parts[0]  # no copy of a single one
        return whole.reshape(*x.shape[:-1], len(weight))

    def _log_prob(
        self,
        x: Tensor,
        target: Tensor,
        weight: Tensor,
        temperature: float,
        tempering: Tempering,
        kept: Tensor | None = None,
    ) -> Tensor:
        """x (n, D, H), t (n, 1) -> ln p_tau(t) (n,)."""
        components = x.shape[1] * self.experts
        if components > 1 and temperature != 1 and tempering == "mixture":
            return self._log_probs(x, weight, temperature, kept).gather(1, target).squeeze(1)
        y, log_weights = self._components(x, weight, kept)
        logits = functional.linear(y.flatten(0, 1) / temperature, weight, self.bias / temperature)
        log_p, _ = _exponentiate(logits, target.repeat_interleave(components, 0))
        return (log_weights + log_p.view(-1, components)).logsumexp(1)

    def _log_probs(
        self, x: Tensor, weight: Tensor, temperature: float, kept: Tensor | None = None
    ) -> Tensor:
        """x (n, D, H) -> ln p_tau (n, V)."""
        y, log_weights = self._components(x, weight, kept)
        log_p = functional.linear(y, weight, self.bias)
        if y.shape[1] > 1:
            log_p = (log_p.log_softmax(2) + log_weights[..., None]).logsumexp(1, keepdim=True)
        log_p = log_p.squeeze(1)
        return (log_p if temperature == 1 else log_p / temperature).log_softmax(1)


def counted(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens that are not padding: x (N, D, H), D = 1 if it had no samples, targets (N,)."""
    samples = x.shape[-2] if x.dim() > targets.dim() + 1 else 1
    x, targets = x.reshape(-1, samples, x.shape[-1]), targets.reshape(-1)
    kept = (targets >= 0).nonzero().squeeze(1)
    if len(kept) == len(targets):
        return x, targets
    return x.index_select(0, kept), targets[kept]
