"""The report in a real browser. Skips where there is none, except in CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from leakscope import data
from leakscope.audit.evidence import Evidence, Provenance
from leakscope.report import write
from test_report import ATTACK, PROVENANCE, sample, two_attacks

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
        write(evidence, provenance, path)
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
    """Of every visible image: whether it has pixels."""
    found = page.evaluate(
        """() => [...document.images].filter(image => image.checkVisibility())
            .map(image => image.complete && image.naturalWidth > 0 && image.width > 0)"""
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
    strongest, other = page.locator("#panel-0"), page.locator("#panel-1")
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
    expect(page.locator("#panel-0")).to_be_visible()
    expect(page.locator("#panel-1")).to_be_visible()


def test_phone_scrolls_down_only(open_report: Open) -> None:
    page = open_report(two_attacks(), replace(PROVENANCE, command="x" * 500), width=PHONE)
    assert overflow(page) <= 0
    table = page.locator(".scroll")
    assert table.evaluate("element => element.scrollWidth > element.clientWidth")


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
    def brightness(page: Page, colour: str) -> float:
        value = page.evaluate(f"getComputedStyle(document.body).{colour}")
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
