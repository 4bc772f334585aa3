"""CoNLL-U: words of the text and their heads, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core.errors import AttnworksError
from attnworks.text.conllu import attach, read_parses
from attnworks.text.passages import Passage, Text


def row(identity: int | str, form: str, head: int | str = "_") -> str:
    return "\t".join([str(identity), form, "_", "_", "_", "_", str(head), "_", "_", "_"])


def sentence(*heads: int | str) -> str:
    return "\n".join(row(number, f"w{number}", head) for number, head in enumerate(heads, 1)) + "\n\n"


def file(folder: Path, content: str | bytes) -> Path:
    path = folder / "text.conllu"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def sides(folder: Path, content: str) -> list[Text]:
    return [passage.source for passage in read_parses(file(folder, content))]


DELLA = "\n".join(
    [
        "# sent_id = 1",
        "# text = Il gatto della vicina dorme.",
        "# text_en = the cat of the neighbour sleeps.",
        row(1, "Il", 2),
        row(2, "gatto", 6),
        row("3-4", "della"),
        row(3, "di", 5),
        row(4, "la", 5),
        row(5, "vicina", 2),
        row(6, "dorme", 0),
        row("6.1", "e"),
        row("6.2", "sogna"),
        row(7, ".", 6),
        row("7.1", "e"),
    ]
)


def test_a_sentence_with_a_multiword_token_and_empty_nodes(tmp_path: Path) -> None:
    (side,) = sides(tmp_path, f"\ufeff{DELLA}\n".replace("\n", "\r\n"))
    assert side == Text(
        "Il gatto della vicina dorme.",
        ("Il", "gatto", "della", "vicina", "dorme", "."),
        (1, 4, 3, 1, -1, 4),
    )
    assert side.line == 4


def test_words_that_hang_on_a_multiword_token(tmp_path: Path) -> None:
    rows = [row("1-3", "dammelo"), row(1, "da", 0), row(2, "me", 1), row(3, "lo", 1), row(4, "subito", 1)]
    (side,) = sides(tmp_path, "\n".join(rows))
    assert side == Text("dammelo subito", ("dammelo", "subito"), (-1, 0))


def test_the_topmost_word_gives_the_head(tmp_path: Path) -> None:
    rows = [row("1-2", "ab"), row(1, "a", 3), row(2, "b", 0), row(3, "c", 2)]
    assert sides(tmp_path, "\n".join(rows))[0].governors == (-1, 0)


def test_sentences_without_text_comments_or_closing_blank(tmp_path: Path) -> None:
    content = f"# newdoc\n\n{sentence(2, 0)}\n\n{sentence(0)}{row('0.1', 'e')}\n{row(1, '10 000', 0)}"
    found = sides(tmp_path, content)
    assert [(side.text, side.words, side.governors, side.line) for side in found] == [
        ("w1 w2", ("w1", "w2"), (1, -1), 3),
        ("w1", ("w1",), (-1,), 8),
        ("10 000", ("10 000",), (-1,), 11),
    ]


@pytest.mark.parametrize(
    ("content", "line", "got"),
    [
        ("1\tw\t_\n", 1, "3 columns"),
        ("just text\n", 1, "1 column;"),
        (sentence(0) + row(1, "w", 2), 3, "expected a head from 0 to 1, got 2"),
        (sentence(0, "_"), 2, "expected a head that is a number, got '_'"),
        (sentence(0, "-1"), 2, "expected a head that is a number, got '-1'"),
        (sentence(0, "²"), 2, "expected a head that is a number, got '²'"),
        (row(1, "w", 0) + "\n" + row(3, "w", 1), 2, "expected id 2, got id 3"),
        (row(0, "w", 0), 1, "expected id 1, got id 0"),
        (row("x", "w", 0), 1, "got 'x'"),
        (row("", "w", 0), 1, "got ''"),
        (row(1, "", 0), 1, "expected a word, got none"),
        (row(1, "w", 0) + "\n" + row("2.1", "w"), 2, "expected id 1.1, got id 2.1"),
        (row(1, "w", 0) + "\n" + row("1.2", "w"), 2, "expected id 1.1, got id 1.2"),
        (row("2-3", "w"), 1, "got id '2-3'"),
        (row("1-1", "w"), 1, "got id '1-1'"),
        (row("1-2", "w") + "\n" + row(1, "w", 0) + "\n" + row("2-3", "w"), 3, "got id '2-3'"),
        (row("1-2", "w") + "\n" + row(1, "w", 0), 1, "expected the words 1 to 2 below it"),
        (row("1-2", "w"), 1, "a sentence that ends at word 0"),
        (sentence(2, 1), 1, "without one"),
        (sentence(1), 1, "without one"),
        (sentence(0, 2), 2, "word 2 in a circle of heads"),
        (sentence(0, 3, 4, 3), 3, "word 3 in a circle of heads"),
        ("# text = w1 w3\n" + sentence(2, 0), 2, "expected words that spell the text, got the text 'w1 w3'"),
    ],
)
def test_wrong_parses(tmp_path: Path, content: str, line: int, got: str) -> None:
    path = file(tmp_path, content)
    with pytest.raises(AttnworksError) as caught:
        read_parses(path)
    message = str(caught.value)
    assert message.startswith(f"read {path}, line {line}: ") and got in message and "\n" not in message


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"", "an empty file"),
        (b"\n# nothing\n\n", "no sentence"),
        (b"# caf\xe9\n", "byte 0xe9 at offset 5 (line 1)"),
    ],
)
def test_files_without_parses(tmp_path: Path, content: bytes, got: str) -> None:
    path = file(tmp_path, content)
    with pytest.raises(AttnworksError) as caught:
        read_parses(path)
    assert str(path) in str(caught.value) and f"got {got}" in str(caught.value)


@given(st.data())
def test_trees_are_read_as_they_are_and_ranges_make_no_circles(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, 11))
    order = data.draw(st.permutations(range(1, count + 1)))
    heads = {word: order[data.draw(st.integers(0, place - 1))] if place else 0 for place, word in enumerate(order)}
    rows = [row(word, f"w{word}", heads[word]) for word in range(1, count + 1)]
    folder = tmp_path_factory.mktemp("tree")
    (plain,) = sides(folder, "\n".join(rows))
    assert plain.governors == tuple(heads[word] - 1 for word in range(1, count + 1))

    first = data.draw(st.integers(1, count))
    last = data.draw(st.integers(first, count))
    if last > first:
        rows.insert(first - 1, row(f"{first}-{last}", "joined"))
    (joined,) = sides(folder, "\n".join(rows))
    assert joined.governors is not None and len(joined.governors) == count - (last - first)
    for word in range(len(joined.governors)):
        for _ in joined.governors:
            word = joined.governors[word] if word >= 0 else word
        assert word == -1


def test_attach_by_text_and_by_words(tmp_path: Path) -> None:
    parses = read_parses(file(tmp_path, DELLA + "\n\n" + sentence(2, 0) + sentence(0, 1)))
    passages = [
        Passage(Text("Il gatto della vicina dorme .", line=3)),
        Passage(Text("unknown"), Text("w1  w2")),
        Passage(Text("w1 w2", ("w1", "w2"), (-1, 0))),
    ]
    (attached, without), first = attach(passages, parses), parses[0].source
    assert without == 1
    assert attached[0].source == Text("Il gatto della vicina dorme .", first.words, first.governors)
    assert attached[0].source.line == 3
    assert attached[1] == Passage(Text("unknown"), Text("w1  w2", ("w1", "w2"), (1, -1)))
    assert attached[2] == Passage(Text("w1 w2", ("w1", "w2"), (1, -1)))
    assert attach(passages, []) == (passages, 3)
