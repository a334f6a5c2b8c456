"""A headless Chromium, as a person sits before it: Debian's, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from airflow_ui import PATIENCE_MS, Ui
from fix_stack import Stack
from fixtures.commands.guide import FOLDER, PICTURE_WIDTH, PICTURES

SHOTS = os.environ.get("SEMEL_SHOTS_DIR")
"""A folder to keep pictures of the pages in, for somebody who wants to look at them."""

GUIDE_SHOTS = os.environ.get("SEMEL_GUIDE_SHOTS")
"""Set by `make screenshots`: the guide's pictures are taken anew."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed. On Debian 12: sudo apt-get install -y chromium")
    with sync_playwright() as playwright:
        # Its sandbox does not work for root; it visits our own pages alone.
        options = {"executable_path": path, "args": ["--no-sandbox", "--no-proxy-server"]}
        made = playwright.chromium.launch(**options)
        yield made
        made.close()


@contextmanager
def window(
    browser: Browser, *, width: int = 1400, scheme: str = "light"
) -> Iterator[BrowserContext]:
    """A new window without cookies; English, so that its words are known."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, locale="en-US",
        reduced_motion="reduce",
    )  # fmt: skip
    context.set_default_timeout(PATIENCE_MS)
    yield context
    context.close()


def log_in(context: BrowserContext, stack: Stack) -> None:
    """By the form of Airflow's login page."""
    page = context.new_page()
    page.goto(stack.airflow.url)
    page.locator("input[name=username]").fill(stack.airflow.user)
    page.locator("input[name=password]").fill(stack.airflow.password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda url: "login" not in url)
    page.close()


@pytest.fixture(scope="module")
def ui(_running_stack: Stack, browser: Browser) -> Iterator[Ui]:
    """A window of the stack's user, who has logged in by the form."""
    with window(browser, width=PICTURE_WIDTH) as context:
        log_in(context, _running_stack)
        yield Ui(context.new_page(), _running_stack.airflow.url)


def keep(page: Page, name: str) -> None:
    """A picture of the whole page, where somebody asked for it."""
    if SHOTS:
        page.screenshot(path=os.path.join(SHOTS, f"{name}.png"), full_page=True)


def picture(page: Page, name: str) -> None:
    """What the window shows, as a picture of the guide, where these are taken anew."""
    assert name in PICTURES
    keep(page, f"guide-{name}")
    if GUIDE_SHOTS:
        page.screenshot(path=FOLDER / "images" / f"{name}.png")
