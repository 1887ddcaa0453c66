"""A worker's line to its controller: nothing reported is lost, nothing granted is done twice, silence ends it."""

import tempfile
import threading
from pathlib import Path

import pytest

from trimtab.core.clock import ManualClock, SystemClock
from trimtab.core.errors import Refused, WireError
from trimtab.core.training.feed import Feed
from trimtab.core.wire.control import serve_controller
from trimtab.core.wire.messages import BatchLoss, Grant, Routing, WorkerConfig, WorkerOrders

SECRET = b"s" * 32


class Controller:
    """Answers with what `answers` gives for each call; keeps what it heard."""

    def __init__(self, address):
        self.heard, self.answers, self.changed = [], [], threading.Condition()
        self.server = serve_controller(address, SECRET, self.answer)

    def answer(self, request):
        with self.changed:
            self.heard.append(request)
            self.changed.notify_all()
            made = self.answers.pop(0) if self.answers else WorkerOrders(1)
        if isinstance(made, Exception):
            raise made
        return made


@pytest.fixture
def world():
    with tempfile.TemporaryDirectory(prefix="tt") as name:
        address = str(Path(name) / "c.sock")
        controller, clock, routings = Controller(address), ManualClock(), []
        config = WorkerConfig("job", "w0", 1, "", address, "", "", "", "", 1, 30.0)
        feed = Feed(config, "p" * 32, SECRET, routings.append, clock)
        yield controller, feed, clock, routings
        feed.stopping.set()
        controller.server.close()


def grant(number, lo, hi, kind="train"):
    return Grant(number, kind, lo, hi, 1)


def test_grants_become_tasks_in_order_and_routing_comes_first(world):
    controller, feed, _, routings = world
    routing = Routing(3)
    controller.answers = [WorkerOrders(1, routing, (grant(1, 5, 7), grant(2, 9, 10)))]
    feed.sync_once()
    assert routings == [routing]
    tasks = [feed.take(block=True) for _ in range(3)]
    assert [(task.grant.id, task.number, task.last) for task in tasks] == [(1, 5, False), (1, 6, True), (2, 9, True)]
    feed.sync_once()
    assert controller.heard[-1].routing_version == 3
    assert controller.heard[0].want == 2 and controller.heard[-1].want == 0


def test_a_grant_that_is_said_again_is_done_once(world):
    controller, feed, *_ = world
    controller.answers = [WorkerOrders(1, None, (grant(1, 0, 2),))] * 3
    for _ in range(3):
        feed.sync_once()
    assert [feed.take(block=False).number for _ in range(2)] == [0, 1]
    assert feed.take(block=False) is None


def test_a_grant_that_is_said_again_after_it_was_done_is_not_done_again(world):
    controller, feed, *_ = world
    first, second = grant(1, 0, 1), grant(2, 1, 2)
    controller.answers = [WorkerOrders(1, None, (first,)), WorkerOrders(1, None, (first, second))]
    feed.sync_once()
    feed.done(feed.take(block=True), BatchLoss(0, 0.5, 1))
    feed.sync_once()
    assert feed.take(block=False).number == 1
    assert feed.take(block=False) is None


def test_a_finished_grant_and_its_losses_are_reported_once_answered_and_again_until_then(world):
    controller, feed, *_ = world
    controller.answers = [WorkerOrders(1, None, (grant(1, 0, 2),)), WireError("lost"), WorkerOrders(1), WorkerOrders(1)]
    feed.sync_once()
    losses = [BatchLoss(0, 0.7, 64), BatchLoss(1, None, 64)]
    for loss in losses:
        feed.done(feed.take(block=True), loss, phases={"compute": 1.0})
    for _ in range(3):
        feed.sync_once()
    assert [heard.finished for heard in controller.heard] == [(), (1,), (1,), ()]
    assert [len(heard.losses) for heard in controller.heard] == [0, 2, 2, 0]
    assert controller.heard[2].losses == tuple(losses)
    assert controller.heard[2].phase_seconds == {"compute": 2.0}
    assert [heard.want for heard in controller.heard[1:]] == [2, 2, 2]


def test_what_is_kept_of_gradients_is_told(world):
    controller, feed, *_ = world
    feed.sync_once()
    feed.cache_bytes = lambda: 4096
    feed.sync_once()
    assert [heard.cache_bytes for heard in controller.heard] == [0, 4096]


def test_what_is_taken_back_is_not_begun_and_reported_finished(world):
    controller, feed, *_ = world
    controller.answers = [
        WorkerOrders(1, None, (grant(1, 0, 4), grant(2, 8, 9))), WorkerOrders(1, None, (), taken_back=(1,)),
    ]  # fmt: skip
    feed.sync_once()
    begun = feed.take(block=True)
    feed.sync_once()
    assert feed.take(block=False).number == 8, "the rest of the first is somebody else's"
    feed.sync_once()
    feed.done(begun, BatchLoss(0, 0.5, 1))  # what was begun is done, and only then it is finished
    feed.sync_once()
    feed.sync_once()
    assert [heard.finished for heard in controller.heard] == [(), (), (), (1,), ()]
    assert [loss.number for heard in controller.heard for loss in heard.losses] == [0]
    assert controller.heard[3].want == 1


def test_what_is_taken_back_between_two_batches_is_finished_at_once(world):
    controller, feed, *_ = world
    controller.answers = [WorkerOrders(1, None, (grant(1, 0, 4),)), WorkerOrders(1, None, (), taken_back=(1,))]
    feed.sync_once()
    feed.done(feed.take(block=True), BatchLoss(0, 0.5, 1))
    feed.sync_once()
    feed.sync_once()
    assert controller.heard[-1].finished == (1,) and feed.take(block=False) is None


def test_the_last_batch_of_what_is_taken_back_finishes_it_once(world):
    controller, feed, *_ = world
    controller.answers = [WorkerOrders(1, None, (grant(1, 0, 1),)), WorkerOrders(1, None, (), taken_back=(1,))]
    feed.sync_once()
    task = feed.take(block=True)
    feed.sync_once()
    feed.done(task, BatchLoss(0, 0.5, 1))
    feed.sync_once()
    assert controller.heard[-1].finished == (1,)


def test_what_is_taken_back_before_it_was_heard_of_is_never_begun(world):
    controller, feed, *_ = world
    controller.answers = [
        WorkerOrders(1, None, (), taken_back=(7,)),
        WorkerOrders(1, None, (grant(7, 0, 2), grant(8, 5, 6)), taken_back=(7,)),
    ]  # fmt: skip
    feed.sync_once()
    feed.sync_once()
    assert controller.heard[-1].finished == (7,) and controller.heard[-1].want == 2
    assert feed.take(block=False).number == 5 and feed.take(block=False) is None


def test_without_block_only_training_is_handed_out(world):
    controller, feed, *_ = world
    controller.answers = [WorkerOrders(1, None, (grant(1, 0, 1, "evaluate"),))]
    feed.sync_once()
    assert feed.take(block=False) is None
    assert feed.take(block=True).grant.kind == "evaluate"


def test_the_longest_gap_between_steps_is_reported(world):
    controller, feed, clock, _ = world
    controller.answers = [WorkerOrders(1, None, (grant(1, 0, 4),))]
    feed.sync_once()
    for number, pause in enumerate((9.0, 0.5, 2.0, 0.25)):  # the time before the first step is no gap
        clock.advance(pause)
        feed.done(feed.take(block=True), BatchLoss(number, 0.5, 1))
    feed.sync_once()
    assert controller.heard[-1].max_gap_seconds == 2.0


def test_stop_and_refusal_end_the_work(world):
    controller, feed, *_ = world
    controller.answers = [WorkerOrders(1, None, (), stop=True)]
    feed.sync_once()
    assert feed.stopping.is_set() and feed.take(block=True) is None
    feed.stopping.clear()
    controller.answers = [Refused("term 1 is over")]
    feed.sync_once()
    assert feed.stopping.is_set() and not feed.orphaned


def test_silence_ends_it_after_the_grace_and_not_before(world):
    controller, feed, clock, _ = world
    feed.sync_once()
    for pause, gone in ((29.0, False), (2.0, True)):
        clock.advance(pause)
        controller.answers = [WireError("away")]
        feed.sync_once()
        assert feed.orphaned is gone
    assert feed.stopping.is_set()


def test_a_fault_of_its_own_ends_the_work_and_is_told(world, monkeypatch):
    _, feed, *_ = world
    monkeypatch.setattr(feed, "sync_once", lambda: (_ for _ in ()).throw(RuntimeError("a bug")))
    feed.start()
    assert feed.take(block=True) is None
    feed.close()
    assert feed.broken and not feed.orphaned


def test_a_failure_is_reported_by_the_last_call():
    with tempfile.TemporaryDirectory(prefix="tt") as name:
        address = str(Path(name) / "c.sock")
        controller = Controller(address)
        config = WorkerConfig("job", "w0", 1, "", address, "", "", "", "", 1, 30.0)
        feed = Feed(config, "p" * 32, SECRET, lambda routing: None, SystemClock())
        feed.start()
        feed.fail("the table is full")
        feed.close()
        controller.server.close()
        assert "the table is full" in [heard.failure for heard in controller.heard]
