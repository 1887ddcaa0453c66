"""Trains one audited job in a process that a test may kill; tells each look at its progress on a line.

    python resume_runner.py DATA JOB_DIR EPOCHS ORPHAN_GRACE PS
"""

import sys

from trimtab.core.controller.run import train
from trimtab.core.domain.job import JobSpec, Mode
from trimtab.core.domain.plan import Limits


def main(data, job_dir, epochs, grace, ps):
    spec = JobSpec(
        data=data, model="audit_model:build", epochs=int(epochs), batch_size=64, mode=Mode.FIXED, workers=1, ps=int(ps),
        limits=Limits(cpu=1.6, memory_bytes=3 * 2**30), job_dir=job_dir, orphan_grace_seconds=float(grace),
    )  # fmt: skip

    def tell(seen):
        sys.stdout.write(f"{seen.phase} {seen.batches_done}\n")
        sys.stdout.flush()

    train(spec, progress=tell, checkpoint_seconds=1.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
