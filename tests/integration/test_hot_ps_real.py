"""A real parameter server on a host that becomes busy: another one takes its place while training goes on, exactly."""

import json
import signal
import threading
from contextlib import contextmanager, suppress
from functools import partial

import psutil
import pytest
from jobs import PS, audit, pods_of

from trimtab.core.controller import running
from trimtab.core.controller.run import train
from trimtab.core.domain.job import JobSpec, JobState, Mode
from trimtab.core.domain.plan import Limits
from trimtab.core.optimizer.stability.hot_ps import HotRules

RULES = HotRules(sample_seconds=0.4, batches=3, least_seconds=0.0)
EPOCHS = 12


@contextmanager
def busy_host(run_seconds=0.003, stop_seconds=0.057):
    """What is put into the list is stopped most of the time, as on a host whose cores others use, until it ends."""
    over, victims = threading.Event(), []

    def press():
        while not over.wait(stop_seconds if victims else 0.05):
            for victim in tuple(victims):
                with suppress(psutil.Error):
                    victim.send_signal(signal.SIGCONT)
                over.wait(run_seconds)
                try:
                    victim.send_signal(signal.SIGSTOP)
                except psutil.Error:
                    victims.remove(victim)
        for victim in victims:
            with suppress(psutil.Error):
                victim.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield victims
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_a_server_whose_host_is_busy_is_replaced_while_it_trains_and_nothing_is_lost(sample, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "Settings", partial(running.Settings, hot=RULES))
    spec = JobSpec(
        str(sample), model="audit_model:build", epochs=EPOCHS, batch_size=64, job_dir=str(tmp_path / "job"), seed=3,
        workers=1, ps=2, mode=Mode.FIXED, limits=Limits(ps=3),
    )  # fmt: skip
    with busy_host() as victims:
        pressed = []

        def look(progress):
            servers = pods_of(PS) if not pressed and progress.batches_done > 100 else []
            named = [one for one in servers if any("/pods/ps-0-" in word for word in one.cmdline())]
            if named:
                pressed.append(named[0])
                victims.append(named[0])

        result = train(spec, progress=look)
    assert result.state is JobState.FINISHED, result.error
    assert result.batches_expected == result.batches_applied == audit(result, epochs=EPOCHS).batches
    assert result.batches_duplicated == result.resends_dropped == 0
    assert pods_of("trimtab.core") == []
    told = [json.loads(line) for line in (tmp_path / "job" / "events.jsonl").read_text().splitlines()]
    texts = [one["text"] for one in told if one["kind"] == "hot_ps"]
    assert any("ps-0-t1-g1 is late" in text for text in texts), "\n".join(texts)
    assert any("ps-2-t1-g1 takes over from PS 0: all its vshards move" in text for text in texts), "\n".join(texts)
    left = [one["text"] for one in told if one["kind"] == "pod_left"]
    assert any(text.startswith("ps-0-t1-g1 has nothing left to do") for text in left), left
