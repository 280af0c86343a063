"""The Transformer: equal to Llama, blind to the future, the same however a text is cut."""

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from infolm.errors import InfolmError
from infolm.models.transformer import (
    Transformer,
    TransformerConfig,
    attention,
    rotate,
    visible,
)

VOCABULARY = 23


def model(**settings):
    torch.manual_seed(1)
    config = TransformerConfig(**{"hidden": 16, "layers": 2, "heads": 2, "context": 7, **settings})
    made = config.build(VOCABULARY).double().eval()
    for parameter in made.parameters():  # nothing so small that a mistake would hide
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.5)
    return made


def text(steps, batch=3):
    torch.manual_seed(2)
    return torch.randint(VOCABULARY, (steps, batch))


def read(model, tokens, state=None):
    with torch.no_grad():
        return model(tokens, model.initial_state(tokens.shape[1]) if state is None else state)


def test_equals_llama_on_the_same_weights():
    transformers = pytest.importorskip("transformers")
    ours = model(context=64)
    config = ours.config
    inner = 8 * config.hidden // 3
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=config.hidden,
            intermediate_size=inner,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            attention_bias=False,
            mlp_bias=False,
            attn_implementation="eager",
        )
    ).double()
    weights = {"model.embed_tokens.weight": ours.embedding, "model.norm.weight": ours.norm.weight}
    for i, block in enumerate(ours.blocks):
        own = f"model.layers.{i}."
        queries, keys, values = block.queries_keys_values.weight.chunk(3)
        gate, up = block.gate_and_inner.weight.chunk(2)
        weights |= {
            f"{own}self_attn.q_proj.weight": queries,
            f"{own}self_attn.k_proj.weight": keys,
            f"{own}self_attn.v_proj.weight": values,
            f"{own}self_attn.o_proj.weight": block.attention_output.weight,
            f"{own}mlp.gate_proj.weight": gate,
            f"{own}mlp.up_proj.weight": up,
            f"{own}mlp.down_proj.weight": block.inner_output.weight,
            f"{own}input_layernorm.weight": block.attention_norm.weight,
            f"{own}post_attention_layernorm.weight": block.inner_norm.weight,
        }
    weights["lm_head.weight"] = ours.embedding
    llama.load_state_dict(weights)
    tokens = text(20)
    torch.nn.init.zeros_(ours.softmax.bias)  # Llama's softmax has none
    with torch.no_grad():
        theirs = llama(tokens.T).logits.log_softmax(-1).transpose(0, 1)
    found = ours.log_probs(read(ours, tokens).hidden)
    torch.testing.assert_close(found, theirs, atol=1e-6, rtol=1e-6)  # its angles are float32


@pytest.mark.parametrize("cuts", [[1] * 20, [5, 5, 5, 5], [13, 7], [3, 16, 1]])
@pytest.mark.parametrize("context", [1, 2, 7, 64])
def test_cuts_change_nothing(cuts, context):
    made, tokens = model(context=context), text(20)
    whole, state, parts = read(made, tokens), made.initial_state(3), []
    for cut in tokens.split(cuts):
        output = read(made, cut, state)
        state = output.state
        parts.append(output.hidden)
    torch.testing.assert_close(torch.cat(parts), whole.hidden)
    for ours, theirs in zip(state[0], whole.state[0], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_future_token_changes_nothing_and_a_past_one_does():
    made, tokens = model(), text(12)
    other = tokens.clone()
    other[5] = (other[5] + 1) % VOCABULARY
    before, after = read(made, tokens).hidden, read(made, other).hidden
    assert torch.equal(before[:5], after[:5])
    assert not torch.isclose(before[5:], after[5:]).all(-1).any()


def test_a_token_sees_its_context_through_each_layer_and_no_further():
    made, tokens = model(context=3, layers=2), text(12)
    other = tokens.clone()
    other[0] = (other[0] + 1) % VOCABULARY
    same = (read(made, tokens).hidden == read(made, other).hidden).all(-1).all(-1)
    # Two layers, each of which looks 2 positions back.
    assert same.tolist() == [False] * 5 + [True] * 7


def test_what_is_visible_by_hand():
    # Two positions of memory, of which the second column has read one; three queries, context 3.
    seen = visible(3, 2, 3, torch.tensor([2, 1]), torch.device("cpu"))[:, 0].int().tolist()
    assert seen[0] == [[1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert seen[1] == [[0, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]


@pytest.mark.parametrize("columns_read", [None, [0, 4, 2]])
def test_attention_in_bfloat16_is_that_of_single_precision_rounded(columns_read):
    """Values and derivatives, beside PyTorch's function of the same rounded numbers."""
    torch.manual_seed(0)
    read = None if columns_read is None else torch.tensor(columns_read)
    seen = visible(5, 4, 6, read, torch.device("cpu"))
    parts = [torch.randn(3, 2, n, 8).bfloat16().requires_grad_() for n in (5, 9, 9)]
    exact = [part.detach().double().requires_grad_() for part in parts]
    found = attention(*parts, seen, 0.0)
    truth = torch.nn.functional.scaled_dot_product_attention(*exact, attn_mask=seen)
    derivative = torch.randn(truth.shape).bfloat16()
    found.backward(derivative)
    truth.backward(derivative.double())
    assert found.dtype == torch.bfloat16
    near = {"atol": 0.03, "rtol": 0.02}  # 2^-8 of numbers up to 3, rounded some times
    torch.testing.assert_close(found.double(), truth, **near)
    for rounded, part in zip(parts, exact, strict=True):
        torch.testing.assert_close(rounded.grad.double(), part.grad, **near)


def test_attention_in_bfloat16_drops_weights_and_keeps_their_mean():
    torch.manual_seed(0)
    seen = visible(400, 0, 400, None, torch.device("cpu"))
    queries, keys = (torch.randn(1, 1, 400, 4).bfloat16() for _ in range(2))
    ones = torch.ones(1, 1, 400, 1).bfloat16()
    assert torch.allclose(
        attention(queries, keys, ones, seen, 0.0).float(), torch.ones(()), atol=0.02
    )
    found = attention(queries, keys, ones, seen, 0.5).float()[0, 0, 40:, 0]
    assert found.std() > 0.05
    assert abs(found.mean() - 1) < 4 * found.std() / len(found) ** 0.5


def test_only_distances_matter_to_rotated_products():
    torch.manual_seed(3)
    query, key = torch.randn(2, 1, 8, dtype=torch.float64)

    def product(a, b):
        return (rotate(query, torch.tensor([a])) * rotate(key, torch.tensor([b]))).sum()

    torch.testing.assert_close(product(3, 1), product(103, 101))
    torch.testing.assert_close(product(5, 5), (query * key).sum())
    assert not torch.isclose(product(3, 1), product(4, 1))


def test_packed_sentences_are_read_as_each_by_itself():
    made = model(context=4)
    lengths = [3, 9, 1, 9, 6]
    sentences = [text(n, 1)[:, 0] for n in lengths]
    packed = pack_sequence(sentences, enforce_sorted=False)
    starts = [text(n, 1) for n in (2, 0, 5, 1, 3)]  # what each column has read before
    states = [read(made, start).state for start in starts]
    output = read_packed(made, packed, made.joined(states))
    rows, _ = torch.nn.utils.rnn.pad_packed_sequence(packed._replace(data=output.hidden))
    continued = text(4, len(lengths))
    later = read(made, continued, output.state).hidden
    for b, (sentence, state) in enumerate(zip(sentences, states, strict=True)):
        alone = read(made, sentence[:, None], state)
        torch.testing.assert_close(rows[: len(sentence), b], alone.hidden[:, 0])
        after = read(made, continued[:, b : b + 1], alone.state).hidden
        torch.testing.assert_close(later[:, b], after[:, 0])


def read_packed(made, packed, state):
    with torch.no_grad():
        return made(packed, state)


def test_a_budget_is_met_and_nearly_spent():
    config = TransformerConfig(parameters="40k", heads=2, layers=2)
    size = sum(p.numel() for p in config.build(VOCABULARY).parameters())
    larger = config.build(VOCABULARY).config.hidden + 4
    above = TransformerConfig(hidden=larger, heads=2, layers=2).build(VOCABULARY)
    assert size <= 40_000 < sum(p.numel() for p in above.parameters())


def test_a_budget_below_the_smallest_model_is_refused():
    with pytest.raises(InfolmError, match=r"model\.parameters is 50, but the smallest such model"):
        TransformerConfig(parameters=50).build(VOCABULARY)


def test_heads_divide_the_columns():
    with pytest.raises(ValueError, match="4 heads need a multiple of 8"):
        TransformerConfig(hidden=20, heads=4)


def test_dropout_acts_in_training_alone():
    made = model(dropout={"hidden": 0.3, "state": 0.3, "input": 0.3, "output": 0.3})
    tokens = text(6)
    assert torch.equal(read(made, tokens).dropped, read(made, tokens).hidden)
    made.train()
    assert not torch.equal(read(made, tokens).hidden, read(made, tokens).hidden)
    with made.dropout_scaled(0.0):
        torch.testing.assert_close(read(made, tokens).hidden, read(made.eval(), tokens).hidden)


def test_it_is_the_class_of_its_kind():
    assert isinstance(model(), Transformer)
