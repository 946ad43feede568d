"""The demo on real data that `tf-cg-ops demo` runs."""

import importlib.util
import os
import pathlib
import sys

_PACKAGES = {"sklearn": "scikit-learn", "scipy": "SciPy", "matplotlib": "Matplotlib"}


def run_quick() -> int:
    """Runs the part that needs only TensorFlow and NumPy; returns the exit status like `run`."""
    from . import quick
    from .report import Report

    report = Report()
    quick.run(report)
    report.show()
    return 0 if report.all_hold() else 1


def run(output: pathlib.Path) -> int:
    """Runs all parts, prints the findings, and returns the exit status: 1 if a finding does not hold."""
    missing = [name for module, name in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        print(
            f"tf-cg-ops demo: scikit-learn, SciPy and Matplotlib must be installed, missing: {', '.join(missing)}. Run "
            "pip install 'tf_cg_ops[demo]', or tf-cg-ops demo --quick, which needs none of them.",
            file=sys.stderr,
        )
        return 1
    # The demo uses the optimizer and progress bar of Keras, which reads this when it is imported.
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
