"""The messages about Keras models and layers, in the form of those in `tf_cg_ops/_errors.py`."""

FUNCTIONAL_VARIABLES = (
    "{api}: '{function}' reads trainable variables, of which a functional model would not know; expected a function of "
    "its arguments alone, got one that reads {names}. Call it in the call() of a keras.layers.Layer that holds them."
)
FUNCTIONAL_OUTPUT = (
    "{api}: '{function}' returns what no functional model can hold; expected Tensors, got a {got} among them. Return "
    "Tensors alone."
)
EMBED_INPUTS = (
    "layers.EmbedGradient: it takes three inputs; expected a list [fx, gx, x], got {got}. Pass several x, and the gx "
    "of each, as lists inside of that list."
)
