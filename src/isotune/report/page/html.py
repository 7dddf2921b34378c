"""HTML that is escaped by construction: text becomes HTML only here."""

from __future__ import annotations

import html
import json
from typing import Any

_EMPTY = frozenset({"input", "meta", "br"})


class Html(str):
    """Text that is HTML already; every other string is escaped where it is put in."""

    __slots__ = ()


def element(tag: str, /, *children: str, **attributes: str | bool) -> Html:
    """An element with its children; `class_` is class, `aria_label` aria-label, True an attribute without a value.

    >>> element("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    words = "".join(_attribute(key, value) for key, value in attributes.items() if value is not False)
    if tag in _EMPTY:
        return Html(f"<{tag}{words}>")
    return Html(f"<{tag}{words}>{join(*children)}</{tag}>")


def join(*children: str) -> Html:
    """Children one after the other, escaped where they are plain text."""
    return Html("".join(child if isinstance(child, Html) else html.escape(child) for child in children))


def folded(heading: Html, content: Html) -> Html:
    """Content that a click on its heading, or Enter, unfolds; on paper it is unfolded."""
    return element("details", element("summary", heading), content, class_="fold")


def json_script(name: str, value: Any) -> Html:
    """Data for scripts. Inside JSON `<`, `>` and `&` occur in strings only, where their escapes mean the same."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return element("script", Html(text), type="application/json", id=name)


def _attribute(name: str, value: str | bool) -> str:
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
