# %% [markdown]
# # A module of your own, examined
#
# `torch.nn.TransformerEncoder` keeps its queries, keys and values to itself. To examine it, run its layers by hand and
# show what attention computes; everything else is measured as in any other model.

# %%
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import attnworks
from attnworks.attention.heads import HeadWeights
from attnworks.text.grammar import grammar_passages
from attnworks.text.tokenizers import VocabularyReader
from attnworks.text.tokens import Batch, collate
from attnworks.text.vocabulary import Vocabulary
from attnworks.text.words import words
from attnworks.traces.adapted import AdaptedSubject, LayerReporter

WIDTH, HEADS, LAYERS, SENTENCES = 32, 4, 2, 61
console = Console(width=112, highlight=False)

# %% [markdown]
# ## The module, as it might come from anywhere

# %%
passages = grammar_passages(SENTENCES)
vocabulary = Vocabulary.train("word", [words(passage.source.text) for passage in passages])


class Reader(nn.Module):
    """Word embeddings, and two layers of torch's encoder. Its weights are random."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(vocabulary), WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        return self.encoder(self.embedding(ids), src_key_padding_mask=padding)


torch.manual_seed(0)
model = Reader().eval()

# %% [markdown]
# ## The same layers by hand, with `show` where attention is
#
# `show` may return another Y, such as one with a head switched off, so the layer goes on with what it returns.
# Weights are optional; with them, measures of weights apply too.


# %%
def head_weights(attention: nn.MultiheadAttention) -> HeadWeights:
    """torch stacks W_Q, W_K and W_V as rows of one matrix; here they are head first, and multiply from the right."""
    assert attention.in_proj_weight is not None
    W_Q, W_K, W_V = attention.in_proj_weight.unflatten(0, (3, HEADS, -1)).mT
    b_Q, b_K, b_V = attention.in_proj_bias.unflatten(0, (3, HEADS, -1))
    W_O = attention.out_proj.weight.T.unflatten(0, (HEADS, -1))
    scale = (WIDTH // HEADS) ** -0.5
    return HeadWeights(W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, attention.out_proj.bias, groups=HEADS, scale=scale)


def forward(batch: Batch, show: LayerReporter) -> Tensor:
    ids, real = batch.source.ids, batch.source.real
    X = model.embedding(ids)
    show.stream("encoder", 0, X)
    for depth, layer in enumerate(model.encoder.layers):
        assert isinstance(layer, nn.TransformerEncoderLayer)
        attention = layer.self_attn
        joined = nn.functional.linear(X, attention.in_proj_weight, attention.in_proj_bias)
        Q, K, V = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in joined.chunk(3, -1))
        Y = nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=real[:, None, None])
        Y = show(f"enc.{depth}", Q, K, V, X=X, weights=head_weights(attention), Y=Y)
        assert Y is not None
        X = layer.norm1(X + attention.out_proj(Y.transpose(1, 2).flatten(2)))
        X = layer.norm2(X + layer.linear2(layer.linear1(X).relu()))
        show.stream("encoder", depth + 1, X)
    return X


# %% [markdown]
# Does it compute what the module computes?

# %%
subject = AdaptedSubject(model, forward, name="nn.TransformerEncoder")
reader = VocabularyReader(vocabulary)
batch = Batch(collate([reader.read(passage.source) for passage in passages], reader.pad_id))
real = batch.source.real
with torch.no_grad():
    by_torch = model(batch.source.ids, ~real)
    difference = (subject.run(batch).hidden - by_torch)[real].abs().max().item()
assert difference < 1e-5
console.print(f"By hand and by torch, the outputs differ by at most {difference:.0e}.\n")

# %% [markdown]
# ## The examination

# %%
exam = attnworks.examine(subject, passages, tokenizer=vocabulary)
table = Table(box=None, padding=(0, 2))
for column in ("head", "entropy", "largest weight", "role"):
    table.add_column(column, justify="left" if column in ("head", "role") else "right")
entropy, largest, roles = (exam[name].value for name in ("saturation.entropy", "saturation.max_weight", "roles.label"))
for layer in range(LAYERS):
    for head in range(HEADS):
        row = (f"{float(values[layer][head]):.2f}" for values in (entropy, largest))
        table.add_row(f"enc.{layer} head {head}", *row, str(roles[layer][head]))
console.print(f"[bold]{exam.model['name']}[/] on {exam.corpus['sentences']} sentences\n")
console.print(table)
console.print("\n[bold]What stands out[/]")
for finding in exam.findings:
    console.print(f"  {finding.text}")
