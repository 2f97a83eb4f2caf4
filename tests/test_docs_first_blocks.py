"""The first code block of a page of the documentation: executed, with an output."""

from __future__ import annotations

import pytest

pytest.importorskip("sphinx")
from docutils import nodes
from docutils.utils import new_document

from first_blocks import Block, blocks, fault


def cell(*outputs: str) -> nodes.container:
    node = nodes.container("", nodes.literal_block("print(1)", "print(1)"), nb_element="cell_code")
    if outputs:
        node += nodes.container(
            "", *[nodes.literal_block(text, text) for text in outputs], nb_element="cell_code_output"
        )
    return node


def shell(printed: str = "") -> list[nodes.Element]:
    shown = nodes.literal_block("ls", "ls", program="shell", prints=bool(printed), seconds=0.5)
    output = nodes.container("", nodes.literal_block(printed, printed), program="output")
    return [shown, output] if printed else [shown]


def file() -> nodes.container:
    return nodes.container("", nodes.literal_block("x = 1", "x = 1"), program="file")


def page(*content: nodes.Element) -> list[Block]:
    document = new_document("page.md")
    document += nodes.section("", nodes.paragraph("", "", nodes.literal("", "code")), *content)
    return list(blocks(document))


def test_blocks_of_a_page() -> None:
    found = page(cell("1"), file(), *shell("a file"), nodes.literal_block("", "text"), cell())
    assert [block.kind for block in found] == ["cell", "file", "shell", "other", "cell"]
    assert [block.prints for block in found] == [True, False, True, False, False]
    assert found[2].seconds == 0.5


@pytest.mark.parametrize(
    "content", [[], [cell("1")], shell("a"), [file(), *shell("a")], [file(), file(), *shell("a"), cell()]]
)
def test_pages_that_begin_well(content: list[nodes.Element]) -> None:
    assert fault(page(*content)) == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([nodes.literal_block("", "pip install"), cell("1")], "is not executed"),
        ([file(), nodes.literal_block("", "python a.py")], "is not executed"),
        ([cell(), cell("1")], "prints nothing"),
        (shell(), "prints nothing"),
        ([file()], "no shell block runs"),
        ([file(), cell("1")], "no shell block runs"),
    ],
)
def test_pages_that_do_not(content: list[nodes.Element], message: str) -> None:
    assert message in fault(page(*content))
