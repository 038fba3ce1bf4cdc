"""A page as a tree, to ask what stands in it.

What lives here: the parsing, with the standard library. What stays out: what the page should say (the tests).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "input", "br", "link", "img", "hr"}


@dataclass
class Element:
    """An element with its children, which are elements and texts."""

    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    def all(self, tag: str | None = None, **attributes: str) -> Iterator[Element]:
        """Yield the elements below, in order, with this tag and these attributes (``_`` stands for ``-``)."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        for child in self.children:
            if isinstance(child, Element):
                if tag in (None, child.tag) and wanted.items() <= child.attributes.items():
                    yield child
                yield from child.all(tag, **attributes)

    def one(self, tag: str | None = None, **attributes: str) -> Element:
        """Return the only such element."""
        (found,) = self.all(tag, **attributes)
        return found

    def having(self, name: str) -> list[Element]:
        """Return the elements below that have a class."""
        return [element for element in self.all() if name in element.attributes.get("class", "").split()]

    @property
    def text(self) -> str:
        """Everything that is read, with single spaces."""
        parts = (child if isinstance(child, str) else child.text for child in self.children)
        return " ".join("".join(parts).split())

    @property
    def numbers(self) -> list[float]:
        """Unrounded numbers, in order."""
        return [float(element.attributes["value"]) for element in self.all("data")]


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("document", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(page: str) -> Element:
    """Return the document; every element must be closed by its own tag."""
    builder = _Builder()
    builder.feed(page)
    builder.close()
    assert len(builder.open) == 1
    return builder.open[0]


def plots(document: Element) -> dict[str, Any]:
    """Return what the figures draw."""
    value: dict[str, Any] = json.loads(document.one("script", id="plots").children[0])  # type: ignore[arg-type]
    return value
