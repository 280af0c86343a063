"""Maximum likelihood on a carried stream, with AWD-LSTM's two penalties on activations."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from torch import Tensor

from infolm.data.stream import Batch
from infolm.models.recurrent import RecurrentModel
from infolm.nn.cells.lstm import State
from infolm.objectives.base import Estimate
from infolm.section import Section


class LikelihoodConfig(Section):
    """Negative log-likelihood per token, plus AR and TAR."""

    kind: Literal["likelihood"] = "likelihood"
    ar: float = Field(0.0, ge=0, description="activation regularisation, alpha")
    tar: float = Field(0.0, ge=0, description="temporal activation regularisation, beta")


def activation_penalty(dropped: Tensor) -> Tensor:
    """AR (section 4.6): the mean square of the dropped output m * h_t of the last layer."""
    return dropped.square().mean()


def temporal_activation_penalty(hidden: Tensor) -> Tensor:
    """TAR (section 4.6): the mean square of h_{t+1} - h_t of the undropped output.

    Zero for a single time step.
    """
    if len(hidden) < 2:
        return hidden.new_zeros(())
    return (hidden[1:] - hidden[:-1]).square().mean()


class Likelihood:
    """loss = -1/N sum ln p(x_{t+1} | x_{<=t}) + alpha AR + beta TAR (Merity et al. 2017).

    Minus the first term bounds the negative entropy rate of the text from below. The state is
    carried from batch to batch without gradient (truncated back-propagation through time) and
    starts at zero where the batch is fresh. With alpha = beta = 0 this is plain cross entropy.
    """

    def __init__(self, config: LikelihoodConfig) -> None:
        self.config = config

    def __call__(
        self, model: RecurrentModel, batch: Batch, carry: Sequence[State] | None
    ) -> Estimate:
        if batch.fresh or carry is None:
            carry = model.initial_state(batch.tokens.shape[1])
        output = model(batch.tokens, list(carry))
        nll = model.nll_sum(output.dropped, batch.targets) / batch.targets.numel()
        loss, terms = nll, {"nll": nll.detach()}
        if self.config.ar:
            ar = activation_penalty(output.dropped)
            loss = loss + self.config.ar * ar
            terms["ar"] = ar.detach()
        if self.config.tar:
            tar = temporal_activation_penalty(output.hidden)
            loss = loss + self.config.tar * tar
            terms["tar"] = tar.detach()
        state = [(h.detach(), c.detach()) for h, c in output.state]
        return Estimate(loss, terms, batch.targets.numel(), state)
