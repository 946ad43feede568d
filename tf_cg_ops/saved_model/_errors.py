"""The messages about SavedModels, in the form of those in `tf_cg_ops/_errors.py`."""

SAVED_MODEL_MISSING = (
    "{api}: there is no SavedModel at '{path}'; expected a folder with saved_model.pb, got {got}. Pass the folder that "
    "tf.saved_model.save wrote."
)
SAVED_MODEL_UNREADABLE = (
    "{api}: '{path}' cannot be read; expected a SavedModel with its graphs, got {got}. It may be cut off: save or copy "
    "the model again."
)
INPUTS_UNKNOWN = (
    "{api}: inputs names no {what}; expected {expected}, got {got}. Name signatures and their arguments as the "
    "model does."
)
TARGET_FAILS = (
    "{api}: the stripped model fails where the source does not; expected that {name} works, got {error}. Nothing was "
    "written; please report it, with the model."
)
