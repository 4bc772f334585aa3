"""What a new run begins with: the config of its model, and its vocabularies."""

from __future__ import annotations

from dataclasses import replace

from attnworks.core.checks import integer
from attnworks.core.errors import UsageError
from attnworks.models import RecurrentConfig, TransformerConfig, preset
from attnworks.text.corpora import Corpus
from attnworks.text.vocabulary import Vocabulary
from attnworks.training.recipe import Recipe

FirstConfig = TransformerConfig | RecurrentConfig


def first_config(recipe: Recipe, config: FirstConfig | None = None) -> FirstConfig:
    """The config of a new run: the given one or the preset's, with dropout, mechanism and sharing of the recipe."""
    config = replace(preset(recipe.preset) if config is None else config, dropout=recipe.dropout)
    if isinstance(config, RecurrentConfig):
        return config if recipe.mechanism is None else replace(config, mechanism=recipe.mechanism)
    _check_encoder_decoder(config)
    if recipe.joint_vocabulary is True:
        config = replace(config, tie="all", target_vocabulary=None)
    elif recipe.joint_vocabulary is False and config.tie == "all":
        config = replace(config, tie="target")
    return config if recipe.mechanism is None else config.with_mechanism(recipe.mechanism)


def config_before_presets_changed(recipe: Recipe) -> FirstConfig:
    """The config of a run that stopped before its first checkpoint, whose folder does not say it.

    Such folders are older than norms before each part, and other weights than by Glorot, in the presets.
    """
    config = preset(recipe.preset)
    if isinstance(config, TransformerConfig):
        config = replace(config, norm="post", initialisation="glorot")
    return first_config(recipe, config)


def check_goals(recipe: Recipe, config: FirstConfig) -> None:
    """Refuse goals of growth that the model cannot reach, before anything is written."""
    if recipe.grow_until is None:
        return
    if not isinstance(config, TransformerConfig):
        asked = f"train {recipe.preset} until {recipe.grow_until}"
        raise UsageError(asked, "a transformer, whose heads can grow", "a recurrent model", "choose another preset")
    for name, goal in recipe.goals().items():
        low = getattr(config.attention.geometry, name) + 1
        integer(f"grow_until with {name}", goal, low, remedy=f"choose a larger {name}")


def make_vocabularies(recipe: Recipe, corpus: Corpus, config: FirstConfig) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of source and target: one and the same if they are joint, or the embeddings are shared.

    Targets are spelled with joiners, so that what the model writes is text as people write it.
    """
    sources = [pair.words[0] for pair in corpus.train]
    targets = [pair.target.spelled for pair in corpus.train if pair.target is not None]
    size = recipe.vocabulary_size
    if recipe.joint_vocabulary or (isinstance(config, TransformerConfig) and config.tie == "all"):
        joint = Vocabulary.train(recipe.vocabulary, [*sources, *targets], size)
        return joint, joint
    return Vocabulary.train(recipe.vocabulary, sources, size), Vocabulary.train(recipe.vocabulary, targets, size)


def _check_encoder_decoder(config: TransformerConfig) -> None:
    if not config.encoder_layers or not config.decoder_layers:
        got = f"encoder_layers={config.encoder_layers} and decoder_layers={config.decoder_layers}"
        raise UsageError("train on pairs", "an encoder and a decoder", got, "set both to 1 or more")
