"""How many processes run the tests at once."""

import os

# One that has run all tests holds 2.5 GB; those that a test starts hold up to 1 GB together.
MEMORY = 3.5e9


def number_of_workers():
    """One for each core that this process may use, limited by the machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), int(memory / MEMORY)))
