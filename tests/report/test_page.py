"""The pages in a real browser: they open from a file, draw, answer mouse and keyboard, and log no error."""

import json
import math
import re
import shutil

import pytest

from dagc.folder import to_toml
from dagc.report import Panel, Series, read_run, write_report
from dagc.text import in_bytes
from dagc.training import Config, train

BROWSER, DRIVER = shutil.which("chromium") or shutil.which("chromium-browser"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="Chromium is not here: apt-get install chromium chromium-driver"
)
OFFLINE = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page with three settings: three methods with two seeds each, thresholds, and a run of Flower."""
    folder = tmp_path_factory.mktemp("page")

    def series(label, method, **fields):
        runs = []
        for seed in (0, 1):
            config = Config(task="logistic@digits", method=method, rounds=30, seed=seed, **fields)
            path = folder / f"{method}-{seed}"
            train(config, path)
            runs.append(read_run(path))
        return Series(label, tuple(runs))

    dense = series("dense", "none")
    ours, theirs = series("ours", "dagc-r", ratio=0.02), series("theirs <b>", "top-k", ratio=0.02)
    wide = "by ratio, with a title that is wider than a phone"
    first = Panel(wide, (ours, theirs, dense), (0.5, 0.6))
    second = Panel("by threshold", (series("level", "dagc-a", threshold=0.01), dense))
    third = Panel("by Flower", (Series("far away", (flower(folder / "flower"),)),))
    return write_report([first, second, third], folder / "report", "A page", "dagc report")


def flower(path):
    """The folder of a Flower run, without labels, with names, and with an evaluation that failed."""
    path.mkdir()
    settings = {"engine": "flower", "task": "far", "strategy": "FedAvg", "rounds": 9, "method": "top-k", "ratio": 0.1}
    (path / "config.toml").write_text(to_toml(settings))
    names = ["harbour", "<b>buoy</b>", "a village with a very long name"]
    clients = {"sizes": [900, 30, 7], "names": names, "parameters": 100, "first_parameters": [10, 10, None]}
    (path / "clients.json").write_text(json.dumps(clients))
    with (path / "metrics.jsonl").open("w") as file:
        for number, accuracy in enumerate([0.3, math.nan, 0.5], 1):
            sent = {"entries": 20, "bytes_up": 90 * number, "bytes_down": 2100 + 400 * number, "seconds": float(number)}
            file.write(json.dumps({"round": number, "score": accuracy, **sent}) + "\n")
    return read_run(path)


@pytest.fixture(scope="module")
def browser():
    """Chromium, without a window and without a network."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in OFFLINE:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(browser, report):
    """The page, just opened on a desktop; whatever a test does, nothing may be logged."""
    size(browser, 1200)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.get(report.as_uri())
    wait_until_drawn(browser)
    yield browser
    assert browser.get_log("browser") == []


def wait_until_drawn(browser):
    """Pictures are drawn when the browser knows how wide they are."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(lambda page: find(page, "#shares svg"))


def size(browser, width):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def find(page, selector):
    return page.find_elements("css selector", selector)


def text(page, selector):
    return page.execute_script("return document.querySelector(arguments[0]).textContent", selector)


def keys(page, *names):
    from selenium.webdriver import ActionChains

    chain = ActionChains(page)
    for name in names:
        chain.send_keys(name)
    chain.perform()


def test_it_draws_everything(page):
    assert text(page, "h1") == "A page"
    assert [line.get_attribute("data-series") for line in find(page, "#plot polyline")] == [
        "ours",
        "theirs <b>",
        "dense",
    ]
    assert len(find(page, "#plot polygon")) == 3  # the seeds as bands
    assert len(find(page, "#shares circle")) == 20  # ten clients, two methods; dense has no ratio
    assert len(find(page, "table tbody tr")) == 6 + 3
    assert "far away: stopped after round 3 of 9" in text(page, ".notes")


@pytest.mark.parametrize(
    ("axis", "words", "logarithmic"),
    [("bytes_up", "bytes up", True), ("rounds", "rounds", False), ("seconds", "seconds on", False)],
)
def test_axes_switch(page, axis, words, logarithmic):
    before = find(page, "#plot polyline")[0].get_attribute("points")
    assert find(page, "input[value=bytes_total]")[0].is_selected()
    find(page, f"input[value={axis}] + span")[0].click()
    assert find(page, "#plot polyline")[0].get_attribute("points") != before
    assert words in text(page, "#plot svg")
    assert find(page, f"input[value={axis}]")[0].is_selected()
    assert find(page, "#log")[0].is_selected() is logarithmic
    find(page, "input[value=bytes_total] + span")[0].click()
    assert find(page, "#plot polyline")[0].get_attribute("points") == before


def test_it_opens_on_total_bytes_on_a_logarithmic_axis(page):
    assert "total bytes, up and down" in text(page, "#plot svg")
    assert find(page, "#log")[0].is_selected()
    ends = [line.get_attribute("points").split()[-1].split(",")[0] for line in find(page, "#plot polyline")]
    script = "return JSON.parse(document.getElementById('data').textContent).panels[0].series.map(s => s.curve)"
    curves = page.execute_script(script)
    for curve in curves:
        both = zip(curve["bytes_up"], curve["bytes_down"], strict=True)
        assert curve["bytes_total"] == pytest.approx([up + down for up, down in both], rel=1e-5)
    (low, _, dense), first = map(float, ends), math.log(min(curve["bytes_total"][0] for curve in curves))
    ours, most = (math.log(curves[place]["bytes_total"][-1]) for place in (0, 2))
    left = 46  # where the axis begins
    assert (low - left) / (dense - left) == pytest.approx((ours - first) / (most - first), abs=0.01)


@pytest.mark.parametrize("width", [360, 1200])
def test_a_narrow_range_has_ticks(page, width):
    """All of the third setting is between 2.59 and 3.57 kB, where there is no 1, 2 or 5."""
    size(page, width)
    page.refresh()
    wait_until_drawn(page)
    page.execute_script("const s = document.getElementById('panel'); s.value = 2; s.dispatchEvent(new Event('change'))")
    ticks = [element.text for element in find(page, "#plot svg > text") if element.text.endswith("B")]
    assert len(ticks) >= 2


def test_who_may_send_has_a_legend_and_no_marker_hides_another(page):
    assert [key.text for key in find(page, "#shares-legend > span")] == ["ours", "theirs <b>"]
    assert len(find(page, "#shares-legend line")) == 2
    assert "ratio of the model's entries sent" in text(page, "#shares svg")
    rings = find(page, "#shares circle")
    assert {ring.get_attribute("fill") for ring in rings} == {"transparent"}
    assert {ring.get_attribute("r") for ring in rings[:10]}.isdisjoint(ring.get_attribute("r") for ring in rings[10:])


@pytest.mark.parametrize("axis", ["bytes_total", "bytes_up", "rounds", "seconds"])
def test_no_line_leaves_the_chart(page, axis):
    find(page, f"input[value={axis}] + span")[0].click()
    clip = find(page, "#clip rect")[0]
    left, top, wide, high = (float(clip.get_attribute(name)) for name in ("x", "y", "width", "height"))
    for line in find(page, "#plot polyline, #plot polygon"):
        for point in line.get_attribute("points").replace(",", " ").split()[::2]:
            assert left <= float(point) <= left + wide
        for point in line.get_attribute("points").replace(",", " ").split()[1::2]:
            assert top <= float(point) <= top + high


def test_the_script_writes_bytes_as_python_does(page):
    amounts = [0, 1, 999, 1000, 1500, 9_996, 31_415, 999_600, 5_101_000, 2.5e9, 3e12]
    words = page.execute_script("return arguments[0].map((amount) => inUnits(amount, 'bytes'))", amounts)
    assert words == [re.sub(r"\.0+ |(?<=\.\d)0 ", " ", in_bytes(amount)) for amount in amounts]


def test_a_wide_table_scrolls_on_a_phone_and_keeps_the_methods_in_sight(page):
    size(page, 380)
    page.refresh()
    wait_until_drawn(page)
    wide = "const s = document.querySelector('.scroll'); return [s.scrollWidth, s.clientWidth, innerWidth]"
    inside, outside, screen = page.execute_script(wide)
    assert inside > outside < screen
    name = "return document.querySelectorAll('.scroll tbody tr')[1].firstChild.getBoundingClientRect().left"
    before = page.execute_script(name)
    page.execute_script("document.querySelector('.scroll').scrollLeft = 1000")
    assert page.execute_script("return document.querySelector('.scroll').scrollLeft") == inside - outside
    assert page.execute_script(name) == before
    last = "return [...document.querySelectorAll('.scroll td')].at(-1).getBoundingClientRect().right"
    assert page.execute_script(last) <= screen


def test_methods_and_settings_switch(page):
    button = find(page, "#legend button")[1]
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert len(find(page, "#plot polyline")) == 2
    for other in (find(page, "#legend button")[0], find(page, "#legend button")[2]):
        other.click()
    assert "Nothing to show" in text(page, "#plot svg")
    page.execute_script("const s = document.getElementById('panel'); s.value = 1; s.dispatchEvent(new Event('change'))")
    assert text(page, "#legend button span") == "level"
    assert "threshold" in text(page, "#shares svg")
    assert len(find(page, "#plot polyline")) == 1  # dense is still hidden


def test_a_run_of_flower_shows_names(page):
    page.execute_script("const s = document.getElementById('panel'); s.value = 2; s.dispatchEvent(new Event('change'))")
    assert len(find(page, "#shares circle")) == 2  # nothing is known about the third
    assert "client harbour" in text(page, "#shares circle:nth-of-type(2) title")
    assert "seed" not in text(page, "#shares-hint")
    points = find(page, "#plot polyline")[0].get_attribute("points").split()
    assert len(points) == 2  # without the one that is not a number


def test_without_a_mouse(page):
    from selenium.webdriver.common.keys import Keys

    page.execute_script("document.getElementById('plot').focus()")
    keys(page, Keys.END)
    assert text(page, "#readout").startswith("1.56 MB in total: dense ")
    assert "theirs <b> " in text(page, "#readout")
    at_end = text(page, "#readout")
    keys(page, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert text(page, "#readout") != at_end
    assert find(page, ".tip")
    keys(page, Keys.ESCAPE)
    assert not find(page, ".tip")
    page.execute_script("document.querySelector('#legend button').focus()")
    keys(page, Keys.SPACE)
    assert find(page, "#legend button")[0].get_attribute("aria-pressed") == "false"
    page.execute_script("document.querySelector('input[name=axis]').focus()")
    keys(page, Keys.ARROW_RIGHT)
    assert "bytes up" in text(page, "#plot svg")
    focusable = "a[href], button, select, input, summary, [tabindex='0']"
    assert all(element.get_attribute("tabindex") != "-1" for element in find(page, focusable))


def test_hovering_reads_values(page):
    from selenium.webdriver import ActionChains

    plot = find(page, "#plot")[0]
    ActionChains(page).move_to_element(plot).perform()
    tip = text(page, ".tip")
    assert "in total" in tip
    assert tip.count("%") == 3


@pytest.mark.parametrize("width", [360, 768, 1200])
def test_nothing_is_wider_than_the_screen(page, width):
    size(page, width)
    page.refresh()
    wait_until_drawn(page)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert page.execute_script("return document.querySelector('#plot svg').clientWidth") > 0.7 * min(width, 1000)
    assert len(find(page, "#plot polyline")) == 3


def test_the_deciding_column_is_on_a_phones_screen_and_all_of_them_on_paper(browser, report):
    names = {
        "none": "no compression",
        "dagc-r": "dagc-r, ratio 2 %, values sign",
        "top-k": "top-k, ratio 2 %, raw frames",
    }
    series = [Series(label, (read_run(report.parent.parent / f"{name}-0"),)) for name, label in names.items()]
    panel = Panel("one", tuple(series), (0.4, 0.5, 0.6, 0.7))
    path = write_report([panel], report.parent.parent / "four", "A page", "dagc report")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    size(browser, 390)
    browser.get(path.as_uri())
    wait_until_drawn(browser)
    right = "return document.querySelector('.scroll tbody td').getBoundingClientRect().right"
    assert find(browser, ".scroll thead th")[1].text == "Total to 40 %"
    assert browser.execute_script(right) <= 390
    size(browser, 680)  # a sheet of paper between its margins
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    widest = "return document.querySelector('.scroll table').getBoundingClientRect().right"
    assert browser.execute_script(widest) <= 680
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_dark_mode_is_dark_and_readable(page):
    def colors():
        script = "const s = getComputedStyle(document.body); return JSON.stringify([s.backgroundColor, s.color])"
        pairs = json.loads(page.execute_script(script))
        return [sum(int(part) for part in color[4:-1].split(",")) for color in pairs]

    light_back, light_ink = colors()
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    dark_back, dark_ink = colors()
    assert light_back - light_ink > 400
    assert dark_ink - dark_back > 400
