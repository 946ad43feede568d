"""All benchmarks, one after the other: `make bench`."""

from . import dispatch, elementwise, program

program.run(dispatch.cases, elementwise.cases)
