"""Trains one audited job beside others of the same home; tells each look at its progress on a line.

    python several_runner.py DATA JOB_DIR EPOCHS MODE CPU

CPU: the cap in cores, - for none; with one all memory of the machine is asked for, too. Figures are served.
"""

import sys

from trimtab.core.controller.capacity import machine_room
from trimtab.core.controller.run import train
from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.plan import Limits
from trimtab.core.errors import Interrupted


def main(data, job_dir, epochs, mode, cpu):
    limits = Limits() if cpu == "-" else Limits(cpu=float(cpu), memory_bytes=machine_room().memory_bytes)
    spec = JobSpec(
        data=data, model="audit_model:build", epochs=int(epochs), batch_size=64, mode=mode, limits=limits,
        workers=1, ps=1, job_dir=job_dir, orphan_grace_seconds=5.0,
    )  # fmt: skip

    def tell(seen):
        sys.stdout.write(f"{seen.phase} {seen.batches_done} {seen.message}\n")
        sys.stdout.flush()

    try:
        train(spec, progress=tell, checkpoint_seconds=1.0, settle_seconds=0.5, window_seconds=1.0, metrics_port=0)
    except Interrupted:
        sys.exit(130)


if __name__ == "__main__":
    main(*sys.argv[1:])
