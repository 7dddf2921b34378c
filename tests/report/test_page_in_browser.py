"""The page in a real browser: it draws, switches, sorts, filters, darkens and prints, and asks nobody for anything."""

import shutil

import pytest
from made_pages import LABEL, SCRIPT, diverged, hundred_runs, page_of
from made_sweeps import run, with_info

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on PATH: apt-get install chromium")
PATIENCE = 240_000  # milliseconds: a loaded machine takes its time


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE)
        yield browser
        browser.close()


def open_page(browser, path, **context):
    """The page, and what it did that no page should do."""
    made = browser.new_context(color_scheme="light", **context)
    made.set_default_timeout(PATIENCE)
    page, misdeeds = made.new_page(), []
    page.on("console", lambda message: misdeeds.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: misdeeds.append(str(error)))
    page.on("request", lambda request: None if request.url == path.as_uri() else misdeeds.append(request.url))
    page.on("dialog", lambda dialog: (misdeeds.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    return page, misdeeds


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    accused = diverged(hundred_runs()[-1])
    path.write_text(page_of([*hundred_runs()[:-1], accused], label=LABEL), encoding="utf-8")
    return open_page(browser, path, viewport={"width": 1280, "height": 800})


@pytest.fixture
def page(opened):
    return opened[0]


def draw_all(page):
    """Scrolls to every figure, as a reader would; says how many there are."""
    plots = page.locator(".plot")
    for index in range(plots.count()):
        plots.nth(index).scroll_into_view_if_needed()
        page.wait_for_selector(f'.plot[data-drawings="panel-{index}"][data-state="drawn"]')
    return plots.count()


def test_all_figures_are_drawn_without_an_error_or_a_request(opened):
    page, misdeeds = opened
    assert page.locator(".plot:not([data-state])").count() > 0  # what is out of sight waits
    count = draw_all(page)
    assert count >= 4 and page.locator(".plot svg.main-svg").count() >= count
    assert page.locator(".plot[data-state=failed]").count() == 0
    assert misdeeds == []


def test_a_name_like_a_script_stays_text(opened):
    page, misdeeds = opened
    assert page.locator("#run-table td", has_text=SCRIPT).count() == 1
    assert page.locator("h1").text_content() == LABEL
    assert misdeeds == []


def line_colors(page, name):
    return page.evaluate(
        "name => document.querySelector(`[data-name=${name}]`).data.map(trace => trace.line && trace.line.color)", name
    )


def test_the_colour_switch_colours_by_elr_and_back(page):
    figure = page.locator("figure#loss-by-lr")
    figure.scroll_into_view_if_needed()
    by_lr = line_colors(page, "loss-by-lr")
    label = figure.locator(".plot").get_attribute("aria-label")
    figure.get_by_label("LR", exact=True).focus()
    page.keyboard.press("ArrowRight")  # a switch for keyboards too
    page.wait_for_selector('[data-name="loss-by-lr"][data-choice="1"][data-state="drawn"]')
    assert line_colors(page, "loss-by-lr") != by_lr
    assert figure.locator(".plot").get_attribute("aria-label") != label
    assert "coloured by ELR" in figure.locator(".caption:visible").text_content()
    figure.get_by_label("LR", exact=True).check()
    page.wait_for_selector('[data-name="loss-by-lr"][data-choice="0"][data-state="drawn"]')
    assert line_colors(page, "loss-by-lr") == by_lr


def column(page, index):
    """The texts of a column, of the rows that are shown."""
    rows = "[...document.querySelectorAll('#run-table tbody tr:not([hidden])')]"
    return page.evaluate(f"index => {rows}.map(row => row.cells[index].textContent)", index)


def test_filters_show_what_matches_and_clear_shows_all(page):
    page.fill("#run-words", "RUN-01 finished")
    assert page.text_content("#run-count") == "10 of 100 runs"
    assert all("run-01" in name for name in column(page, 8))
    page.select_option("#run-filters select[data-column='1']", "2^-5")
    assert column(page, 1) == ["2^-5", "2^-5"]
    page.click("#run-clear")
    assert page.text_content("#run-count") == "100 runs"
    page.select_option("#run-filters select[data-column='7']", "diverged")
    assert page.text_content("#run-count") == "1 of 100 runs"
    page.click("#run-clear")


def test_a_heading_sorts_by_keyboard_up_and_down_and_what_has_no_loss_stays_last(page):
    heading = page.locator("#run-table th", has_text="final loss")
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    losses = column(page, 6)
    assert losses[-1] == "none" and losses[:-1] == sorted(losses[:-1], key=float)
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    losses = column(page, 6)
    assert losses[-1] == "none" and losses[:-1] == sorted(losses[:-1], key=float, reverse=True)
    page.locator("#run-table th button").first.click()
    assert heading.get_attribute("aria-sort") == "none"
    assert column(page, 0)[0] == "2^-11" and column(page, 0)[-1] == "2^-7"


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_dark_colours_reach_the_figures_and_are_remembered(page):
    def ink():
        return page.evaluate("document.querySelector('.plot').layout.font.color")

    light, light_ink = background(page), ink()
    page.get_by_role("button", name="Dark colours").click()
    page.wait_for_selector('.plot[data-drawings="panel-0"][data-state="drawn"]')
    assert background(page) != light and ink() != light_ink
    assert page.evaluate("localStorage.getItem('isotune-theme')") == "dark"
    page.get_by_role("button", name="Light colours").click()
    page.wait_for_selector('.plot[data-drawings="panel-0"][data-state="drawn"]')
    assert background(page) == light and ink() == light_ink


def test_paper_gets_all_figures_all_text_and_light_colours(page):
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.wait_for_selector(".plot[data-state=drawing]", state="detached")
    assert page.locator(".plot[data-state=drawn]").count() == page.locator(".plot").count()
    assert background(page) == "rgb(255, 255, 255)"
    assert page.evaluate("document.querySelector('.plot').layout.font.color") == "#1b1f24"
    assert page.locator("details:not([open])").count() == 0
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
    page.evaluate("delete document.documentElement.dataset.theme")


def test_on_a_phone_nothing_is_too_wide_and_panels_stand_under_each_other(page):
    name = "final-loss-budgets"
    figure = page.locator(f"figure#{name}")
    figure.scroll_into_view_if_needed()
    starts = f"Object.values(document.querySelector('[data-name={name}]').layout)"
    starts += ".filter(part => part && part.anchor && part.anchor[0] === 'y').map(axis => axis.domain[0])"
    assert len(set(page.evaluate(starts))) == 3
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_selector(f'[data-name="{name}"][data-narrow="true"][data-state="drawn"]')
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate(starts) == [0, 0, 0]
    page.set_viewport_size({"width": 1280, "height": 800})
    page.wait_for_selector(f'[data-name="{name}"][data-narrow="false"][data-state="drawn"]')
    assert len(set(page.evaluate(starts))) == 3


def test_families_after_the_second_unfold_by_keyboard(browser, tmp_path):
    path = tmp_path / "report.html"
    cells = [run(2.0**x, 0.1) for x in (-9, -8, -7)]
    families = [with_info(one, batch_size=batch) for batch, of in ((4, 3), (8, 3), (16, 2)) for one in cells[:of]]
    path.write_text(page_of(families), encoding="utf-8")
    page, misdeeds = open_page(browser, path, viewport={"width": 360, "height": 740})
    summary = page.locator("#evidence summary", has_text="batch 16")
    figure = page.locator("figure#loss-by-lr-batch-16")
    assert page.locator("figure#loss-by-lr-batch-8").is_visible() and not figure.is_visible()
    summary.focus()
    page.keyboard.press("Enter")
    figure.scroll_into_view_if_needed()
    page.wait_for_selector('[data-name="loss-by-lr-batch-16"][data-state="drawn"]')
    summary.focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Dark colours").click()
    assert page.locator('[data-name="loss-by-lr-batch-16"][data-state]').count() == 0  # it waits to be unfolded
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert figure.is_visible()
    assert misdeeds == []


def test_the_keyboard_reaches_what_can_be_clicked_and_shows_where_it_is(page):
    page.locator("a.skip").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "theme"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Space")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("Space")
