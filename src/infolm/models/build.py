"""From a recipe's section to a model."""

from infolm.data.episodes import token_number
from infolm.data.tokens import Tokenizer
from infolm.models.encoder import Encoder, EncoderConfig
from infolm.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from infolm.models.recurrent import RecurrentConfig, RecurrentModel
from infolm.models.sentence import SentenceConfig, SentenceModel
from infolm.models.symbol import SymbolConfig, SymbolModel

LatentModel = SentenceModel | SymbolModel
"""A model with a latent code."""
AnyModel = RecurrentModel | LatentModel | Encoder


def build_model(
    config: RecurrentConfig | SentenceConfig | SymbolConfig | EncoderConfig,
    vocabulary: int,
    tokenizer: Tokenizer | None = None,
) -> AnyModel:
    """The model that `config` describes; without a tokenizer only to count its weights."""
    if isinstance(config, SentenceConfig):
        return SentenceModel(config, vocabulary)
    if isinstance(config, SymbolConfig):
        return SymbolModel(config, vocabulary)
    if isinstance(config, EncoderConfig):
        pieces = tokenizer is not None and tokenizer.kind == "wordpiece"
        return Encoder(config, vocabulary, tokenizer.special.pad if tokenizer and pieces else 0)
    if not isinstance(config, EncoderDecoderConfig):
        return RecurrentModel(config, vocabulary)
    separator = token_number(config.separator, tokenizer, "model.separator") if tokenizer else 0
    return EncoderDecoder(config, vocabulary, separator)
