"""The report page: one file that needs no network, no server and no script to be read.

All text is HTML made here; the script only draws the chart and shows one decision at a time. A policy in the head
forbids every request, so that a page that is opened from a mail or in MLflow's frame tells nobody. It is written beside
its place and renamed, so that whoever opens it while a job still runs sees a whole page.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path

from trimtab.core.domain.records import JobRecord
from trimtab.core.report import cards, panels
from trimtab.core.report.data import report_data
from trimtab.core.report.front_panel import front_at_start
from trimtab.core.report.markup import esc
from trimtab.core.report.whole_file import write_whole

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_START = "TT.chrome(document.body);TT.report(document.body,JSON.parse(document.getElementById('tt-data').textContent));"


def page(record: JobRecord) -> str:
    """The whole page of `record` as HTML."""
    data = report_data(record)
    # "<" would end the element or begin a comment in it, whatever a job or a log says.
    inline = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    main = (
        f'<div class="cols eqh">{panels.timeline(record)}{cards.rail(record)}</div>'
        f'<div class="cols"><div class="stack">{panels.plans(record)}{front_at_start(record)}'
        f"{panels.data_accounting(record)}{panels.commands(record)}</div>"
        f'<aside class="stack side">{panels.warm_start(record)}</aside></div>'
        f"{cards.everything(record)}{panels.words()}"
    )
    body = (
        f'<div class="page">{panels.head(record, data)}{panels.key_figures(record)}<main>{main}</main>'
        f"{panels.foot(data)}</div>"
        '<noscript><p style="padding:12px 24px">The chart needs scripts; all numbers and decisions are above in text.'
        "</p></noscript>"
    )
    title = f"{record.job_name}: {record.state} · trimtab"
    return (
        '<!doctype html><html lang="en" class="nojs"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<script>document.documentElement.className=""</script>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="data:,"><title>{esc(title)}</title><style>{_static("trimtab.css")}</style></head>'
        f'<body class="tt">{body}<script type="application/json" id="tt-data">{inline}</script>'
        f"<script>{_library()}</script><script>{_static('trimtab-ui.js')}</script><script>{_START}</script></body></html>"
    )


def write_page(record: JobRecord, path: Path) -> None:
    """Write the report of `record` to `path`, replacing an earlier one at once (raises OSError)."""
    whole = page(record).encode("utf-8", "replace")
    write_whole(path, lambda beside: beside.write_bytes(whole))


@cache
def _static(name: str) -> str:
    return files("trimtab.core.report").joinpath("static", name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """ECharts with what its licence asks for: the notice travels with every page."""
    notice = " ".join(_static("echarts.NOTICE.txt").split())
    code = _static("echarts.trimtab.min.js").replace("</", "<\\/")
    licence = f"Apache ECharts 6.1.0, reduced build, Apache-2.0. {notice} Includes zrender and parts of d3, BSD-3."
    return f"/* {licence} */\n{code}"
