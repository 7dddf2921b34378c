"""The site builds without a warning, loads nothing from elsewhere, and links and names in our pages exist."""

import os
import re
import subprocess
import sys

import pytest
from code_blocks import PAGES, ROOT, resolve

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
LOADED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?(https?:)?//""")
NAME = re.compile(r"`(isotune(?:\.\w+)+)`")
ROOT_PAGES = sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("*/*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # a notice of the theme about its successor
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=quiet)
    assert done.returncode == 0, done.stderr  # strict: a warning fails
    return folder


def test_every_page_is_in_the_site(site):
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        assert (site / (name.with_name("index.html") if name.stem == "README" else name)).exists(), name


def test_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        assert not LOADED.search(page.read_text()), page


def test_decisions_are_listed():
    listed = (ROOT / "docs/decisions/README.md").read_text()
    for page in (ROOT / "docs/decisions").glob("0*.md"):
        assert f"({page.name})" in listed


@pytest.mark.parametrize("page", ROOT_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_files_of_the_repository_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        path, _, anchor = target.partition("#")
        if ":" in path:  # an address: not looked up
            continue
        there = page.parent / path if path else page
        assert there.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors_of(there), f"{page.name} links to {target}"


def anchors_of(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_of_ours_in_a_page_exist(page):
    for name in NAME.findall(page.read_text()):
        resolve(name)


def test_the_theory_names_a_function_for_every_equation():
    text = (ROOT / "docs/theory.md").read_text()
    assert len(NAME.findall(text)) > 30
    for section in text.split("\n## "):
        for explained in section.split('<p class="equation">')[1:]:
            assert NAME.search(explained), explained[:80]
