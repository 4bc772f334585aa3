"""The measure `probes`: what heads do on repeated random tokens and on a needle, and how well the model copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attnworks.core.errors import UsageError
from attnworks.exam.measure import MEASURES, Measure, ReadingSpec
from attnworks.exam.probes import run_probes
from attnworks.exam.probes.run import SPECS
from attnworks.exam.probes.texts import NEEDLES, SEQUENCES
from attnworks.exam.reading import Reading
from attnworks.traces.subject import Subject


@MEASURES.register("probes")
class ProbeTexts(Measure):
    """Attention on texts that are made for a question (`exam.probes.texts`). On random tokens x x, with i in the copy
    and n tokens in x,

    offset       mean of P[i, i + o] over all tokens i, for o up to 16 tokens away
    duplicate    mean of P[i, i - n]
    induction    mean of P[i, i - n + 1]
    retrieval    mean of P[i, j + 1], where token i of the copy of a needle was copied from token j of a text
    _chance      1 / visible, averaged over the same queries
    first_loss, copy_loss, needle_loss
                 mean -log p of the tokens of x, of its copy, and of the copy of the needle, each without the first
    copy_loss_without
                 copy_loss with the outputs of all induction heads set to zero

    Each is a mean over sequences. A head has a role from 0.3 of its attention on (`exam.measures.labels`).
    Source: Elhage et al. 2021 (previous token), Olsson et al. 2022 (induction, duplicate token), Wu et al. 2024
    (retrieval heads).
    Departs: attention to the needle, where the source counts largest weights; random tokens as needle.
    """

    name = "probes"
    description = "what each head attends to on repeated random tokens: previous token, induction, retrieval"
    probe_sequences = 2 * SEQUENCES + NEEDLES
    cost = f"2 to 3 forward passes over {SEQUENCES + NEEDLES} sequences of about 120 tokens; default for causal models"

    def declares(self) -> tuple[ReadingSpec, ...]:
        return tuple(SPECS.values())

    def probe(self, subject: Subject, advance: Callable[[int], None]) -> tuple[Sequence[Reading], Sequence[str]]:
        left = self.probe_sequences

        def count(sequences: int) -> None:
            nonlocal left
            left -= sequences
            advance(sequences)

        found: Sequence[Reading] = ()
        try:
            found = list(run_probes(subject, seed=self.context.seed, advance=count).readings.values())
        except UsageError as error:
            self.refusal = f"probes need {error.expected}, and this model has {error.got}"
        advance(left)
        return found, ()
