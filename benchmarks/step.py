"""What one training step costs: the DLRM of docs/design.md with one worker and one parameter server.

A real parameter-server process on loopback, this process as the worker, the product's own planner, client and
TensorFlow step. Batches (512 rows, 26 bounded-zipf columns over 62,000 ids each, 13 dense) are made beforehand; finding
the distinct keys, pulling, computing, summing gradients and pushing are measured. CPU time is that of both processes.
Beside it, window by window, the same model and batches entirely inside TensorFlow: one fused table in a `tf.Variable`,
sparse Adagrad, no server. The ratio of the two says what the parameter server costs on any machine.

On the machine of docs/benchmarks.md the experiment's own code (the one whose figures docs/design.md shows as 4.9 ms)
costs 24.2 to 26.7 CPU ms per step, TensorFlow alone 21.7 to 27 ms, and the product 22.3 to 22.7 ms. So the goal of 8 ms
is to be read on a machine where TensorFlow alone costs about 6.4 ms.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from figures import Figure, options, report

BATCH, FIELDS, DENSE, VOCABULARY = 512, 26, 13, 62_000
PREPARED = 256


def prepared_batches():
    """Batches as the data room would give them."""
    import numpy as np

    from trimtab.core.data.batches import Batch, aligned

    batches = []
    for number in range(PREPARED):
        generator = np.random.default_rng(number)
        a = 1.1
        u = generator.random((BATCH, FIELDS))
        ids = (((VOCABULARY ** (1 - a) - 1) * u + 1) ** (1 / (1 - a))).astype(np.int64) % VOCABULARY
        dense = generator.standard_normal((BATCH, DENSE)).astype(np.float32)
        logit = ((ids * 2654435761 + np.arange(FIELDS) * 97) % 1000 / 500.0 - 1).sum(1) * 0.5 + dense[:, 0]
        label = (generator.random(BATCH) < 1 / (1 + np.exp(-logit))).astype(np.float32)
        held = aligned(
            ((BATCH, DENSE), np.float32), ((BATCH, FIELDS), np.int64), ((BATCH,), np.float32), ((BATCH,), np.float32)
        )
        held[0][:], held[1][:], held[2][:], held[3][:] = dense, ids, label, 1.0
        batches.append(Batch(number, BATCH, held[0], held[1], {}, held[2], held[3]))
    return batches


def local_step(step, batches):
    """One step of the same model with everything in TensorFlow variables; returns a function of a batch number."""
    import tensorflow as tf

    model = step.model
    start = tf.random.uniform([FIELDS * VOCABULARY, model.groups[0].dim], -0.05, 0.05)
    table, table_slot = tf.Variable(start), tf.Variable(tf.fill(start.shape, 0.1))
    flat = tf.Variable(model.initial_blocks()["dense"].reshape(-1))
    flat_slot = tf.Variable(tf.fill(flat.shape, 0.1))
    offsets = tf.range(FIELDS, dtype=tf.int64)[:, None] * VOCABULARY
    sources = [source.name for source in model.sources]

    @tf.function
    def run(dense, keys, label, weight):
        by_name = {"dense": dense, "categorical": keys}
        ids, places = tf.unique(tf.reshape(tf.transpose(keys) + offsets, [-1]))
        rows = tf.gather(table, ids)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            gathered, weights = tf.gather(rows, places), tf.identity(flat)
            tape.watch([gathered, weights])
            output, _, _ = step._run([by_name[name] for name in sources], [gathered], [weights], [], None, True)
            loss = model.loss(label, output, weight)
        row_gradients, gradient = tape.gradient(loss, [gathered, weights])
        summed = tf.math.unsorted_segment_sum(row_gradients, places, tf.shape(ids)[0])
        raw = tf.raw_ops
        raw.ResourceSparseApplyAdagradV2(
            var=table.handle, accum=table_slot.handle, lr=0.05, epsilon=1e-7, grad=summed, indices=ids
        )
        raw.ResourceApplyAdagradV2(var=flat.handle, accum=flat_slot.handle, lr=0.05, epsilon=1e-7, grad=gradient)
        return loss

    tensors = [[tf.constant(one) for one in (b.dense, b.keys, b.label, b.weight)] for b in batches]
    return lambda number: float(run(*tensors[number % len(tensors)]))


def main() -> None:
    """Measure and report."""
    chosen = options(__doc__)
    import numpy as np
    import psutil

    from trimtab.core.clock import SystemClock
    from trimtab.core.data.columns import CategoricalColumn, Columns, DenseColumn
    from trimtab.core.domain.job import JobSpec
    from trimtab.core.domain.model_spec import DENSE as DENSE_KIND
    from trimtab.core.domain.model_spec import STATE
    from trimtab.core.ps import kernel_cache
    from trimtab.core.ps.client import PsClient
    from trimtab.core.ps.initial import write_initial
    from trimtab.core.training.elastic import ElasticModel
    from trimtab.core.training.load import load_model
    from trimtab.core.training.planner import BatchPlanner
    from trimtab.core.training.runtime import configure_tensorflow
    from trimtab.core.training.step import TrainStep
    from trimtab.core.training.worker import lookups_of
    from trimtab.core.wire.control import PsStub, Unreachable
    from trimtab.core.wire.encode import to_json
    from trimtab.core.wire.handshake import new_process_id
    from trimtab.core.wire.messages import PsConfig, PsSync, Routing, ServeOrder, to_bitmap
    from trimtab.core.wire.secrets import new_secret

    kernel_cache.warm()
    configure_tensorflow(1)
    columns = Columns(
        label="label", weight=None, dense=tuple(DenseColumn(f"I{n}") for n in range(DENSE)),
        categorical=tuple(CategoricalColumn(f"C{n}") for n in range(FIELDS)),
    )  # fmt: skip
    spec = JobSpec(data="prepared", batch_size=BATCH)
    model = ElasticModel(load_model("dlrm", columns, spec), columns, BATCH)
    step = TrainStep(model, BATCH, 0, threads=1)
    batches = prepared_batches()
    with tempfile.TemporaryDirectory(prefix="tt") as name:
        home = Path(name)
        blocks = home / "blocks.npz"
        np.savez(blocks, **model.initial_blocks())
        described = model.spec("dlrm", str(blocks))
        (home / "model.json").write_bytes(to_json(described))
        secret = new_secret(home / "secret")
        manifest = write_initial(home / "checkpoint", "bench", described)
        config = PsConfig(
            "bench", "ps-0", 1, str(home / "secret"), str(home / "ps.sock"), "tcp:127.0.0.1:0",
            str(home / "model.json"), 0, 1 << 40, 4 << 30, 600.0,
        )  # fmt: skip
        (home / "ps.json").write_bytes(to_json(config))
        server = subprocess.Popen([sys.executable, "-m", "trimtab.core.ps.main", str(home / "ps.json")])
        try:
            stub, pause = PsStub(str(home / "ps.sock"), secret), threading.Event()

            def ordered(process: str, *serve: ServeOrder):
                for attempt in range(600):
                    try:
                        report_ = stub.sync(PsSync("bench", 1, attempt, process, serve), 5.0)
                    except Unreachable:
                        pause.wait(0.1)
                        continue
                    if not report_.loading:
                        return report_
                    pause.wait(0.02)
                raise SystemExit("the parameter server did not start")

            first = ordered("")
            ordered(first.process, ServeOrder(to_bitmap(range(512)), 1, manifest.path))
            planner = BatchPlanner(described.tables, lookups_of(model))
            client = PsClient(
                described.tables, secret, "bench", new_process_id(), planner.regroup, SystemClock(), threading.Event()
            )
            client.update(Routing(1, (first.process,), (first.address,), (0,) * 512, (1,) * 512))
            number = 0

            def prepare(at: int):
                batch = batches[at % PREPARED]
                return batch, planner.sheet(at, step.ids(batch))

            work = prepare(0)
            client.exchange(None, work[1])

            def run(steps: int) -> float:
                nonlocal number, work
                loss = 0.0
                for _ in range(steps):
                    batch, sheet = work
                    result = step.train(
                        batch, planner.rows(sheet), sheet.places, planner.blocks(sheet, DENSE_KIND),
                        planner.blocks(sheet, STATE),
                    )  # fmt: skip
                    planner.put_gradients(
                        sheet, result.row_gradients, {DENSE_KIND: result.dense_gradient, STATE: result.state_delta}
                    )
                    number += 1
                    following = prepare(number)
                    client.exchange(sheet, following[1], 0.05)
                    work = following
                    loss += result.loss
                return loss / steps

            windows, steps = (3, 200) if chosen.quick else (9, 500)
            local = local_step(step, batches)
            run(200)
            for at in range(20):
                local(at)
            me, other = psutil.Process(), psutil.Process(server.pid)
            cpu, worker_cpu, ps_cpu, rate, local_cpu, loss = [], [], [], [], [], 0.0
            for _ in range(windows):
                before, mine, theirs = time.perf_counter(), me.cpu_times(), other.cpu_times()
                loss = run(steps)
                now, my, their = time.perf_counter(), me.cpu_times(), other.cpu_times()
                worker_cpu.append((my.user + my.system - mine.user - mine.system) / steps * 1e3)
                ps_cpu.append((their.user + their.system - theirs.user - theirs.system) / steps * 1e3)
                cpu.append(worker_cpu[-1] + ps_cpu[-1])
                rate.append(steps / (now - before))
                for at in range(steps):
                    local(at)
                alone = me.cpu_times()
                local_cpu.append((alone.user + alone.system - my.user - my.system) / steps * 1e3)
            stub.sync(PsSync("bench", 1, 10**6, first.process, stop=True), 5.0)
            client.close()
        finally:
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    def spread(values: list[float]) -> str:
        return f"{min(values):.3g} to {max(values):.3g} over {len(values)} windows"

    middle = statistics.median
    ratio = [ours / theirs for ours, theirs in zip(cpu, local_cpu, strict=True)]
    report(
        "One step of the DLRM, batch 512, one worker and one parameter server",
        [
            Figure("cpu_ms_per_step", middle(cpu), "ms", 8.0, "lower", spread(cpu)),
            Figure("worker_cpu_ms_per_step", middle(worker_cpu), "ms", None, "lower", spread(worker_cpu)),
            Figure("ps_cpu_ms_per_step", middle(ps_cpu), "ms", None, "lower", spread(ps_cpu)),
            Figure("steps_per_second", middle(rate), "1/s", None, "higher", f"{spread(rate)}; loss {loss:.4f}"),
            Figure("local_tensorflow_cpu_ms_per_step", middle(local_cpu), "ms", None, "lower", spread(local_cpu)),
            Figure("ratio_to_local_tensorflow", middle(ratio), "", None, "lower", spread(ratio)),
            Figure("slow_exchanges", float(client.slow_exchanges), "count", 0, "lower"),
        ],
        chosen.json,
    )


if __name__ == "__main__":
    main()
