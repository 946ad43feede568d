"""Random programs for `plans`: each step computes one more [4, 4] matrix from two earlier ones."""

import numpy as np
import tensorflow as tf

import tf_cg_ops as cg

N = 4


class Variables:
    """The variables of a program, with the same values for the same seed."""

    def __init__(self, dtype, seed):
        rng = np.random.default_rng(seed)

        def variable(*shape):
            return tf.Variable(rng.normal(size=shape) / 2, dtype=dtype)

        self.w = [variable(N, N) for _ in range(3)]
        self.bias, self.table, self.state = variable(N), variable(6, N), variable()
        self.kernel, self.kernel_bias = variable(3, 3, 1, 2), variable(2)
        self.unused = variable(N, N)
        self.captured = tf.constant(rng.normal(size=[N, N]), dtype)

    @property
    def all(self):
        return [*self.w, self.bias, self.table, self.state, self.kernel, self.kernel_bias, self.unused]


class Program:
    """One call of the function. Draws random numbers, or takes those that another call drew."""

    def __init__(self, variables, ids, k, given):
        self.v, self.ids, self.k, self.others = variables, ids, k, []
        self._given = None if given is None else iter(given)

    @property
    def w(self):
        return self.v.w[self.k % 3]

    def drawn(self, draw):
        """The result of `draw()`, which is also a result of the function."""
        value = draw() if self._given is None else tf.constant(next(self._given))
        self.others.append(value)
        return value


def run(steps, results, variables, x, y, z, ids, given=None):
    """The matrices that are results, and what was drawn. The last matrices count first; z is not used."""
    values, others = [variables.captured, y, x], []
    draws = None if given is None else iter(given)
    for name, i, j, k in steps:
        program = Program(variables, ids, k, draws)
        a, b = values[-1 - i % len(values)], values[-1 - j % len(values)]
        out = STEPS[name](program, a, b)
        out.set_shape(x.shape)
        values.append(out)
        others += program.others
    return [values[-1 - i % len(values)] for i in results], others


def _like(a):
    """A function that reshapes to the shape of `a`."""
    return lambda t: tf.reshape(t, tf.shape(a))


def _conv(p, a, b):
    image = tf.nn.conv2d(tf.reshape(a, [1, N, N, 1]), p.v.kernel, 1, "SAME")
    image = tf.nn.relu(tf.nn.bias_add(image, p.v.kernel_bias))
    image = tf.nn.max_pool2d(image, 2, 1, "SAME") if p.k % 2 else image
    return _like(a)(tf.reduce_sum(image, -1)) + 0.1 * b


def _normalize(p, a, b):
    if a.dtype == tf.float64:
        mean, variance = tf.nn.moments(a, [0])
        return tf.nn.batch_normalization(a, mean, variance, p.v.bias, None, 0.1) + 0.1 * b
    image, scale = tf.reshape(a, [1, N, 1, N]), tf.convert_to_tensor(p.v.bias)
    out, mean, _ = tf.compat.v1.nn.fused_batch_norm(image, scale, tf.ones([N]), epsilon=0.1)
    return _like(a)(out) + 0.1 * b + (mean if p.k % 2 else 0.0)


def _split(p, a, b):
    left, right = tf.split(a, 2, p.k % 2)
    return tf.concat([tf.sin(right), left * 0.5], p.k % 2) + 0.1 * b


def _unstack(p, a, b):
    first, second, third, _ = tf.unstack(a, N)  # One result is not used.
    return tf.stack([third, tf.tanh(first), first * second, b[0]])


def _top_k(p, a, b):
    values, indices = tf.nn.top_k(a, 2)
    return tf.gather(b, indices[:, 0] % N, axis=p.k % 2) + tf.reduce_sum(values, 1, keepdims=True)


def _lookup(p, a, b):
    ids = p.ids if p.k % 2 else tf.cast(tf.argmax(b, 1), tf.int32)
    return tf.nn.embedding_lookup(p.v.table, ids) + 0.5 * a


def _cond(p, a, b):
    def true():
        if p.k % 2:
            return tf.cond(tf.reduce_max(b) > 1, lambda: tf.sin(a), lambda: a @ p.w)
        return tf.tanh(a @ p.w) + b

    return tf.cond(tf.reduce_sum(a) > 0, true, lambda: 0.5 * a)


def _while(p, a, b):
    def body(i, t):
        t = tf.sin(t @ p.w) + 0.1 * b
        t = tf.cond(tf.reduce_sum(t) > 0, lambda: tf.tanh(t), lambda: t * p.v.bias) if p.k % 2 else t
        t.set_shape(a.shape)
        return i + 1, t

    return tf.while_loop(lambda i, t: i < 3, body, (0, a), maximum_iterations=3)[1]


def _list(p, a, b):
    array = tf.TensorArray(a.dtype, 2, element_shape=[N, N]).write(0, tf.tanh(a)).write(1, b @ p.w)
    return 0.5 * tf.reduce_sum(array.stack(), 0)


def _call(p, a, b):
    inner = tf.function(lambda t: tf.sin(t @ p.w) + p.v.captured, autograph=False)
    called = tf.function(lambda t, u: (inner(t) * u, tf.tanh(u)), jit_compile=p.k % 3 == 0 or None, autograph=False)
    return tf.add_n([*called(a, b)])


def _tf_custom(p, a, b):
    @tf.custom_gradient
    def tripled(t):
        return tf.sin(t), lambda dy: 3.0 * dy * tf.cos(t)

    @tf.custom_gradient
    def with_variable(t):
        def grad(dy, variables=None):
            return 2.0 * dy, [tf.ones_like(each) * tf.reduce_sum(dy * t) for each in variables]

        return t * p.w, grad

    return tripled(a) if p.k % 2 else with_variable(a)


def _cg_custom(p, a, b):
    @cg.custom_gradient
    def doubled(t, u):
        return tf.sin(t) * u, lambda dy: (2.0 * dy * u, dy * tf.cos(t))

    return doubled(a, b) if p.k % 2 else cg.embed_gradient(tf.tanh(a), tf.cos(a), a) + 0.1 * b


def _nested(p, a, b):
    return cg.recompute_grad(lambda t: tf.sin(t @ p.w) * b, memory="auto" if p.k % 3 == 0 else None)(a)


def _state(p, a, b):
    before = a * p.v.state
    p.v.state.assign_add(0.5) if p.k % 2 else p.v.state.assign(tf.reduce_mean(tf.tanh(b)))
    return before + b * p.v.state


def _stateless(p, a, b):
    if p.k % 2:
        return a * tf.random.stateless_uniform(tf.shape(a), [p.k, 1], dtype=a.dtype)
    return tf.nn.experimental.stateless_dropout(a, 0.3, seed=[1, p.k]) + 0.1 * b


def _random(p, a, b):
    def in_a_loop():
        body = lambda i, t: (i + 1, t * tf.random.uniform([N, N], dtype=a.dtype))  # noqa: E731
        return tf.while_loop(lambda i, t: i < 2, body, (0, tf.ones([N, N], a.dtype)), maximum_iterations=2)[1]

    kinds = [
        lambda: tf.nn.dropout(tf.ones([N, N], a.dtype), 0.3),
        lambda: tf.random.normal(tf.shape(a), dtype=a.dtype),
        in_a_loop,
    ]
    return a * p.drawn(kinds[p.k % 3]) + 0.1 * b


# Those that cannot run in tf.vectorized_map.
STATEFUL = {"state": _state, "random": _random}
STEPS = {
    "add": lambda p, a, b: 0.5 * (a + b),
    "mul": lambda p, a, b: a * tf.sin(b),
    "sub": lambda p, a, b: a - 0.7 * tf.tanh(b),
    "exp": lambda p, a, b: tf.exp(-(a**2)),
    "relu": lambda p, a, b: tf.nn.relu(a) + tf.where(a > b, 0.1 * b, 0.2 * a),
    "softmax": lambda p, a, b: tf.nn.softmax(tf.transpose(a) if p.k % 2 else a) * b,
    "dense": lambda p, a, b: tf.nn.relu(tf.nn.bias_add(tf.matmul(a, p.w, transpose_a=p.k % 2 == 1), p.v.bias)),
    "matmul": lambda p, a, b: 0.3 * tf.matmul(a, b, transpose_a=p.k % 2 == 1, transpose_b=p.k % 3 == 1),
    "product": lambda p, a, b: tf.tanh(a @ p.w) + b @ p.w,  # Reads a variable twice.
    "reduce": lambda p, a, b: a * (tf.reduce_sum, tf.reduce_max, tf.reduce_mean)[p.k % 3](b, p.k % 2, keepdims=True),
    "stop": lambda p, a, b: b * tf.stop_gradient(a) + tf.stop_gradient(p.w),
    "gather": lambda p, a, b: tf.gather(a, [2, 0, 0, 3], axis=p.k % 2) + 0.1 * b,
    "shape": lambda p, a, b: _like(a)(tf.reshape(b, [-1])) / tf.cast(tf.size(a), a.dtype),
    "name": lambda p, a, b: cg.checkpoint_name(tf.sin(a), "named"),
    "check": lambda p, a, b: tf.debugging.check_numerics(tf.sin(a), "not finite") + b,
    "conv": _conv,
    "normalize": _normalize,
    "split": _split,
    "unstack": _unstack,
    "top_k": _top_k,
    "lookup": _lookup,
    "cond": _cond,
    "while": _while,
    "list": _list,
    "call": _call,
    "tf_custom": _tf_custom,
    "cg_custom": _cg_custom,
    "nested": _nested,
    "stateless": _stateless,
    **STATEFUL,
}
