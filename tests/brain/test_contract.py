"""The contract of an allocation finds each way of breaking it, and nothing else."""

from dataclasses import replace

from trimtab.core.brain.contract import Allotment, Capacity, Claim, violations
from trimtab.core.domain.plan import Limits, Plan, RolePlan

GIB = 2**30
SMALLEST = Plan(RolePlan(1, 0.5, GIB), RolePlan(1, 0.5, GIB))
WANTED = Plan(RolePlan(2, 1.0, GIB), RolePlan(4, 1.0, GIB))
CAPACITY = Capacity(cpu=4.0, memory_bytes=8 * GIB)
CLAIMS = (Claim("a", SMALLEST, WANTED), Claim("b", SMALLEST, WANTED))
FAIR = (
    Allotment("a", Limits(cpu=3.0, memory_bytes=6 * GIB), "first come, 3 of 6 cores"),
    Allotment("b", Limits(cpu=1.0, memory_bytes=2 * GIB), "its smallest plan"),
)


def test_a_fair_allocation_has_no_violation():
    assert violations(CAPACITY, CLAIMS, FAIR) == ()


def test_a_job_may_wait_with_nothing():
    assert violations(CAPACITY, CLAIMS, (FAIR[0], Allotment("b", None, "waits for a"))) == ()


def test_each_break_is_named():
    first, second = FAIR
    large = Limits(cpu=3.0, memory_bytes=7 * GIB)
    half = replace(second, limits=Limits(cpu=0.5, memory_bytes=2 * GIB))
    broken = {
        "b: less than its smallest plan; it must get that or wait": (first, half),
        "b: 0 answers to one claim": (first,),
        "b: 2 answers to one claim": (replace(first, limits=None), second, second),
        "c: an answer without a claim": (*FAIR, Allotment("c", None, "unknown")),
        "a: no reason given": (replace(first, reason=" "), second),
        "a: cores and memory must both be capped": (replace(first, limits=Limits(cpu=1.0)), second),
        "4.5 cores are given out of 4": (replace(first, limits=Limits(cpu=3.5, memory_bytes=GIB * 2)), second),
        f"{9 * GIB} bytes are given out of {8 * GIB}": (replace(first, limits=large), second),
    }
    for sentence, allotments in broken.items():
        assert violations(CAPACITY, CLAIMS, allotments) == (sentence,)
