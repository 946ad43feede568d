"""The demonstration on real data that `tf-cg-ops demo` runs."""

import importlib.util
import os
import pathlib
import sys

_PACKAGES = {"sklearn": "scikit-learn", "scipy": "SciPy", "matplotlib": "Matplotlib"}


def run_quick() -> int:
    """Runs the part that needs only TensorFlow and NumPy; returns the exit status as `run` does."""
    from . import quick
    from .report import Report

    report = Report()
    quick.run(report)
    report.show()
    return 0 if report.all_hold() else 1


def run(output: pathlib.Path) -> int:
    """Runs all parts, prints the findings, and returns the exit status: 1 if any finding does not hold."""
    missing = [name for module, name in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        print(
            f"tf_cg_ops demo: it needs scikit-learn, SciPy and Matplotlib; there is no {' and no '.join(missing)}. "
            "Install them with: pip install 'tf_cg_ops[demo]'. Without them, tf-cg-ops demo --quick runs.",
            file=sys.stderr,
        )
        return 1
    # The demo takes its optimizer and progress bar from Keras, which reads this when it is imported.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    from . import black_box, digits, plot
    from .report import Report

    output.mkdir(parents=True, exist_ok=True)
    report = Report()
    trained = digits.run(report)
    digits.compare_after_reloading(trained, output / "saved_model", report)
    fitted = black_box.run(report)
    plot.save(trained.curves, fitted, output / "learning_curves.png")
    report.save(output / "results.json")
    report.show()
    print(f"\nLearning curves: {output / 'learning_curves.png'}\nFigures:         {output / 'results.json'}")
    return 0 if report.all_hold() else 1
