"""semel's pages in Airflow's UI, in a real browser on the live stack."""

import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from fix_browser import keep, log_in, window
from fix_stack import BY_DAY, VISITS, Begun, Stack
from fixtures.batches.workbench import events


@pytest.fixture(scope="module")
def person(_running_stack: Stack, browser: Browser) -> Iterator[BrowserContext]:
    """A window of the stack's user, who has logged in by the form: that takes seconds."""
    with window(browser) as context:
        log_in(context, _running_stack)
        yield context


@pytest.fixture
def page(person: BrowserContext) -> Iterator[Page]:
    """A tab of it."""
    opened = person.new_page()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def _landed(_running_stack: Stack) -> None:
    """Five days."""
    for day in range(1, 6):
        path = f"visits/visits-2026-11-0{day}.jsonl"
        _running_stack.write(path, events(10 * day, 10 * day + day))


@pytest.fixture
def week(stack: Stack, _landed: None) -> str:
    """Five days, of which two are read. Returns the command that the third one's line shows."""
    if not stack.batches(VISITS):
        days = "2026-11-01", "2026-11-03"
        code, _, said = stack.call("run", VISITS, "--interval", *days)
        assert code == 0, said
    return "semel run visits --interval 2026-11-03 2026-11-04"


def test_a_person_sees_which_days_are_complete(
    stack: Stack, week: str, page: Page, browser: Browser
) -> None:
    """From the navigation to a pipeline, its days, a batch; by the DAG's tab too; when the printed
    command has run, its day is finalized. Without a login there is nothing.

    That Airflow shows semel's pages, and a browser what is on them, only a browser shows.
    """
    where = f"{stack.airflow.url}/semel/dags/{VISITS}?from=2026-11-01&to=2026-11-07"
    with window(browser) as context:
        stranger = context.new_page()
        answer = stranger.goto(where)
        assert answer.status == 401 and "visits-" not in stranger.content()
    elsewhere = _watch(page, stack.airflow.url)
    page.goto(stack.airflow.url)
    page.get_by_role("link", name="semel", exact=True).click()
    frame = page.frame_locator("iframe")
    frame.get_by_role("link", name=VISITS).first.click()
    expect(frame.get_by_role("heading", level=1)).to_have_text("visits: days")
    page.goto(f"{stack.airflow.url}/dags/{VISITS}")
    page.get_by_role("link", name="Days", exact=True).click()
    expect(page.frame_locator("iframe").locator(".calendar")).to_be_visible()
    keep(page, "airflow-days")
    assert elsewhere == []

    page.goto(where)
    states = page.locator("tbody tr[id] .chip").all_inner_texts()
    assert [text.split(" ", 1)[1] for text in states] == [
        "nothing there", "nothing there", "unclaimed", "unclaimed", "unclaimed", "finalized",
        "finalized",
    ]  # fmt: skip
    shown = page.locator("#d20261103 code").inner_text()
    assert shown == week
    assert stack.call(*shown.split()[1:])[0] == 0
    page.reload()
    expect(page.locator("#d20261103 .chip")).to_have_text(re.compile("finalized"))
    page.locator("#d20261103 a[title^='Batch']").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(
        re.compile(r"Batch \d+ of visits: finalized")
    )


def test_a_run_leads_to_its_batch_in_airflow(stack: Stack, begun: Begun, page: Page) -> None:
    """By the buttons that Airflow's API tells of each task, and by a tab of the run.

    Airflow draws both: only a browser shows that they lead there.
    """
    run = quote(begun.shop, safe="")
    tasks = f"/api/v2/dags/shop/dagRuns/{run}/taskInstances"
    found = stack.airflow.call("GET", f"{tasks}/finalize/links")["extra_links"]
    assert set(found) == {"Batch", "Output", "Dead letters", "Operations"}
    title = re.compile(r"Batch \d+ of shop: finalized")
    page.goto(f"{stack.airflow.url}{found['Output']}")
    expect(page.get_by_role("heading", level=1)).to_have_text(title)
    page.goto(f"{stack.airflow.url}/dags/shop/runs/{run}")
    page.get_by_role("link", name="Batch", exact=True).click()
    expect(page.frame_locator("iframe").get_by_role("heading", level=1)).to_have_text(title)
    keep(page, "airflow-run")


@pytest.mark.usefixtures("week")
def test_airflow_is_no_second_time_in_its_tab(stack: Stack, page: Page) -> None:
    """A page within a tab has an address that can be sent and reloaded, and Back leads to the page
    before it. A link to Airflow moves Airflow itself. The pages follow its switch of colours.

    Airflow's frame and its router decide this: only a browser shows it.
    """
    tab = f"{stack.airflow.url}/dags/{VISITS}/plugin/semel-days"
    page.goto(tab)
    frame = page.frame_locator("iframe")
    title = frame.get_by_role("heading", level=1)
    expect(title).to_have_text("visits: days")
    expect(frame.locator("nav [aria-current]")).to_have_text("Days")
    frame.get_by_role("link", name="Catalog").click()
    expect(title).to_have_text("visits: catalog of record ids")
    expect(page).to_have_url(f"{tab}#/semel/dags/{VISITS}/catalog")
    page.reload()
    expect(title).to_have_text("visits: catalog of record ids")
    frame.get_by_role("link", name="Find an id").click()
    expect(title).to_have_text("visits: find an id")
    page.go_back()
    expect(title).to_have_text("visits: catalog of record ids")
    for named in (f"#/semel/../dags/{VISITS}", "#//example.org/semel/", "#javascript:alert(1)"):
        page.goto("about:blank")
        page.goto(tab + named)
        expect(title).to_have_text("visits: days")

    page.evaluate("localStorage.theme = 'dark'")
    page.reload()
    expect(frame.locator("body")).to_have_css("background-color", "rgb(20, 24, 28)")
    page.evaluate("localStorage.removeItem('theme')")

    frame.get_by_role("link", name="DAG in Airflow").click()
    expect(page).to_have_url(f"{stack.airflow.url}/dags/{VISITS}")
    expect(page.locator("iframe")).to_have_count(0)
    page.go_back()
    expect(title).to_have_text("visits: days")


PAGES = {
    "pipelines": "",
    "days": f"dags/{VISITS}",
    "refused": f"dags/{VISITS}/refused",
    "find": f"dags/{VISITS}/find?id=e000010",
    "catalog": f"dags/{VISITS}/catalog",
    "windows": f"dags/{BY_DAY}/windows",
    "no run": f"dags/{VISITS}/runs/none",
    "declaration": f"dags/{VISITS}/declaration",
    "lineage": "lineage",
}
"""Each page that only shows, below /semel/, except for the pages of a batch."""

CUT = """
[...document.querySelectorAll(".scroll:has(table)")]
    .filter((box) => box.scrollWidth > box.clientWidth)
    .map((box) => box.getAttribute("aria-label"))
"""
"""The tables that are wider than their page."""


@pytest.mark.rest
@pytest.mark.usefixtures("week")
def test_a_backfill_is_made_from_the_page(stack: Stack, page: Page) -> None:
    """In Airflow's tab: the day's link leads to what a backfill would do, its button makes it."""
    page.goto(f"{stack.airflow.url}/dags/{VISITS}/plugin/semel-days")
    frame = page.frame_locator("iframe")
    frame.locator("input[name=from]").fill("2026-11-01")
    frame.locator("input[name=to]").fill("2026-11-07")
    frame.get_by_role("button", name="Show").click()
    frame.locator("#d20261104").get_by_role("link", name="backfill").click()
    expect(frame.get_by_role("heading", level=1)).to_have_text("visits: backfill 2026-11-04")
    expect(frame.locator("main")).to_contain_text("1 run, with the logical date 2026-11-04")
    frame.get_by_role("button", name="Backfill").click()
    expect(frame.get_by_role("heading", level=1)).to_have_text("visits: the backfill has started")
    [made] = stack.airflow.call("GET", f"/api/v2/backfills?dag_id={VISITS}")["backfills"]
    stack.airflow.end_backfill(made["id"])
    assert made["from_date"] == "2026-11-04T00:00:00Z"
    assert made["reprocess_behavior"] == "completed"


@pytest.mark.rest
@pytest.mark.usefixtures("week")
def test_a_file_is_accepted_on_the_page(stack: Stack, page: Page) -> None:
    """A file that was written anew: from its reason to what accepting it does, to accepted, and the
    next run reads it.
    """
    path = stack.write("visits/visits-2026-11-02.jsonl", events(500, 505))
    page.goto(f"{stack.airflow.url}/semel/dags/{VISITS}/refused")
    keep(page, "refused")
    section = page.locator("section", has_text=path.name)
    section.get_by_role("button", name="What would this do?").click()
    expect(page.get_by_role("listitem").first).to_contain_text("new generation")
    keep(page, "accept")
    page.get_by_role("button", name="Accept the file").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("visits: the file is accepted")
    page.get_by_role("link", name="The refused files").click()
    expect(page.get_by_text("would not refuse any file now")).to_be_visible()
    code, _, said = stack.call("run", VISITS, "--interval", "2026-11-02", "2026-11-03")
    assert code == 0, said


@pytest.mark.rest
@pytest.mark.usefixtures("week")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 800, 390])
def test_the_pages_fit_and_can_be_read(
    stack: Stack, browser: Browser, width: int, scheme: str
) -> None:
    """No page is wider than its window, and no table is cut; what is dark is dark; Tab goes through
    the links.
    """
    with window(browser, width=width, scheme=scheme) as context:
        log_in(context, stack)
        page = context.new_page()
        [[batch]] = stack.query(
            "SELECT max(batch_id) FROM semel.batch AS b JOIN semel.pipeline AS p "
            "USING (pipeline_id) WHERE p.name = %s", VISITS
        )  # fmt: skip
        of_batch = f"dags/{VISITS}/batches/{batch}"
        pages = PAGES | {"batch": of_batch, "rows": f"{of_batch}/rows"}
        for name, path in pages.items():
            page.goto(f"{stack.airflow.url}/semel/{path}")
            keep(page, f"{name}-{scheme}-{width}")
            over = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert over <= 0, f"{name} is {over} pixels wider than its window"
            cut = page.evaluate(CUT)
            assert cut == [], f"{name} cuts these tables at {width} pixels: {cut}"
            back = page.evaluate("getComputedStyle(document.body).backgroundColor")
            red = int(re.findall(r"\d+", back)[0])
            assert (red < 64) == (scheme == "dark"), back
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.tagName") == "A"


def _watch(page: Page, url: str) -> list[str]:
    """What the page asks of other hosts than Airflow's."""
    found: list[str] = []
    own = (url, f"blob:{url}", "data:")
    page.on("request", lambda r: None if r.url.startswith(own) else found.append(r.url))
    return found
