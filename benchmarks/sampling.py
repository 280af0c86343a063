"""Writing a token at a time against the matrix products that this takes, and nothing else.

Two layers of 650 units, 10,000 words. The yardstick multiplies random vectors with every matrix of
the model once a token, with no other operation. Bar: 1.5.

    python benchmarks/sampling.py
"""

from functools import partial

import torch
from timing import ratio

from infolm.generation.sampling import SamplingSettings, generate
from infolm.models.recurrent import MogrifierConfig, RecurrentConfig, RecurrentModel

SIZE, VOCABULARY, TOKENS = 650, 10_000, 50
FIVE = MogrifierConfig(rounds=5, rank=64)
MODELS = {
    "LSTM": RecurrentConfig(),
    "Mogrifier LSTM": RecurrentConfig(capped=True, mogrifier=FIVE),
    "Rewired LSTM": RecurrentConfig(cell="rewired"),
    "Mogrifier RLSTM": RecurrentConfig(cell="rewired", mogrifier=FIVE),
}


def products(matrices: list[torch.Tensor], vectors: list[torch.Tensor]) -> None:
    with torch.inference_mode():
        for _ in range(TOKENS):
            for vector, matrix in zip(vectors, matrices, strict=True):
                vector @ matrix


def sample(model: RecurrentModel, batch: int) -> None:
    generator = torch.Generator().manual_seed(0)
    prompt = torch.zeros(1, dtype=torch.int64)
    generate(model, prompt, TOKENS, batch, SamplingSettings(), generator)


def main() -> None:
    torch.manual_seed(0)
    for name, config in MODELS.items():
        sizes = {"embedding": SIZE, "hidden": SIZE, "layers": 2}
        model = RecurrentModel(config.model_copy(update=sizes), VOCABULARY).eval()
        # The embedding is among them: tied, it is the softmax's matrix.
        matrices = [weight.t() for weight in model.parameters() if weight.dim() == 2]
        for batch in (1, 64):
            vectors = [torch.randn(batch, len(matrix)) for matrix in matrices]
            value, a, b = ratio(
                partial(sample, model, batch), partial(products, matrices, vectors), repeats=5
            )
            print(
                f"{name}, batch {batch}: {value:.2f} of its products "
                f"({1000 * a / TOKENS:.2f} ms / {1000 * b / TOKENS:.2f} ms a token; bar 1.5)"
            )


if __name__ == "__main__":
    main()
