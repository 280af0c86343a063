"""The encoder-decoder: two networks, one state between them, and a task only memory can solve."""

import math

import pytest
import torch
from torch import optim

from infolm.data.episodes import Episodes, EpisodesConfig
from infolm.data.reverse_copy import ReverseCopyConfig, splits
from infolm.data.stream import PADDING, Batch
from infolm.data.tokens import Tokenizer
from infolm.errors import InfolmError
from infolm.evaluation.episodic import episodic_log_probs
from infolm.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from infolm.models.recurrent import RecurrentConfig, RecurrentModel
from infolm.objectives.likelihood import Likelihood, LikelihoodConfig

SEP = 2
CELLS = ["lstm", "gru", "elman", "rewired", "multiplicative"]


def small(**settings) -> EncoderDecoder:
    torch.manual_seed(0)
    config = EncoderDecoderConfig(embedding=5, hidden=7, layers=2, **settings)
    return EncoderDecoder(config, 11, SEP)


def sentences(before=4, after=3, columns=3):
    tokens = torch.randint(3, 11, (before + 1 + after, columns))
    tokens[before] = SEP
    return tokens


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("connections", ["stacked", "residual"])
def test_the_decoder_goes_on_from_the_encoders_last_state(cell, connections):
    """The same by hand: one recurrent model reads, another one writes."""
    model = small(cell=cell, connections=connections, mogrifier={"rounds": 2})
    tokens = sentences()
    output = model(tokens, model.initial_state(3))
    config = RecurrentConfig(**model.config.model_dump(exclude={"kind", "separator"}))
    reader, writer = RecurrentModel(config, 11), RecurrentModel(config, 11)
    weights = model.state_dict()
    own = {name: w for name, w in weights.items() if not name.startswith("encoder")}
    writer.load_state_dict(own)
    reader.load_state_dict(
        own
        | {"embedding": weights["encoder_embedding"]}
        | {
            name.replace("encoder.", "stack."): w
            for name, w in weights.items()
            if name.startswith("encoder.")
        }
    )
    read = reader(tokens[:4], reader.initial_state(3))
    written = writer(tokens[4:], read.state)
    assert torch.equal(output.hidden[4:], written.hidden)
    assert torch.equal(output.dropped[4:], written.dropped)
    assert not output.hidden[:4].any()
    for layer, first, second in zip(output.layers, read.layers, written.layers, strict=True):
        assert torch.equal(layer, torch.cat([first, second]))
    for after, expected in zip(output.state, written.state, strict=True):
        assert all(map(torch.equal, after, expected))
    assert torch.allclose(
        model.log_prob(output.hidden[4:], tokens[4:]), writer.log_prob(written.hidden, tokens[4:])
    )


def test_encoder_and_decoder_share_no_weights():
    model = small()
    encoder = [p for name, p in model.named_parameters() if name.startswith("encoder")]
    decoder = [p for name, p in model.named_parameters() if not name.startswith("encoder")]
    assert not {p.data_ptr() for p in encoder} & {p.data_ptr() for p in decoder}
    single = RecurrentModel(RecurrentConfig(embedding=5, hidden=7, layers=2), 11)
    shared = sum(p.numel() for p in single.softmax.parameters())
    assert sum(p.numel() for p in decoder) == sum(p.numel() for p in single.parameters())
    assert sum(p.numel() for p in encoder) == sum(p.numel() for p in decoder) - shared


def test_gradients_reach_the_encoder_through_its_last_state_alone(monkeypatch):
    model = small()
    tokens = sentences()
    encoder = [p for name, p in model.named_parameters() if name.startswith("encoder")]

    def gradients(targets):
        model.zero_grad()
        model.nll_sum(model(tokens, model.initial_state(3)).dropped, targets).backward()
        return [p.grad for p in encoder]

    assert all(g.any() for g in gradients(torch.roll(tokens, -1, 0)))
    before = torch.roll(tokens, -1, 0)
    before[4:] = PADDING
    assert not any(g.any() for g in gradients(before))  # its own steps teach it nothing

    whole = RecurrentModel.forward

    def forward(self, tokens, state):  # the decoder, cut off from where its state comes from
        return whole(self, tokens, [tuple(t.detach() for t in layer) for layer in state])

    monkeypatch.setattr(RecurrentModel, "forward", forward)
    assert all(g is None or not g.any() for g in gradients(torch.roll(tokens, -1, 0)))


def test_dropout_is_the_encoders_too():
    model = small(weight_drop=0.3, dropout={"input": 0.3, "hidden": 0.3, "state": 0.3})
    tokens = sentences(after=0)

    def read():
        return model(tokens, model.initial_state(3)).layers[0][:4]

    assert not torch.equal(read(), read())
    with model.dropout_scaled(0):
        assert torch.equal(read(), read())
    model.eval()
    assert torch.equal(read(), read())


@pytest.mark.parametrize("change", ["none", "two", "other place", "first"])
def test_what_is_no_batch_of_whole_sentences_is_refused(change):
    model, tokens = small(), sentences()
    if change == "none":
        tokens[4] = 5
    elif change == "two":
        tokens[6] = SEP
    elif change == "other place":
        tokens[3:5, 0] = torch.tensor([SEP, 5])
    else:
        tokens = tokens[4:]
    with pytest.raises(InfolmError, match="an encoder-decoder reads whole sentences"):
        model(tokens, model.initial_state(3))


def test_a_budget_counts_both():
    config = EncoderDecoderConfig(
        parameters="5k", embedding_ratio=0.5, layers=1, connections="residual"
    )
    model = EncoderDecoder(config, 11, SEP)
    assert 4500 < sum(p.numel() for p in model.parameters()) <= 5000


def test_the_separator_is_a_token_of_the_vocabulary():
    tokenizer = Tokenizer.from_words(["<eos>", "<unk>", "a", "<sep>"])
    config = EncoderDecoderConfig(embedding=5, hidden=7)
    model = config.build(4, tokenizer)
    assert isinstance(model, EncoderDecoder)
    assert model.separator == 3
    with pytest.raises(InfolmError, match=r"model\.separator: '#' is not one token"):
        config.model_copy(update={"separator": "#"}).build(4, tokenizer)
    assert type(RecurrentConfig(embedding=5, hidden=7).build(4, tokenizer)) is RecurrentModel


def test_it_learns_to_copy_where_a_decoder_alone_cannot():
    """After the separator a perfect model's loss is 0; without the encoder's state nothing is known
    of the words, and it stays at n / (n + 1) ln types."""
    length, types = 3, 6
    task = ReverseCopyConfig(length=length, types=types, examples=5000, held_out=300)
    texts = {split: "".join(parts) for split, parts in splits(task).items()}
    tokenizer = Tokenizer.from_words(["<eos>", "<unk>", "<sep>", *map(str, range(types))])
    torch.manual_seed(1)
    config = EncoderDecoderConfig(embedding=16, hidden=48, layers=1, connections="residual")
    model = config.build(len(tokenizer), tokenizer)
    feed = Episodes(
        tokenizer.encode(texts["train"]), EpisodesConfig(batch=32, after="<sep>"), 1, 0, SEP
    )
    objective = Likelihood(LikelihoodConfig())
    optimiser = optim.Adam(model.parameters(), lr=0.01)
    for _ in range(250):
        tokens, targets, fresh, scale, _ = feed.next()
        batch = Batch(torch.from_numpy(tokens), torch.from_numpy(targets), fresh, scale)
        objective(model, batch, None).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    test = tokenizer.encode(texts["test"])
    log_p = episodic_log_probs(model, test, tokenizer.eos, SEP)
    assert len(log_p) == 300 * (length + 1)
    assert -log_p.mean() < 0.05
    with torch.no_grad():  # the decoder without what the encoder says
        for name, parameter in model.named_parameters():
            if name.startswith("encoder"):
                parameter.zero_()
    blind = -episodic_log_probs(model, test, tokenizer.eos, SEP).mean()
    assert blind > length / (length + 1) * math.log(types)
