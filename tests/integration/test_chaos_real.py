"""Faults from a seed on real processes, and the audit table exact after each: a sample here, 200 by `make chaos`."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SEEDS = range(20)
FEW = (1, 7)  # that also run where slow tests do not
SECONDS = 600  # only a fault takes that long


@pytest.fixture(scope="session")
def stage(tmp_path_factory):
    """Rows and caches that all jobs share."""
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture
def chaos(stage):
    """Runs seeds in a process of their own, where their orphans come; returns what it printed."""
    if not sys.platform.startswith("linux"):
        pytest.skip("orphans come to their grandparent on Linux only")

    def run(*words):
        command = [sys.executable, str(HERE / "chaos.py"), "--stage", str(stage), *map(str, words)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False,
            env=dict(os.environ),
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
        return done.stdout

    return run


@pytest.mark.parametrize("seed", [pytest.param(one, marks=() if one in FEW else pytest.mark.slow) for one in SEEDS])
def test_a_job_is_exact_whatever_happens_to_it(chaos, seed):
    said = chaos(seed)
    if "skipped" in said:
        pytest.skip(said.strip())
    assert f"seed {seed}: exact" in said


@pytest.mark.slow
def test_several_workers_learn_as_well_under_faults_as_in_peace(chaos, tmp_path):
    """The same job of a real model, with and without everything that seed 5 brings."""
    found = []
    for more in ((), ("--calm",)):
        path = tmp_path / f"results{len(more)}.json"
        chaos(5, "--model", "dlrm", "--results", path, *more)
        found.append(json.loads(path.read_text())[0])
    disturbed, calm = found
    assert disturbed["batches_applied"] == calm["batches_applied"] > 0
    assert calm["auc"] > 0.55, "it has learned something"
    assert abs(disturbed["auc"] - calm["auc"]) < 0.03
    assert abs(disturbed["log_loss"] - calm["log_loss"]) < 0.05


# ---- schedules


def test_a_seed_means_one_schedule():
    import chaos_schedule

    made = [[chaos_schedule.plan_chaos(seed, 169) for seed in range(50)] for _ in range(2)]
    assert made[0] == made[1]
    assert len({str(one).partition(":")[2] for one in made[0]}) == 50


def test_a_schedule_is_read_as_it_was_written(tmp_path):
    import chaos_schedule

    for seed in range(20):
        schedule = chaos_schedule.plan_chaos(seed, 169)
        schedule.write(tmp_path / "schedule.json")
        assert chaos_schedule.read(tmp_path / "schedule.json") == schedule


def test_the_seeds_of_the_suite_meet_every_kind_of_fault():
    import chaos_schedule

    kinds = Counter(event.kind for seed in SEEDS for event in chaos_schedule.plan_chaos(seed, 169).events)
    assert set(kinds) == set(chaos_schedule.KINDS)


def test_schedules_are_placed_by_batches_in_order_and_within_the_job():
    import chaos_schedule

    for seed in range(200):
        schedule = chaos_schedule.plan_chaos(seed, 169)
        places = [event.at for event in schedule.events]
        assert places == sorted(places) and places[0] > 0 and places[-1] < 169 * schedule.epochs
        assert chaos_schedule.KINDS[seed % len(chaos_schedule.KINDS)] in [event.kind for event in schedule.events]
        assert sum(event.kind in chaos_schedule.ENDS_A_LIFE for event in schedule.events) <= 2


# ---- the means


def test_a_fault_strikes_as_often_as_it_should_whoever_comes(tmp_path):
    from chaos_pods import ARMED, CLAIMED, Faults

    (tmp_path / ARMED).mkdir()
    (tmp_path / CLAIMED).mkdir()
    pods = [Faults(tmp_path), Faults(tmp_path)]
    assert pods[0].take("push") is None
    (tmp_path / ARMED / "3").write_text(json.dumps({"hook": "push", "action": "cut", "skip": 1, "times": 2}))
    struck = [pod.take(hook) is not None for _ in range(4) for pod in pods for hook in ("move", "push")]
    assert struck == [False, False, False, False, False, True, False, True] + [False] * 8


class Server:
    """Takes messages of its term; keeps those it took."""

    def __init__(self):
        self.took = []

    def __call__(self, message):
        from trimtab.core.errors import Refused

        if message.term < 2:
            raise Refused("the term is over")
        self.took.append(message.sequence)
        return f"answer {message.sequence}"


@pytest.mark.parametrize(
    ("fates", "took", "answers"),
    [
        (["lost_request", ""], [2], [None, "answer 2"]),
        (["lost_answer", ""], [1, 2], [None, "answer 2"]),
        (["doubled", ""], [1, 1, 2], ["answer 1", "answer 2"]),
        (["late", ""], [2, 1], [None, "answer 2"]),
        (["", "stale_answer"], [1, 2], ["answer 1", "answer 1"]),
        (["older_term", ""], [1, 2], ["answer 1", "answer 2"]),
    ],
)
def test_messages_meet_their_fate(tmp_path, fates, took, answers):
    from chaos_faults import Injector
    from chaos_schedule import plan_chaos

    from trimtab.core.errors import WireError
    from trimtab.core.wire.messages import PsSync

    (tmp_path / "disk").mkdir()
    injector, server, heard = Injector(tmp_path, plan_chaos(1, 169)), Server(), []
    injector._fates["ps"].extend(fates)
    for sequence in (1, 2):
        try:
            heard.append(injector._deliver("ps", "ps-0", PsSync("job", 2, sequence, "p"), server))
        except WireError:
            heard.append(None)
    assert (server.took, heard) == (took, answers)
    assert not (tmp_path / "violations.jsonl").exists()


def test_a_server_that_takes_an_older_term_is_found_out(tmp_path):
    from chaos_faults import VIOLATIONS, Injector
    from chaos_schedule import plan_chaos

    from trimtab.core.wire.messages import PsSync

    (tmp_path / "disk").mkdir()
    injector = Injector(tmp_path, plan_chaos(1, 169))
    injector._fates["ps"].append("older_term")
    injector._deliver("ps", "ps-0", PsSync("job", 2, 1, "p"), lambda message: "taken")
    assert "ps-0 took a message of term 1" in (tmp_path / VIOLATIONS).read_text()
