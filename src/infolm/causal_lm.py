"""Use a trained language model with `transformers`.

    import infolm  # registers the type "infolm" with transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # After `infolm export RUN --to transformers --out folder`:
    model = AutoModelForCausalLM.from_pretrained("folder")
    tokenizer = AutoTokenizer.from_pretrained("folder")
    model.generate(**tokenizer("the", return_tensors="pt"), do_sample=True)

There is one class for all kinds of language models: its configuration holds the recipe's section
`model`, and that section builds the model. The opaque state is passed as `cache_params`, with a
column for each row of the batch.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.utils import ModelOutput

from infolm.causal_lm_config import InfolmConfig
from infolm.errors import InfolmError
from infolm.models.base import MODELS
from infolm.models.language import LanguageModel, State

IGNORED = -100
"""The label of a token whose loss is ignored, in `transformers`."""


@dataclass
class InfolmOutput(ModelOutput):
    """loss: nats per label. logits: ln p(next token), (B, T, V). cache_params: the new state."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    cache_params: State = None
    hidden_states: tuple[Tensor, ...] | None = None


class InfolmForCausalLM(PreTrainedModel, GenerationMixin):
    """p(w_{t+1} | w_1 ... w_t); tokens are batch-major here, (B, T), as `transformers` has them.

    No token is added before the first one: prepend the tokenizer's `bos_token`, our `<eos>`, to
    read a text as the start of a line, as `infolm score` does.
    """

    config_class = InfolmConfig
    base_model_prefix = "language_model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = False
    _is_stateful = True
    _no_split_modules: ClassVar[list[str]] = []
    # A tied softmax reads the embedding itself, one parameter, so that none needs to be tied.
    _tied_weights_keys: ClassVar[dict[str, str]] = {}

    def __init__(self, config: InfolmConfig) -> None:
        super().__init__(config)
        section = MODELS[config.architecture["kind"]].model_validate(config.architecture)
        model = section.build(config.vocab_size)
        if not isinstance(model, LanguageModel):
            raise InfolmError(
                f"a model of kind {section.kind} is not a language model: choose a run of a "
                "language model"
            )
        self.language_model = model
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Does nothing: the section that builds the model initialises it."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """False: `transformers` would create its own key-value cache for attention."""
        return False

    def get_input_embeddings(self) -> nn.Embedding:
        """The word vectors as a layer; its weight is the model's own parameter."""
        table = self.language_model.embedding
        words, columns = table.shape
        layer = nn.Embedding(words, columns, device="meta")
        layer.weight = table
        return layer

    def set_input_embeddings(self, value: nn.Module) -> None:
        raise InfolmError(
            "the vocabulary of this model is fixed, since the softmax has parameters for each "
            "word: train a new model with another vocabulary"
        )

    def get_output_embeddings(self) -> None:
        """None: the layer before the softmax may be a projection or a mixture."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache_params: State = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **_: Any,
    ) -> "InfolmOutput | tuple[Any, ...]":
        """input_ids: (B, T). attention_mask: (B, T or more), 0 where there is padding, on either
        side; its last T columns are read. cache_params: the state after the tokens read so far.
        labels: (B, T), the tokens themselves; each but the first is predicted, unless it is
        IGNORED.
        logits_to_keep: the number of last positions to return; 0 returns all.
        """
        batch, steps = input_ids.shape
        model = self.language_model
        state = model.initial_state(batch) if cache_params is None else cache_params
        there = _read(attention_mask, steps)
        if there is None:
            output = model(input_ids.T, state)
            hidden, dropped, layers = output.hidden, output.dropped, output.layers
        else:
            packed = _packed(input_ids, there)
            output = model(packed, state)
            hidden, dropped = (_spread(x, packed, there) for x in (output.hidden, output.dropped))
            layers = [_spread(x, packed, there) for x in output.layers]
        loss = None
        if labels is not None:
            targets = labels.T[1:]
            counted = targets != IGNORED
            total = model.nll_sum(dropped[:-1], targets.where(counted, -1))
            loss = total / (counted.sum() if num_items_in_batch is None else num_items_in_batch)
        kept = dropped[-logits_to_keep:] if logits_to_keep else dropped
        result = InfolmOutput(
            loss=loss,
            logits=model.log_probs(kept).transpose(0, 1),
            cache_params=output.state if use_cache is not False else None,
            hidden_states=(
                tuple(x.transpose(0, 1) for x in (*layers, hidden))
                if output_hidden_states
                else None
            ),
        )
        return result.to_tuple() if return_dict is False else result

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        cache_params: State = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = True,
        **_: Any,
    ) -> dict[str, Any]:
        """With a state, read only the newest token."""
        if cache_params is not None:
            input_ids, attention_mask = input_ids[:, -1:], None
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "cache_params": cache_params,
            "use_cache": use_cache,
            "logits_to_keep": 1,
        }

    def _reorder_cache(self, cache_params: State, beam_idx: Tensor) -> State:
        """The states of the surviving beams."""
        return self.language_model.selected(cache_params, beam_idx)


def _read(attention_mask: Tensor | None, steps: int) -> Tensor | None:
    """True where a token is not padding, (B, T); None if no token is padding."""
    if attention_mask is None:
        return None
    there = attention_mask[:, -steps:].bool()
    if bool(there.all()):
        return None
    if not bool(there.any(1).all()):
        raise InfolmError("a row of the batch has no tokens: leave out empty texts")
    return there


def _packed(input_ids: Tensor, there: Tensor) -> PackedSequence:
    rows = [row[kept] for row, kept in zip(input_ids, there, strict=True)]
    return pack_sequence(rows, enforce_sorted=False)


def _spread(x: Tensor, packed: PackedSequence, there: Tensor) -> Tensor:
    """Rows of packed sentences, (N, H), at the places of their tokens, (T, B, H); 0 elsewhere."""
    padded, lengths = pad_packed_sequence(packed._replace(data=x), batch_first=True)
    spread = x.new_zeros(*there.shape, x.shape[-1])
    short = torch.arange(padded.shape[1], device=x.device) < lengths[:, None].to(x.device)
    spread = spread.masked_scatter(there[..., None], padded[short])
    return spread.transpose(0, 1)


AutoModelForCausalLM.register(InfolmConfig, InfolmForCausalLM, exist_ok=True)
