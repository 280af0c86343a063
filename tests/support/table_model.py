"""A language model whose probabilities are written in a table, so that all is known of it."""

import torch
from torch import nn

from infolm.models.language import LanguageModel, Output
from infolm.nn.dropout import Rates
from infolm.nn.softmax import Softmax

NEVER = -1e5  # ln 0 for a softmax, which has no -inf


class Table(LanguageModel):
    """p(w | the last two tokens), a table (V, V, V); before any token both are token `eos`."""

    def __init__(self, table, eos):
        super().__init__()
        size = len(table)
        self.vocabulary, self.eos, self.rates = size, eos, Rates()
        logs = torch.as_tensor(table, dtype=torch.float64).log().clamp(min=NEVER)
        self.logs = nn.Parameter(logs)
        self.embedding = nn.Parameter(torch.zeros(size, 1, dtype=torch.float64))
        self.softmax = Softmax(size, size, size, False, 1, 0.0).double()
        with torch.no_grad():
            self.softmax.weight.copy_(torch.eye(size))
            self.softmax.bias.zero_()
        self.eval()

    @classmethod
    def of_chain(cls, transition, eos):
        """Of a Markov chain, (V, V): the token before the last changes nothing."""
        size = len(transition)
        return cls(torch.as_tensor(transition).expand(size, size, size), eos)

    @property
    def widths(self):
        return [self.vocabulary]

    def initial_state(self, batch):
        return torch.full((batch, 2), self.eos)

    def repeated(self, state, num):
        return state.repeat_interleave(num, 0)

    def selected(self, state, columns):
        return state[columns]

    def joined(self, states):
        return torch.cat(list(states))

    def kept(self, state, columns):
        return torch.where(columns[:, None], state, self.eos)

    def forward(self, tokens, state):
        outputs = []
        for words in tokens:
            state = torch.stack([state[:, 1], words], 1)
            outputs.append(self.logs[state[:, 0], state[:, 1]])
        hidden = torch.stack(outputs)
        return Output(hidden, hidden, [hidden], state)
