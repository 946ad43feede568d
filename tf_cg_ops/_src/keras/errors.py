"""The messages about Keras models and layers, in the form of those in `tf_cg_ops/_errors.py`."""

KERAS_BACKEND = (
    "{function}: Keras does not compute with TensorFlow here; expected the backend 'tensorflow', got {got!r}. Set "
    "KERAS_BACKEND=tensorflow in the environment, before Keras is imported."
)
FUNCTIONAL_VARIABLES = (
    "{api}: '{function}' reads trainable variables, of which a functional model would not know; expected a function of "
    "its arguments alone, got one that reads {names}. Call it in the call() of a keras.layers.Layer that holds them."
)
FUNCTIONAL_OUTPUT = (
    "{api}: '{function}' returns what no functional model can hold; expected Tensors, got a {got} among them. Return "
    "Tensors alone."
)
FUNCTION_WITHOUT_NAME = (
    "tf_cg_ops: Keras saves functions by their names, and this one has none; expected a function made with def, got "
    "{name!r}. Decorate a named function, and register it with @keras.saving.register_keras_serializable() on top."
)
FUNCTION_NOT_FOUND = (
    "tf_cg_ops: the model calls a function that Keras does not know; expected {name!r} among the registered ones, got "
    "none. Run the code that decorates it with @keras.saving.register_keras_serializable() first, or pass "
    "custom_objects={{{name!r}: the function}}."
)
EMBED_INPUTS = (
    "layers.EmbedGradient: it takes three inputs; expected a list [fx, gx, x], got {got}. Pass several x, and the gx "
    "of each, as lists inside of that list."
)
FUNCTION_UNKNOWN = (
    "layers.StraightThrough: the function is not known by this name; expected one of {known}, or a function, got "
    "{got}. Pass the function itself."
)
NUMBER_NOT_KNOWN = (
    "layers.{layer}: {argument} has no value to be saved; expected a number or a Variable, got a Tensor of a graph. "
    "Pass the Tensor with each call, or hold its value in a Variable."
)
NUMBER_TRAINABLE = (
    "layers.{layer}: {argument} has no gradient, and would count among what is trained; expected a number or a "
    "Variable that is not trainable, got one that is. Make it with trainable=False."
)
ARGUMENT_NOT_SAVED = (
    "tf_cg_ops: an argument of '{function}' would not come back from a file as what it is; expected numbers, strings, "
    "dense Tensors, arrays, and lists, tuples and dictionaries of them, got {got}. Pass it in the call() of a "
    "keras.layers.Layer."
)
