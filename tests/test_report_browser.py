"""The report in a real browser. Skips where there is none, except in CI."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from leakmeter import data
from leakmeter.judge import Evidence, Provenance, judge
from leakmeter.report import write
from test_report import ATTACK, PROVENANCE, sample, scored, two_attacks
from test_report_matrix import configured, pictured, provenance, row, utility

pytestmark = pytest.mark.browser

Open = Callable[..., Page]

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
]
PHONE = 360
HOSTILE = f'"><img src=x onerror="window.injected = true">{ATTACK}'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no chromium found: CI must check the report in a browser")
        pytest.skip("no chromium found")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def open_report(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a report; at the end nothing was requested but the file, and nothing complained."""
    pages, requests, complaints = [], [], []
    path = tmp_path / "report.html"

    def opened(
        evidence: list[Evidence],
        provenance: Provenance = PROVENANCE,
        *,
        width: int = 1280,
        scheme: Literal["light", "dark"] = "light",
    ) -> Page:
        write(judge(evidence, provenance), evidence, provenance, path)
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert {url for url in requests if not url.startswith("data:")} == {path.as_uri()}
    assert complaints == []


def overflow(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def loaded_images(page: Page) -> list[bool]:
    """Of every visible picture: whether it has pixels, its own or those of the original it uses."""
    found = page.evaluate(
        """() => {
            const own = [...document.images].filter(image => image.checkVisibility())
                .map(image => image.complete && image.naturalWidth > 0 && image.width > 0);
            const used = [...document.querySelectorAll("svg.picture")]
                .filter(picture => picture.checkVisibility())
                .map(picture => picture.querySelector("use").getBBox().width > 0);
            return own.concat(used);
        }"""
    )
    return [bool(one) for one in found]


def test_renders_with_all_images(open_report: Open) -> None:
    page = open_report(two_attacks())
    expect(page.get_by_role("heading", level=1)).to_have_text(PROVENANCE.title)
    expect(page.get_by_text("could be read out of these 2 updates")).to_be_visible()
    expect(page.get_by_role("main")).to_have_count(1)
    for attack in ("sme", "ig"):
        page.get_by_role("radio", name=attack).check()
        images = loaded_images(page)
        assert len(images) == 2 * (8 + 1)  # the pairs of one attack, and the one in the verdict
        assert all(images)
    for chart in page.locator(".charts svg").all():
        expect(chart).to_be_visible()


def test_keyboard_switches_the_attack(open_report: Open) -> None:
    page = open_report(two_attacks())
    strongest, other = page.locator("#panel-0-0"), page.locator("#panel-0-1")
    expect(strongest).to_be_visible()
    expect(other).to_be_hidden()
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "radio":
            break
    assert page.evaluate("document.activeElement.id") == "attack-0"
    outline = "getComputedStyle(document.activeElement.closest('label')).outlineStyle"
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("ArrowRight")
    expect(other).to_be_visible()
    expect(strongest).to_be_hidden()
    page.keyboard.press("ArrowLeft")
    expect(strongest).to_be_visible()


def test_print_shows_every_attack(open_report: Open) -> None:
    page = open_report(two_attacks())
    page.emulate_media(media="print")
    expect(page.locator("#panel-0-0")).to_be_visible()
    expect(page.locator("#panel-0-1")).to_be_visible()


def test_phone_scrolls_down_only(open_report: Open) -> None:
    page = open_report(two_attacks(), replace(PROVENANCE, command="x" * 500), width=PHONE)
    assert overflow(page) <= 0
    table = page.locator(".scroll")
    assert table.evaluate("element => element.scrollWidth > element.clientWidth")


def test_originals_are_drawn_not_blank(open_report: Open) -> None:
    page = open_report([sample(count=1)])
    picture = page.locator(".exhibit svg.picture")
    box = picture.bounding_box()
    assert box is not None
    assert (round(box["width"]), round(box["height"])) == (128, 128)
    shown = Image.open(io.BytesIO(picture.screenshot())).convert("RGB")
    assert len(shown.getcolors(128 * 128) or []) > 100


@pytest.mark.parametrize(("count", "name", "size"), [(200, "faces", 25), (2, "photos", 224)])
def test_many_and_large_images_fit_a_phone(
    open_report: Open, count: int, name: str, size: int
) -> None:
    source = data.load(name, size=size)
    page = open_report([sample(count=count, source=source)], width=PHONE)
    assert overflow(page) <= 0
    images = loaded_images(page)
    assert len(images) == 2 * (count + 1)
    assert all(images)


def test_captured_update_on_a_phone(open_report: Open) -> None:
    page = open_report([sample(truth=False)], width=PHONE)
    assert overflow(page) <= 0
    assert loaded_images(page) == [True] * 4
    expect(page.get_by_role("heading", name="Not measured")).to_be_visible()


def test_dark_mode_has_light_text_on_a_dark_page(open_report: Open) -> None:
    def brightness(page: Page, color: str) -> float:
        value = page.evaluate(f"getComputedStyle(document.body).{color}")
        red, green, blue = (int(part) for part in value.removeprefix("rgb(")[:-1].split(","))
        return (red + green + blue) / 3

    light, dark = (open_report([sample()], scheme=scheme) for scheme in ("light", "dark"))
    assert brightness(light, "backgroundColor") > 200 > 60 > brightness(light, "color")
    assert brightness(dark, "color") > 200 > 60 > brightness(dark, "backgroundColor")
    ink = "getComputedStyle(document.querySelector('.charts svg text')).fill"
    assert dark.evaluate(ink) == dark.evaluate("getComputedStyle(document.body).color")


def test_injected_markup_does_not_run(open_report: Open) -> None:
    provenance = replace(
        PROVENANCE, title=HOSTILE, scenario=HOSTILE, command=HOSTILE, class_names=(HOSTILE,) * 8
    )
    page = open_report([sample(HOSTILE), sample("ig", damage=1.8)], provenance, width=PHONE)
    assert page.evaluate("window.injected") is None
    assert page.locator("script, [onerror]").count() == 0
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    assert overflow(page) <= 0


# Several configurations


def test_a_cell_opens_its_pictures(open_report: Open) -> None:
    page = open_report(*pictured())
    page.emulate_media(reduced_motion="reduce")
    expect(page.locator("#panel-0-0")).to_be_visible()
    expect(page.locator(".panel:visible")).to_have_count(1)
    page.locator('.matrix a[href="#panel-2-1"]').click()
    expect(page.locator("#panel-2-1")).to_be_in_viewport()
    expect(page.locator(".panel:visible")).to_have_count(1)
    images = loaded_images(page)
    assert len(images) == 2 * 4 + 3  # the pairs of one cell, and three on the first screen
    assert all(images)
    picker = page.locator("#panel-2-1").get_by_role("navigation")
    expect(picker.locator("[aria-current]")).to_have_count(2)
    picker.get_by_role("link", name="no defense").click()
    expect(page.locator("#panel-0-1")).to_be_in_viewport()
    expect(page.locator("#panel-2-1")).to_be_hidden()


def test_keyboard_opens_a_cell(open_report: Open) -> None:
    page = open_report(*pictured())
    page.emulate_media(reduced_motion="reduce")
    page.locator('.matrix a[href="#panel-1-1"]').focus()
    page.keyboard.press("Enter")
    expect(page.locator("#panel-1-1")).to_be_in_viewport()


SLIT = """pair => {
    const [picture, after] = [".picture", ".after"].map(name => pair.querySelector(name));
    const [whole, window_] = [picture, after].map(each => each.getBoundingClientRect());
    return (window_.left - whole.left) / whole.width;
}"""
"""How much of the original is seen, from 0 to 1."""


def test_slider_lays_one_picture_over_the_other(open_report: Open) -> None:
    page = open_report([sample(count=2)])
    pair = page.locator(".gallery .pair").first
    first, second = pair.locator(".picture"), pair.locator("img")
    side = [first.bounding_box(), second.bounding_box()]
    assert side[0] is not None
    assert side[1] is not None
    assert side[0]["x"] + side[0]["width"] < side[1]["x"]
    switch = page.get_by_role("checkbox")
    switch.scroll_into_view_if_needed()
    place = page.evaluate("scrollY")
    switch.check()
    assert page.evaluate("scrollY") == place
    over = [first.bounding_box(), second.bounding_box()]
    assert over[0] == over[1]
    assert over[0] is not None
    assert over[0]["width"] > side[0]["width"]
    scroller = pair.locator(".scroller")
    assert pair.evaluate(SLIT) == pytest.approx(0.5, abs=0.02)
    for seen, scrolled in ((1.0, 0), (0.0, 10_000)):
        scroller.evaluate("(each, to) => { each.scrollLeft = to; }", scrolled)
        assert pair.evaluate(SLIT) == pytest.approx(seen, abs=0.02)
        assert second.bounding_box() == over[1]  # the picture stays, its window moves
    switch.uncheck()
    back = second.bounding_box()
    assert back is not None
    assert (back["x"], back["width"]) == (side[1]["x"], side[1]["width"])


def test_slider_follows_the_keyboard(open_report: Open) -> None:
    page = open_report([sample(count=1)])
    page.get_by_role("checkbox").check()
    pair = page.locator(".gallery .pair").first
    before = pair.evaluate(SLIT)
    pair.locator(".scroller").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(400)
    assert pair.evaluate(SLIT) < before


def test_slider_shows_both_pictures(open_report: Open) -> None:
    run = sample(count=1)
    assert run.truth is not None
    colors = [torch.zeros(1, 3, 32, 32), torch.ones(1, 3, 32, 32)]
    black = replace(run, truth=replace(run.truth, images=colors[0]))
    both = replace(black, found=replace(run.found, images=colors[1]))
    page = open_report([both])
    page.get_by_role("checkbox").check()
    picture = page.locator(".gallery .picture").first.bounding_box()
    assert picture is not None
    shown = Image.open(io.BytesIO(page.locator(".gallery .pair").first.screenshot())).convert("L")
    row_ = [shown.getpixel((x, shown.height // 2)) for x in range(shown.width)]
    assert (row_[5], row_[-5]) == (0, 255)
    assert row_[len(row_) // 4] == 0
    assert row_[3 * len(row_) // 4] == 255


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_in_cells_can_be_read(open_report: Open, scheme: Literal["light", "dark"]) -> None:
    page = open_report(*pictured(), scheme=scheme)
    for name in ("0-0", "2-1"):
        cell = page.locator(f'.matrix a[href="#panel-{name}"]')
        pixels = Image.open(io.BytesIO(cell.screenshot())).convert("L")
        values = np.asarray(pixels).astype(int)
        background = values[values.shape[0] // 2, 3]
        ink = values.max() if scheme == "dark" else values.min()
        assert abs(ink - background) > 110


def test_a_matrix_on_a_phone_scrolls_in_its_own_box(open_report: Open) -> None:
    runs, about = pictured()
    label = "x" * 200
    rows = (*about.configurations, row(label, utility=utility(0.4)))
    more = [configured(sample("sme", count=2), label)]
    page = open_report([*runs, *more], provenance(*rows), width=PHONE)
    assert overflow(page) <= 0
    box = page.locator("#matrix .scroll")
    assert box.evaluate("each => each.scrollWidth > each.clientWidth")
    box.evaluate("each => { each.scrollLeft = 300; }")
    name = page.locator(".matrix tbody th").first.bounding_box()
    edge = box.bounding_box()
    assert name is not None
    assert edge is not None
    assert name["x"] == pytest.approx(edge["x"], abs=5)  # names stay in view
    chart = page.locator("#frontier .scroll")
    assert chart.evaluate("each => each.scrollWidth > each.clientWidth")


def test_labels_of_the_frontier_do_not_overlap(open_report: Open) -> None:
    rows = [row(f"defense number {n}", utility=utility(0.5 + n % 3 / 100)) for n in range(10)]
    runs = [
        configured(sample("sme", count=1, damage=0.1 if n % 2 else 9.0), each.label)
        for n, each in enumerate(rows)
    ]
    page = open_report(runs, provenance(*rows))
    boxes = page.evaluate(
        """() => [...document.querySelectorAll("#frontier svg text")]
            .filter(text => text.textContent.startsWith("defense"))
            .map(text => text.getBoundingClientRect())
            .map(box => [box.left, box.top, box.right, box.bottom])"""
    )
    assert len(boxes) == 10
    for number, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[:number]:
            apart = left >= other[2] or other[0] >= right or top >= other[3] or other[1] >= bottom
            assert apart


def test_only_the_strongest_attacks_are_printed(open_report: Open) -> None:
    page = open_report(*pictured())
    page.emulate_media(media="print")
    shown = {panel.get_attribute("id") for panel in page.locator(".panel:visible").all()}
    strongest = {panel.get_attribute("id") for panel in page.locator(".strongest").all()}
    assert shown == strongest
    assert len(strongest) == 3


@pytest.mark.parametrize(("width", "height"), [(210, 297), (215.9, 279.4)], ids=["A4", "Letter"])
def test_ten_configurations_fit_the_first_printed_page(
    open_report: Open, width: float, height: float
) -> None:
    rows = [
        row(f"defense number={n}", utility=utility(0.5, 0.5 + n / 20), ignored=("x",) * (n == 3))
        for n in range(9)
    ]
    rows.insert(0, row("none", utility=utility(0.9, 0.8)))
    runs = [
        configured(scored(9 if n < 3 else 0, 16, attack=attack), each.label)
        for n, each in enumerate(rows)
        for attack in ("retrace", "sme", "closed_form", "ig_fedavg")
    ]
    page = open_report(runs, provenance(*rows))
    margins, pixels = 2 * 11, 96 / 25.4
    page.set_viewport_size({"width": int((width - margins) * pixels), "height": 900})
    page.emulate_media(media="print")
    assert overflow(page) <= 0
    end = page.locator("#frontier").bounding_box()
    assert end is not None
    assert end["y"] + end["height"] < (height - margins) * pixels
    after = page.locator("#verdicts")
    assert after.evaluate("each => getComputedStyle(each).breakBefore") == "page"
    expect(page.locator("#verdict")).to_contain_text("What to do")


def test_hostile_configurations_do_not_run(open_report: Open) -> None:
    rows = [row(HOSTILE, utility=utility(0.5), known=(HOSTILE,)), row("none", utility=utility(0.6))]
    runs = [configured(sample(HOSTILE, count=1), each.label) for each in rows]
    page = open_report(runs, provenance(*rows), width=PHONE)
    assert page.evaluate("window.injected") is None
    assert page.locator("script, [onerror]").count() == 0
    assert overflow(page) <= 0
