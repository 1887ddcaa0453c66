"""The worker process: `python -m trimtab.core.training.worker CONFIG.json`.

Its loop is the job's inner loop: take a batch number, read its rows, pull, compute, and push while pulling for the
next one. It decides nothing about the job: what it may do arrives as data shards, and any of its work may be done
again by another. Exit codes as the parameter server's: 0 told to stop, 3 orphaned, 4 a start that can never succeed,
1 a crash.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trimtab.core.clock import Clock, SystemClock
from trimtab.core.data.batches import Batch, BatchReader
from trimtab.core.data.dataset import Dataset
from trimtab.core.data.numbering import numbering_of
from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.model_spec import DENSE, STATE, ModelSpec
from trimtab.core.errors import CorruptCopy, Interrupted, JobFailed, Refused, TrimtabError, WireError
from trimtab.core.ps.client import PsClient
from trimtab.core.ps.rows import Floats
from trimtab.core.ps.sheet import Sheet
from trimtab.core.training.elastic import ElasticModel
from trimtab.core.training.feed import Feed, Task
from trimtab.core.training.load import load_model
from trimtab.core.training.planner import BatchPlanner
from trimtab.core.training.runtime import configure_tensorflow
from trimtab.core.training.step import TrainStep
from trimtab.core.wire.encode import read_json
from trimtab.core.wire.handshake import new_process_id
from trimtab.core.wire.messages import EVALUATE, TRAIN, BatchLoss, BatchScores, WorkerConfig, check_protocol
from trimtab.core.wire.own_log import follow_log
from trimtab.core.wire.private import leave_orphaned
from trimtab.core.wire.secrets import read_secret

log = logging.getLogger(__name__)

STOPPED, ORPHANED, UNUSABLE, FAILED = 0, 3, 4, 1


@dataclass
class _Work:
    """One training batch on its way: pulled, to be computed and pushed."""

    task: Task
    batch: Batch
    sheet: Sheet


class Worker:
    """The loop over batches; everything it needs is handed in, so tests run it in their own process."""

    def __init__(
        self, step: TrainStep, planner: BatchPlanner, reader: BatchReader, client: PsClient, feed: Feed
    ) -> None:
        self._step, self._planner, self._reader = step, planner, reader
        self._client, self._feed = client, feed
        self._trained = False

    def run(self) -> None:
        """Work until told to stop. Raises JobFailed when no repetition would help."""
        work: _Work | None = None
        while not self._feed.stopping.is_set():
            if work is not None:
                work = self._train(work)
                continue
            task = self._take(block=True)
            if task is None:
                return
            if task.grant.kind == TRAIN:
                work = self._prepare(task)
                self._client.exchange(None, work.sheet)
            elif task.grant.kind == EVALUATE:
                self._evaluate(task)
            else:
                self._metrics(task)

    def _take(self, block: bool) -> Task | None:
        """The next batch to compute. One whose gradients are still here is sent again: its loss was reported then."""
        while (task := self._feed.take(block)) is not None:
            if task.grant.kind != TRAIN or not self._client.resend(task.number):
                break
            self._feed.done(task)
        return task

    def _prepare(self, task: Task) -> _Work:
        batch = self._reader.train(task.number)
        return _Work(task, batch, self._planner.sheet(task.number, self._step.ids(batch)))

    def _pulled(self, sheet: Sheet) -> tuple[list[Floats], list[np.ndarray], Floats, Floats | None]:
        """What a step takes of a pulled sheet: rows, places, dense blocks (none: empty), state blocks."""
        planner = self._planner
        dense = planner.blocks(sheet, DENSE)
        held = dense if dense is not None else np.zeros(0, np.float32)
        return planner.rows(sheet), list(sheet.places), held, planner.blocks(sheet, STATE)

    def _train(self, work: _Work) -> _Work | None:
        """Compute and push one batch; returns the next one, already pulled, if there is one."""
        started = time.perf_counter()
        sheet = work.sheet
        result = self._step.train(work.batch, *self._pulled(sheet))
        blocks = {DENSE: result.dense_gradient, STATE: result.state_delta}
        finite = self._planner.put_gradients(sheet, result.row_gradients, blocks) and result.finite
        computed = time.perf_counter()
        task = self._take(block=False)
        following = self._prepare(task) if task is not None else None
        read = time.perf_counter()
        rate = self._step.learning_rate(work.batch.number)
        if not np.isfinite(np.float32(rate)):
            raise JobFailed(f"learning rate of batch {work.batch.number}: {rate}: use a schedule that stays finite")
        self._client.exchange(sheet, following.sheet if following else None, rate, skipped=not finite)
        exchanged = time.perf_counter()
        phases = {"compute": computed - started, "read": read - computed, "exchange": exchanged - read}
        loss = BatchLoss(work.batch.number, result.loss if finite else None, work.batch.rows)
        self._feed.done(work.task, loss, phases=phases, ps_seconds=self._client.take_waits())
        if not self._trained:
            self._trained = True
            log.info("first batch done: %s", ", ".join(f"{name} {seconds:.3f} s" for name, seconds in phases.items()))
        return following

    def _evaluate(self, task: Task) -> None:
        batch = self._reader.evaluate(task.number)
        sheet = self._planner.sheet(task.number, self._step.ids(batch), read_only=True)
        self._client.exchange(None, sheet)
        scores = self._step.score(batch, *self._pulled(sheet))
        real = slice(0, batch.rows)
        held = (scores[real], batch.label[real], batch.weight[real])
        arrays = [np.ascontiguousarray(one, "<f4").tobytes() for one in held]
        self._feed.done(task, scores=BatchScores(task.number, *arrays))

    def _metrics(self, task: Task) -> None:
        with np.load(task.grant.path, allow_pickle=False) as merged:
            found = self._step.metrics(merged["scores"], merged["labels"], merged["weights"])
        self._feed.done(task, metrics=found)


def main(argv: list[str]) -> int:
    """Set everything up, work, and report what went wrong if something did; returns the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the controller decides
    try:
        config = read_json(WorkerConfig, argv[0])
        check_protocol(config)
        secret = read_secret(Path(config.secret_file))
        spec = read_json(JobSpec, config.spec)
        model = read_json(ModelSpec, config.model)
    except (IndexError, OSError, WireError, Refused) as error:
        log.error("cannot start: %s", error)
        return UNUSABLE
    follow_log(config.log, SystemClock())
    return work(config, secret, spec, model, SystemClock())


def work(config: WorkerConfig, secret: bytes, spec: JobSpec, model: ModelSpec, clock: Clock) -> int:
    """Run one worker from its configuration."""
    process = new_process_id()
    log.info("%s begins", config.pod)
    clients: list[PsClient] = []
    feed = Feed(config, process, secret, lambda routing: clients[0].update(routing), clock)
    # Set from another thread: the handler may run inside a wait on this very event.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=feed.stopping.set).start())
    configure_tensorflow(config.threads)
    try:
        # The job's own page, because a job that goes on from another's rows scales columns as that one did.
        dataset = Dataset.open(Path(config.dataset)).standardised_by(Path(config.spec).with_name("metadata.json"))
        other = Dataset.open(Path(config.validation_dataset)) if config.validation_dataset else None
        elastic = ElasticModel(load_model(spec.model, dataset.columns, spec), dataset.columns, spec.batch_size)
        if (found := elastic.fingerprint()) != model.fingerprint:
            raise CorruptCopy(f"the model has changed since the job began: {found} is not {model.fingerprint}")
        step = TrainStep(elastic, spec.batch_size, spec.seed, config.threads)
    except TrimtabError as error:
        log.error("cannot start: %s", error)
        return UNUSABLE
    planner = BatchPlanner(model.tables, lookups_of(elastic))
    clients.append(
        PsClient(
            model.tables, secret, config.job_id, process, planner.regroup, clock, feed.stopping, on_trouble=feed.hurry
        )
    )
    feed.cache_bytes = lambda: clients[0].log.touched_bytes
    numbering = numbering_of(spec, dataset.rows)
    worker = Worker(step, planner, BatchReader(dataset, numbering, other), clients[0], feed)
    feed.start()
    log.info("%s is process %s, %d batches in the job", config.pod, process, numbering.batches)
    code = STOPPED
    try:
        worker.run()
    except Interrupted:
        log.info("stopped")
    except (JobFailed, Refused) as error:
        log.error("failed: %s", error)
        feed.fail(str(error))
        code = FAILED
    finally:
        feed.close()
        clients[0].close()
    if feed.orphaned:
        leave_orphaned(Path(config.controller_address), ())
        return ORPHANED
    return FAILED if feed.broken else code


def lookups_of(model: ElasticModel) -> list[list[tuple[int, int, int]]]:
    """The model's look-ups per group, as the planner wants them: table, offset, length."""
    return [
        [(model.lookups[at].table, model.lookups[at].offset, model.lookups[at].length) for at in group.lookups]
        for group in model.groups
    ]


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    logging.shutdown()
    os._exit(exit_code)  # all is reported; TensorFlow would take seconds to take itself down
