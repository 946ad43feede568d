"""Parts of messages that several tests quote."""

CHECK_SHAPES = "Shapes are aligned from the right, as in NumPy: check those of fx, gx and x."
JACOBIAN = "If gx is a Jacobian, of the shape of fx followed by that of x, pass axis=None."
PER_EXAMPLE = (
    "Shapes are aligned from the right: if gx is a Jacobian for each example, [batch, outputs, inputs], give x a "
    "dimension of size 1 for the outputs, as in x[:, None, :]."
)
