"""Shapes for embed_gradient and its ops."""

from hypothesis import strategies as st

SIZES = (2, 3, 1, 5, 2, 3, 1, 5, 2, 3, 1, 5, 2, 3, 1, 0)
RANKS = (1, 2, 0, 3, 4)

# Sizes for tensors that have another dimension of size 0.
FAR = (2**20, 2**31, 2**40)

shapes = st.sampled_from(RANKS).flatmap(lambda rank: st.tuples(*[st.sampled_from(SIZES)] * rank))


@st.composite
def fitting_shapes(draw):
    """Shapes of fx, gx and x, and an axis, derived from the broadcast shape, so that they fit."""

    def choose(*options):
        return draw(st.sampled_from(options))

    def some_ones(sizes):
        return [choose(size, size, size, size, 1) for size in sizes]

    x_joint = draw(shapes)
    rank = len(x_joint)
    extra = [choose(2, 3, 1) for _ in range(choose(0, 0, 1, 2))]
    domain = [i for i in range(rank) if choose(False, False, True)]
    batch = [x_joint[i] for i in range(rank) if i not in domain]
    if choose(True, False):
        gx = some_ones(extra[choose(*range(len(extra) + 1)) :] + list(x_joint))
    else:
        gx = some_ones(batch)[choose(*range(len(batch) + 1)) :]
    x = some_ones(x_joint)
    fx = extra + batch
    if not extra and x == list(x_joint) and choose(False, False, False, True):
        fx = []
    is_none = len(domain) == rank and choose(True, False)
    axis = None if is_none else [choose(i - rank, i) for i in domain]
    return (tuple(fx), tuple(gx), tuple(x)), axis


@st.composite
def altered(draw, shape):
    """A changed shape, which often does not fit any more."""
    place = draw(st.integers(0, len(shape)))
    kind = draw(st.sampled_from(("size", "drop", "add", "zero and far", "other", "many")))
    if kind == "size":
        return (*shape[:place], draw(st.sampled_from((0, 1, 2, 4, 7))), *shape[place + 1 :])
    if kind == "drop":
        return (*shape[:place], *shape[place + 1 :])
    if kind == "add":
        return (*shape[:place], draw(st.sampled_from(SIZES)), *shape[place:])
    if kind == "zero and far":
        return (*shape[:place], draw(st.sampled_from(FAR)), *shape[place:], 0)
    if kind == "many":
        return (1,) * draw(st.sampled_from((8, 9, 16, 24))) + shape
    return draw(shapes)
