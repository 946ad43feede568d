"""The number of processes that `make test` starts."""

import os

import pytest

from .workers import number_of_workers


@pytest.mark.parametrize(
    ("cores", "gigabytes", "expected"),
    [(1, 64, 1), (2, 8, 2), (2, 6, 1), (2, 2, 1), (16, 64, 16), (64, 16, 4)],
)
def test_there_is_one_for_each_core_and_room_for_each(cores, gigabytes, expected, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": gigabytes * 10**9 // 4096}.get)
    assert number_of_workers() == expected
