"""The page in a real Chromium: the chart is drawn, buttons work, nothing is wider than the screen, no complaint.

A few lines that press buttons and write down what they see are put at a page's end; the browser then prints the page as
it stands. The page's own policy forbids every request, so a broken promise would be a complaint on the console.
"""

import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import report_records

from trimtab.core.domain.records import Decision
from trimtab.core.report.page import page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage",
         "--disable-extensions", "--no-first-run", "--enable-logging=stderr", "--virtual-time-budget=3000")  # fmt: skip
TIMEOUT_SECONDS = 120  # against hanging only
LOOK = """
<script>
window.addEventListener('load', function () { setTimeout(function () {
  var seen = {errors: []}, body = document.body;
  var all = function (s) { return [].slice.call(body.querySelectorAll(s)); };
  var shown = function (x) { return !x.hidden; }, number = function (x) { return +x.dataset.n; };
  var card = function () { return all('.card').filter(shown).map(number); };
  var tiny = function (x) { var r = x.getBoundingClientRect(); return r.width < 24 || r.height < 24; };
  var fits = function () { return document.documentElement.scrollWidth <= document.documentElement.clientWidth; };
  try { %s } catch (e) { seen.errors.push(String(e)); }
  var out = document.createElement('pre'); out.id = 'seen'; out.textContent = JSON.stringify(seen);
  body.appendChild(out);
  if (parent !== window) parent.postMessage(JSON.stringify(seen), '*');
}, 300); });
</script></body>"""
DESKTOP = """
  seen.paths = all('[data-chart=timeline] svg path').length;
  seen.first = card();
  seen.marks = all('.mk').map(function (x) { return x.getAttribute('aria-label'); });
  seen.events = all('.ev').map(function (x) { return x.getAttribute('aria-label'); });
  seen.small = all('.mk, .ev').filter(tiny).length;
  all('.mk')[3].click(); seen.clicked = card(); seen.pressed = all('.mk[aria-pressed=true]').length;
  all('[data-go=prev]')[0].click(); seen.before = card(); seen.place = all('[data-pos]')[0].textContent;
  all('.mk')[1].focus(); seen.focus = all('.pop')[0].hidden ? '' : all('.pop')[0].textContent;
  all('[data-theme-set=light]')[0].click(); seen.light = getComputedStyle(body).backgroundColor;
  all('[data-theme-set=dark]')[0].click(); seen.dark = getComputedStyle(body).backgroundColor;
  seen.again = all('[data-chart=timeline] svg path').length; seen.kept = card(); seen.fits = fits();
"""


@pytest.fixture(scope="module")
def browse(require, tmp_path_factory):
    """browse(pages, width) → what the script saw, and the console's complaints."""
    binary = next(filter(None, map(shutil.which, BROWSERS)), None)
    require("browser", binary is not None, f"none of {', '.join(BROWSERS)} is installed")
    folder = tmp_path_factory.mktemp("browser")

    def run(html, width=1280):
        file = folder / "page.html"
        file.write_text(html, encoding="utf-8")
        profile = folder / "profile"
        command = [str(binary), *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},1600", "--dump-dom"]
        done = subprocess.run(
            [*command, file.as_uri()], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout, re.findall(r"CONSOLE.*", done.stderr)

    return run


def seen(dom, name="seen"):
    """What the script wrote down."""
    text = re.search(f'<pre id="{name}">(.*?)</pre>', dom, re.S)
    assert text is not None, "the script did not run to its end"
    return json.loads(text[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))


def looking(record, script):
    return page(record).replace("</body>", LOOK % script)


def test_chart_and_buttons_work(browse):
    dom, complaints = browse(looking(report_records.grown(), DESKTOP))
    found = seen(dom)
    assert complaints == [] and found["errors"] == []
    assert found["paths"] > 20
    assert found["marks"][1] == "Decision 2 at 0:41: Add 1 worker: 1 → 2" and len(found["marks"]) == 5
    assert found["events"] == ["2 events from 1:53"]
    assert found["small"] == 0
    assert found["first"] == [3]  # the one whose prediction did not hold
    assert found["clicked"] == [4] and found["pressed"] == 1
    assert found["before"] == [3] and found["place"] == "Decision 3 of 5"
    assert "Add 1 worker: 1 → 2" in found["focus"] and "predicted 34.8" in found["focus"]
    assert found["light"] == "rgb(245, 246, 248)" and found["dark"] == "rgb(14, 18, 22)"
    assert found["again"] == found["paths"] and found["kept"] == [3]
    assert found["fits"]


def test_a_phone_shows_it_without_scrolling_sideways(browse):
    """In frames of these widths (a headless window has a least width), refused what MLflow's frame refuses."""
    script = (
        "all('[data-copy]')[0].click(); all('[data-theme-set=dark]')[0].click(); seen.dark = body.className;"
        "seen.fits = fits(); seen.width = innerWidth; seen.paths = all('svg path').length;"
    )
    jobs = {f"{name}-{width}": (job, width) for width in (320, 400) for name, job in (
        ("grown", report_records.grown()), ("failed", report_records.failed()), ("begun", report_records.just_begun()),
    )}  # fmt: skip
    frames = "".join(
        f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{_attribute(refused(job, script))}"></iframe>'
        for job, width in jobs.values()
    )
    listen = (
        "<script>var all = []; addEventListener('message', function (e) { all.push(JSON.parse(e.data)); "
        "document.getElementById('seen').textContent = JSON.stringify(all); });</script>"
    )
    dom, complaints = browse(f'<!doctype html><body>{listen}<pre id="seen">[]</pre>{frames}</body>')
    found = seen(dom)
    assert complaints == []
    assert sorted(one["width"] for one in found) == sorted(width for _, width in jobs.values())
    assert all(one["fits"] and one["errors"] == [] and "dark" in one["dark"] for one in found), found


def test_a_crowd_and_hostile_text(browse):
    many = tuple(
        Decision(float(t), "hold" if t % 3 else "grow", report_records.SECOND, "</script><b onload=x()>", t + 1, "<i>")
        for t in range(150)
    )
    job = replace(report_records.grown(), decisions=many, job_name="</title><script>x()</script>")
    script = (
        "var m = all('.mk'); seen.buttons = m.length; seen.numbers = m.map(function (x) { return x.dataset.n; })"
        ".join(' ').split(' ').length; m[m.length - 1].focus(); seen.cards = card();"
        "seen.tags = all('.pop')[0].querySelectorAll('i').length;"
    )
    dom, complaints = browse(looking(job, script))
    found = seen(dom)
    assert complaints == [] and found["errors"] == [] and found["tags"] == 0
    assert found["numbers"] == 150 and 20 < found["buttons"] < 75
    assert found["cards"] == [1]


def test_complaints_and_requests_would_be_noticed(browse):
    script = "console.error('x'); var i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; seen.ok = 1;"
    _, complaints = browse(looking(report_records.just_begun(), script))
    assert any("Content Security Policy" in one for one in complaints) and len(complaints) >= 2


def refused(record, script):
    """The page where storage and clipboard are refused, as in a sandboxed frame."""
    code = (
        "<script>Object.defineProperty(window, 'localStorage', {get: function () { throw new Error('refused'); }});"
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: function () { return Promise.reject(); }}});"
        "</script>"
    )
    return looking(record, script).replace('<meta charset="utf-8">', '<meta charset="utf-8">' + code, 1)


def _attribute(html):
    return html.replace("&", "&amp;").replace('"', "&quot;")
