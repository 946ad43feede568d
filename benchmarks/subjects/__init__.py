"""The measurements, one subject a file; each is a program, too: `python -m benchmarks.subjects.dispatch`."""
