"""The page's other parts: header, key figures, timeline, plans, data accounting, warm start, commands, words.

Each answers one question and has a sentence that says the answer with its numbers; a chart or table below is evidence.
Where a record does not know a number there is a dash, and where a part would be empty it says why.
"""

from __future__ import annotations

from statistics import median

from trimtab.core.domain.job import JobState
from trimtab.core.domain.records import JobRecord
from trimtab.core.report import measures, sentences
from trimtab.core.report.data import event_kind, reproduce, shown_events
from trimtab.core.report.markup import ICONS, LOGO, THEME, chart, command, details, empty, esc, legend, panel, table
from trimtab.core.report.words import (
    NO_BREAK,
    THIN,
    UNKNOWN,
    age,
    clock,
    cores,
    exact_duration,
    gib,
    known,
    money,
    percent,
    plan_text,
    plural,
    samples,
    whole,
)  # fmt: skip

_CHIPS = {JobState.FINISHED: ("good", "ok", "Finished"), JobState.RUNNING: ("mute", "dot", "Training"),
          JobState.STOPPED: ("warn", "no", "Stopped"), JobState.FAILED: ("bad", "no", "Failed")}  # fmt: skip
_EVENTS = {"straggler": "straggler", "hot_ps": "hot PS", "memory": "memory", "crash": "lost", "recovery": "recovered",
           "note": "note"}  # fmt: skip
_MOST_ROWS = 40  # of the folded table of throughput
_LEAST_POINTS = 3  # fewer than this make no line
_WORDS = (
    (f"Predicted, 80{THIN}% range", "The speed model expects the measured value inside this range 8 times out of 10."),
    ("Plan", "Workers × cores of each + PSs × cores of each, with the memory of each."),
    ("Parameter server (PS)", "Holds a share of the embedding tables; workers pull rows from it and push gradients."),
    ("Switch", "Time from the decision until all of the new plan takes part. Training goes on meanwhile."),
    ("Held", "A change was considered and not made."),
    ("Probe", "A small step made to learn what the measurements could not tell."),
)


def head(record: JobRecord, data: dict[str, object]) -> str:
    """Bar, state, the outcome in one sentence, and what was trained on what."""
    job = data["job"]
    assert isinstance(job, dict)
    tone, icon, word = _CHIPS[record.state]
    ended = job["ended_at"]
    time = str(job["started_at"]).replace("T", " ").removesuffix("Z")
    when = f"{esc(time)} UTC"
    if ended:
        label = f"ended {str(ended)[11:16]} UTC"
        when += f' (<time datetime="{esc(ended)}" data-rel title="{esc(ended)}">{esc(label)}</time>)'
    limits = record.limits
    caps = [f"{cores(limits.cpu)} cores"] if limits.cpu is not None else []
    caps += [gib(limits.memory_bytes)] if limits.memory_bytes is not None else []
    caps += [plural(limits.workers, "worker")] if limits.workers is not None else []
    caps += [plural(limits.ps, "PS")] if limits.ps is not None else []
    auc, loss = known(record.figures.get("auc")), known(record.figures.get("log_loss"))
    quality = [] if auc is None else [f"AUC {auc:.4f}"]
    quality += [] if loss is None else [f"log loss {loss:.4f}"]
    meta = [
        ("Model", esc(job["model"])), ("Data", esc(job["dataset"])), ("Run", esc(record.run_id)),
        ("Limits", esc(", ".join(caps))), ("Objective", esc(f"{job['objective']}, mode {job['mode']}")),
        ("Held-out rows", esc(", ".join(quality))), ("Time", when),
    ]  # fmt: skip
    listed = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in meta if value)
    return (
        f'<div class="bar"><span class="logo">{LOGO}trimtab</span><span class="hide">Job report</span>'
        f'<span class="sp"></span>{THEME}</div><header class="head"><div class="job"><span class="chip {tone}">'
        f'{ICONS[icon]}{word}</span><span class="name">{esc(record.job_name)}</span></div>'
        f'<h1>{esc(sentences.outcome(record))}</h1><p class="take" style="font-size:15px;line-height:22px;'
        f'margin-top:8px;max-width:none">{esc(sentences.accounting(record))}</p><dl class="meta">{listed}</dl></header>'
    )


def key_figures(record: JobRecord) -> str:
    """Six numbers, each with one line below it."""
    currency, spans = record.prices.currency, measures.plan_spans(record)
    figures = record.figures
    hours = measures.core_hours(record)
    first = measures.span_throughput(record, spans[0]) if spans else None
    last = measures.span_throughput(record, spans[-1]) if spans else None
    changed = len(spans) > 1
    held = sum(one.kind == "hold" for one in record.decisions)
    wait = known(figures.get("max_worker_gap_seconds"))
    left, doubled = sentences.batches_left(record), known(figures.get("batches_duplicated"))
    lost = left if record.state is JobState.FINISHED else 0.0
    wrong = None if lost is None or doubled is None else lost + doubled
    trained = sentences.trained(record)
    tiles = [
        ("Run time", exact_duration(measures.length_seconds(record)), "",
         "" if trained == UNKNOWN else f"{trained} of the batches"),
        ("Cost", money(measures.cost(record), currency), "",
         f"{UNKNOWN if hours is None else f'{hours:.2g}'} core-hours given"),
        ("Throughput, mean", samples(measures.mean_throughput(record)), "samples/s",
         f"{samples(first)} with the first plan, {samples(last)} with the last" if changed else "one plan throughout"),
        ("Plan changes", whole(max(0, len(record.plans) - 1)), "",
         f"and {plural(held, 'time')} held"
         + ("" if wait is None else f"; longest wait of a worker {wait:.2f}{NO_BREAK}s")),
        ("Predictions", *_predictions(record)),
        ("Batches lost or repeated", whole(wrong), "", f"of {whole(figures.get('batches_expected'))}"),
    ]  # fmt: skip
    return '<dl class="kf">' + "".join(
        f'<div><dt>{esc(name)}</dt><dd class="v">{esc(value)}{f"<i>{unit}</i>" if unit else ""}</dd>'
        f'<dd class="d">{esc(text)}</dd></div>'
        for name, value, unit, text in tiles
    ) + "</dl>"  # fmt: skip


def _predictions(record: JobRecord) -> tuple[str, str, str]:
    checked = [one for one in record.decisions if measures.verdict(one) is not None]
    if not checked:
        return UNKNOWN, "", "none could be checked"
    inside = sum(measures.verdict(one) == "inside" for one in checked)
    errors = [
        abs(measured / one.predicted.middle - 1)
        for one in checked
        if one.predicted is not None and known(one.predicted.middle) and (measured := known(one.measured)) is not None
    ]
    error = f"; median error {percent(median(errors), 1)}" if errors else ""
    return f"{inside} of {len(checked)}", "", f"inside the 80{THIN}% range{error}"


def timeline(record: JobRecord) -> str:
    """Throughput over time with plan steps, predictions, decisions and events."""
    sentence = sentences.timeline(record)
    points = [one for one in measures.measured(record) if one[1] is not None]
    if len(points) < _LEAST_POINTS:
        running = record.state is JobState.RUNNING
        text = "The job has just begun." if running else "The job ended before its speed settled."
        return panel("Throughput and plan", "", empty("Too short to measure", text) + _numbers(record))
    kinds = {event_kind(one) for one in shown_events(record)}
    marks = [("change", "plan changed"), ("hold", "held or advised")]
    marks += [("stop", "stopped")] if any(one.kind == "stop" for one in record.decisions) else []
    marks += [(kind, word) for kind, word in _EVENTS.items() if kind in kinds]
    lines = [("measured", "measured"), ("predicted", f"predicted, 80{THIN}% range"), ("plan", "plan")]
    if record.decisions:
        sentence += " Select a number for the reasons."
    over = legend(lines) + legend(marks if record.decisions else marks[2:], second=True)
    return panel("Throughput and plan", sentence, chart("timeline", sentence) + _numbers(record), over)


def _numbers(record: JobRecord) -> str:
    points = measures.measured(record)
    spans = measures.prediction_spans(record)
    step = max(1, -(-len(points) // _MOST_ROWS))
    rows = []
    for time, value in points[::step]:
        made = next((one.range for one in spans if one.start <= time < one.end), None)
        rows.append((clock(time), whole(value), UNKNOWN if made is None else whole(made.middle)))
    found = details("throughput", table(("Time", "Measured, samples/s", "Predicted"), rows)) if rows else ""
    events = [(clock(one.time_seconds), one.kind.replace("_", " "), one.text) for one in shown_events(record)]
    return found + (details("events", table(("Time", "Event", "What"), events, (0, 1, 2))) if events else "")


def plans(record: JobRecord) -> str:
    """Every plan that was in force, how fast it was and what it cost."""
    spans = measures.plan_spans(record)
    if not spans:
        return panel("Plans", "", empty("No plan yet", "The job has not started its pods."))
    top = ("Cores", "Memory per worker, PS", "Samples/s", "Cost per hour")
    rows = []
    for one in spans:
        plan = one.change.plan
        cells = (
            cores(plan.cpu), f"{gib(plan.worker.memory_bytes)}, {gib(plan.ps.memory_bytes)}",
            samples(measures.span_throughput(record, one)), money(record.prices.per_hour(plan), record.prices.currency),
        )  # fmt: skip
        rows.append(
            f'<tr><td class="nw">{clock(one.start)}</td><td style="font-weight:600">{esc(plan_text(plan))}</td>'
            + "".join(f'<td class="r" data-l="{name}">{esc(cell)}</td>' for name, cell in zip(top, cells, strict=True))
            + "</tr>"
        )
    named = "".join(f'<th class="r">{name}</th>' for name in top)
    body = (
        f'<table class="t rs plans"><thead><tr><th>From</th><th>Workers × cores + PSs × cores</th>{named}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    final = spans[-1].change.plan
    word = "so far" if record.state is JobState.RUNNING else "in the end"
    sentence = f"{plural(len(spans), 'plan')}; {word} {plan_text(final)}."
    return panel("Plans", sentence, body)


def data_accounting(record: JobRecord) -> str:
    """Expected, applied, skipped, repeated, and what is missing or left."""
    figures = record.figures
    share = sentences.trained_share(record)
    last = "Missing" if record.state is JobState.FINISHED else "Left"
    cells = [
        ("Batches expected", figures.get("batches_expected")), ("Applied", figures.get("batches_applied")),
        ("Skipped", figures.get("batches_skipped")), (last, sentences.batches_left(record)),
        ("Repeated", figures.get("batches_duplicated")), ("Rows applied", figures.get("rows_applied")),
    ]  # fmt: skip
    grid = "".join(f"<div><dt>{name}</dt><dd>{esc(whole(value))}</dd></div>" for name, value in cells)
    bar = "" if share is None else (
        f'<div class="accbar" role="img" aria-label="{percent(share)} of the batches done">'
        f'<i style="width:{100 * share:.2f}%"></i></div>'
    )  # fmt: skip
    batch = record.tags.get("batch_size", "")
    size = f"One batch is {batch} rows (the last of an epoch may be smaller). " if batch.isdigit() else ""
    note = f'<p class="s">{esc(size)}Counted in the copies that the parameter servers wrote.</p>'
    body = f'<div class="acc">{bar}<dl class="eq e3">{grid}</dl>{note}</div>'
    return panel("Data accounting", sentences.data(record), body)


def warm_start(record: JobRecord) -> str:
    """The past runs that the first plan rests on, and how far the last plan is from it."""
    found, spans = record.warm_start, measures.plan_spans(record)
    parts = []
    if found is not None and found.runs:
        top = '<th>Past run, and the plan that it ended with</th><th class="r">Alike</th><th class="r">Weight</th>'
        rows = "".join(
            f"<tr><td>{esc(one.run_id)}<br><small>{esc(plan_text(one.plan))}, {esc(age(one.age_seconds))}</small></td>"
            f'<td class="r">{_share(one.similarity)}</td>'
            f'<td class="r nw">{percent(one.weight)}</td></tr>'
            for one in found.runs
        )
        parts.append(f'<table class="t"><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table>')
    else:
        parts.append(empty("No similar past run", "This run will serve the next job as a start."))
    if found is not None and found.floors:
        parts.append(f'<p class="s" style="margin-top:8px">{esc("; ".join(found.floors))}</p>')
    if spans:
        first, last = spans[0].change.plan, spans[-1].change.plan
        pairs = [
            ("Workers", whole(first.worker.replicas), whole(last.worker.replicas)),
            ("PSs", whole(first.ps.replicas), whole(last.ps.replicas)),
            ("Cores per worker", cores(first.worker.cpu), cores(last.worker.cpu)),
            ("Cores per PS", cores(first.ps.cpu), cores(last.ps.cpu)),
            ("Memory per PS", gib(first.ps.memory_bytes), gib(last.ps.memory_bytes)),
        ]
        end = "Now" if record.state is JobState.RUNNING else "End"
        parts.append(f'<div style="margin-top:12px">{table(("First and last plan", "Start", end), pairs)}</div>')
    return panel("Warm start", sentences.warm_start(record), "".join(parts))


def _share(value: float) -> str:
    found = known(value)
    return UNKNOWN if found is None else f"{found:.2f}"


def commands(record: JobRecord) -> str:
    """How to run it again, and how to read its decisions in a terminal."""
    prices = record.prices
    note = "" if record.asked else "DATA is the path of the rows. "
    note += (
        f"Prices: {money(prices.core_hour, prices.currency)} per core-hour, "
        f"{money(prices.gib_hour, prices.currency)} per GiB-hour."
    )
    body = "".join(map(command, reproduce(record))) + f'<p class="s" style="margin-top:10px">{esc(note)}</p>'
    text = "The first command runs the job again, from what this run taught; the second tells its decisions as text."
    return panel("Reproduce", text, body)


def words() -> str:
    """What the page's words mean."""
    listed = "".join(f"<div><dt>{esc(name)}</dt><dd>{esc(text)}</dd></div>" for name, text in _WORDS)
    return (
        '<section class="panel" style="margin-top:16px"><header><h2>Words used here</h2></header>'
        f'<dl class="gloss">{listed}</dl></section>'
    )


def foot(data: dict[str, object]) -> str:
    """Versions, and the moment of which the page tells."""
    job = data["job"]
    assert isinstance(job, dict)
    made = str(data["generated_at"]).replace("T", " ").removesuffix("Z")
    charts = "Charts: Apache ECharts 6.1.0 (Apache-2.0)"
    parts = (f"trimtab {job['version']}", str(data["schema"]), f"as of {made} UTC", charts)
    return "<footer>" + "".join(f"<span>{esc(one)}</span>" for one in parts) + "</footer>"
