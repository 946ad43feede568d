"""Random shapes for embed_gradient and its ops. `choose` picks one of several: by random numbers, or by hypothesis."""

SIZES = (2, 3, 1, 5, 2, 3, 1, 5, 2, 3, 1, 5, 2, 3, 1, 0)
RANKS = (1, 2, 0, 3, 4)

# Sizes for tensors that have another dimension of size 0.
FAR = (2**20, 2**31, 2**40)


def _some_ones(choose, dims):
    return [choose((d, d, d, d, 1)) for d in dims]


def fitting_shapes(choose):
    """Shapes of fx, gx and x, and an axis, derived from the broadcast shape, so that they fit."""
    x_rank = choose(RANKS)
    x_joint = [choose(SIZES) for _ in range(x_rank)]
    extra = [choose((2, 3, 1)) for _ in range(choose((0, 0, 1, 2)))]
    domain = [i for i in range(x_rank) if choose((False, False, True))]
    batch = [x_joint[i] for i in range(x_rank) if i not in domain]

    if choose((True, False)):
        gx = _some_ones(choose, extra[choose(range(len(extra) + 1)) :] + x_joint)
    else:
        along_batch = _some_ones(choose, batch)
        gx = along_batch[choose(range(len(along_batch) + 1)) :]
    x = _some_ones(choose, x_joint)
    fx = extra + batch
    if not extra and x == x_joint and choose((False, False, False, True)):
        fx = []
    is_none = len(domain) == x_rank and choose((True, False))
    axis = None if is_none else [choose((d - x_rank, d)) for d in domain]
    return tuple(fx), tuple(gx), tuple(x), axis


def altered(choose, shape):
    """A changed shape, which often does not fit any more."""
    shape = list(shape)
    place = choose(range(len(shape) + 1))
    kind = choose(("size", "drop", "add", "zero and far", "other", "many"))
    if kind == "size" and shape:
        shape[place % len(shape)] = choose((0, 1, 2, 4, 7))
    elif kind == "drop" and shape:
        del shape[place % len(shape)]
    elif kind == "zero and far":
        shape = [0 if size > 5 else size for size in shape] + [0]
        shape.insert(place, choose(FAR))
    elif kind == "other":
        shape = [choose(SIZES) for _ in range(choose(RANKS))]
    elif kind == "many":
        shape = [1] * choose((8, 9, 16, 30)) + shape
    else:
        shape.insert(place, choose(SIZES))
    return tuple(shape)


def altered_axis(choose, rank):
    """Numbers that often name no dimension, or one twice."""
    return choose(
        (
            [rank],
            [-rank - 1],
            [0, 0],
            [0, -rank],
            [-1, rank - 1],
            list(range(rank)) * 2,
            list(range(40)),
            [2**62],
            [-(2**63)],
            [2**63 - 1],
            [-1],
            [0],
            [],
            list(range(-rank, 0)),
        )
    )
