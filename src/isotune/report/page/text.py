"""Sentences, tables of words and lines to paste, as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isotune.report.page.html import Html, element
from isotune.report.words import WordTable

LONG = 40  # characters


def sentence_list(sentences: Iterable[str]) -> Html:
    """Sentences under each other; one alone is a paragraph."""
    kept = [sentence for sentence in sentences if sentence]
    if len(kept) == 1:
        return element("p", as_sentence(kept[0]))
    return element("ul", *(element("li", as_sentence(sentence)) for sentence in kept)) if kept else Html()


def as_sentence(words: str) -> str:
    """With a full stop; names keep their first letter as it is."""
    return words if not words or words.endswith((".", "!", "?", ":")) else f"{words}."


def word_table(table: WordTable | None, caption: str) -> Html:
    """A table that scrolls sideways where the screen is narrow; its caption is for readers that do not see it."""
    if table is None or not table.rows:
        return Html()
    header = element("tr", *(element("th", name, scope="col") for name in table.columns))
    rows = [
        element("tr", *(element("th", row[0], scope="row"), *(_cell(cell) for cell in row[1:]))) for row in table.rows
    ]
    content = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", header),
        element("tbody", *rows),
    )
    return element("div", content, class_="wide", tabindex="0", role="region", aria_label=caption)


def _cell(words: str) -> Html:
    """A sentence may be broken over lines; numbers may not."""
    return element("td", words, class_="long") if len(words) > LONG else element("td", words)


def lines_to_paste(lines: Mapping[str, str]) -> Html:
    """Each library's line with a button that copies it."""
    items = []
    for library, line in lines.items():
        button = element("button", "Copy", type="button", class_="copy", aria_label=f"Copy the line for {library}")
        code = element("pre", element("code", line), tabindex="0", aria_label=f"Line for {library}")
        items.append(element("div", element("span", library, class_="library"), code, button, class_="line"))
    return element("div", *items, class_="lines")
