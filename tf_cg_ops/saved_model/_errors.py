"""The messages about SavedModels, in the form of those in `tf_cg_ops/_errors.py`."""

SAVED_MODEL_MISSING = (
    "{api}: there is no SavedModel at '{path}'; expected a folder with saved_model.pb, got {got}. Pass the folder that "
    "tf.saved_model.save wrote."
)
SAVED_MODEL_UNREADABLE = (
    "{api}: '{path}' cannot be read; expected a SavedModel with its graphs, got {got}. It may be cut off: save or copy "
    "the model again."
)
SAVED_MODEL_VARIABLES = (
    "{api}: the values of the variables are missing; expected the file {file} in '{path}', got none. Copy the "
    "whole folder of the SavedModel."
)
TARGET_EXISTS = (
    "{api}: the target is there already; expected a path that does not exist, got '{path}'. Name another one, or "
    "remove it first."
)
TARGET_IN_SOURCE = (
    "{api}: the target lies inside of the source; expected a path outside of it, got '{path}'. Name another one."
)
TARGET_WITHOUT_FOLDER = (
    "{api}: the target has no folder to lie in; expected that '{path}' is a folder, got none. Make it first."
)
INPUTS_UNKNOWN = (
    "{api}: inputs names no {what}; expected {expected}, got {got}. Name signatures and their arguments as the "
    "model does."
)
INPUTS_REFUSED = (
    "{api}: the source refuses the inputs; expected that {name} takes them, got {error}. Pass what the signature takes."
)
SOURCE_FAILS = (
    "{api}: TensorFlow cannot load the source, '{path}'; expected that tf.saved_model.load takes it, got {error}. Copy "
    "the whole folder of the SavedModel, or leave the check out with check=False (--no-check)."
)
TARGET_FAILS = (
    "{api}: the stripped model fails where the source does not; expected that {name} works, got {error}. Nothing was "
    "written; please report it, with the model."
)
OUTPUTS_DIFFER = (
    "{api}: the stripped model computes something else; expected that {name} gives what the source gives, got another "
    "{where}. Nothing was written; please report it, with the model."
)
GRAPH_REFUSED = (
    "{api}: TensorFlow cannot build the graphs in '{path}'; expected whole graphs of ops that are registered, got: "
    "{got}. Import the packages first that bring the other ops, or, if the file was changed, save or copy the model "
    "again."
)
FINGERPRINT_REFUSED = (
    "{api}: TensorFlow makes no fingerprint of the graphs in '{path}'; expected names of functions as "
    "tf.saved_model.save gives them, got: {got}. The file was changed: save or copy the model again."
)
INPUTS_FILE = (
    "{api}: '{path}' holds no inputs; expected an .npz file with arrays named {expected}, got {got}. Write it with "
    "numpy.savez."
)
