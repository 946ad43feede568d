"""Up to three programs, one after the other, with wrappers in wrappers that change nothing, in every mode."""

from unittest import mock

from hypothesis import assume
from hypothesis import strategies as st

from tests.same import wrappers
from tests.same.harness import MODES, Cell
from tests.same.programs import PROGRAMS
from tests.same.test_same import FAILS_IN_TENSORFLOW, LIMITS, limit_of

# The others run Python code or files.
_AROUND = [name for name in wrappers.WRAPPERS if name not in ("saved and loaded", "numpy_function")]
# Eager mode costs a fraction of the modes that trace.
_MODES = ("eager", "changed_state") * 5 + tuple(MODES)


@st.composite
def cases(draw):
    steps = draw(
        st.lists(st.tuples(st.sampled_from(list(PROGRAMS)), st.sampled_from([None, *_AROUND])), min_size=1, max_size=3)
    )
    around = draw(st.lists(st.sampled_from(_AROUND), max_size=2))
    case = Cell(tuple(steps), tuple(around), draw(st.sampled_from(_MODES)))
    assume(case.names)
    # The tangents of one come from an accumulator, in which the tape of the other does not record.
    assume(not {"custom_jvp", "custom_vjp"} <= set(case.names))
    traits = {trait for program, _ in steps for trait in PROGRAMS[program].traits}
    for name in case.names:
        assume(traits.isdisjoint(wrappers.WRAPPERS[name].senseless))
        assume(not any(limit_of(FAILS_IN_TENSORFLOW + LIMITS, program, name, case.mode) for program, _ in steps))
    return case


def check(case, folder=None):
    """Raises AssertionError unless the wrapped programs agree with the plain ones."""
    with mock.patch.object(wrappers, "FACTOR", 1.0):  # Rules in rules would multiply the factor.
        try:
            case.check()
        except NotImplementedError:
            return f"{case.mode}: refused"
        except ValueError as error:  # Rules for ops that are all in functions with their own gradient.
            if "inside=True" not in str(error):
                raise
            return f"{case.mode}: refused"
    return f"{case.mode}: {len(case.names)} wrappers"
