"""Changes the Python modules in one place at a time; the tests must notice.

    python -m qa.faults.mutants [--one-of 16] [--only TEXT]

The operators of Cosmic Ray (https://cosmic-ray.readthedocs.io) choose places and changes: a number, a
comparison, a sign, a condition, a decorator, a loop. Of all places some are drawn, the same ones in each run. The tests
that run the line, as Coverage.py saw them (https://coverage.readthedocs.io), come first, then all of the module's, then
those of other modules that run the line.
Each outcome goes into docs/reliability/mutants.json, where a stopped run continues. `make mutants` installs its
requirements.
"""

import argparse
import ast
import concurrent.futures
import difflib
import hashlib
import importlib.util
import json
import os
import pathlib
import queue
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.support.sources import ROOT

from .harmless_mutants import HARMLESS
from .inject import copy_of_the_sources, first_failure, run

RESULTS = ROOT / "docs" / "reliability" / "mutants.json"
# The tests that run each line: found once, and kept until a module changes.
COVERAGE = ROOT / "build" / "mutants"
# The number of tests of a line that run first: enough to notice most changes of it.
FIRST = 60
# In seconds, for these tests: a change may cause an endless loop.
TIME_LIMIT = 300
PACKAGE = "tf_cg_ops"
CORES = len(os.sched_getaffinity(0))
# Programs and generated files, which no test knows line by line.
LEFT_OUT = ("_src/demo/", "_version.py", "_build_info.py")

EMBED = (
    "embed_gradient/test_value.py",
    "embed_gradient/test_arguments.py",
    "embed_gradient/test_errors.py",
    "embed_gradient/test_shape_errors.py",
    "embed_gradient/test_stopping.py",
    "embed_gradient/test_callable_gx.py",
    "embed_gradient/test_callable_gx_calls.py",
    "embed_gradient/test_orders.py",
    "embed_gradient/test_shape_table.py",
)
DECORATOR = (
    "custom_gradient/test_arguments.py",
    "custom_gradient/test_errors.py",
    "custom_gradient/test_variables.py",
    "custom_gradient/test_composites.py",
    "custom_gradient/test_rules.py",
    "custom_gradient/test_modes.py",
    "custom_gradient/test_decorated_objects.py",
    "graph/test_malformed_gradients.py",
)
RULES = (
    "custom_gradient/test_live_rules.py",
    "custom_gradient/test_recursive_rules.py",
    "custom_gradient/test_tensorflow_behaviour.py",
    "custom_gradient/test_tensorflow_behaviour_graphs.py",
)
READY_MADE = (
    "ready_made/test_functions.py",
    "ready_made/test_watch.py",
    "custom_gradient/test_variant_errors.py",
    "keras/test_layer_numbers.py",
    "keras/test_functional_models.py",
)
IMPLICIT = (
    "ready_made/test_implicit_root.py",
    "ready_made/test_implicit_root_solvers.py",
    "ready_made/test_implicit_structures.py",
)
NUMPY_FUNCTION = (
    "external/test_numpy_function.py",
    "external/test_numpy_function_errors.py",
    "external/test_numpy_function_calls.py",
    "external/test_numpy_adjoint.py",
    "external/test_numpy_adjoint_errors.py",
    "external/test_numpy_residuals.py",
)
LINEAR = ("ready_made/test_linear.py",)
KERAS = (
    "keras/test_functional_arguments.py",
    "keras/test_functional_models.py",
    "keras/test_layers.py",
    "keras/test_layer_numbers.py",
    "keras/test_jit.py",
    "keras/test_scopes.py",
)
SAVED_MODEL = (
    "saved_model/test_inputs.py",
    "saved_model/test_inspect.py",
    "saved_model/test_strip.py",
    "saved_model/test_strip_errors.py",
    "saved_model/test_compare.py",
    "saved_model/test_strip_calls.py",
    "saved_model/test_strip_kinds.py",
    "saved_model/test_malformed_files.py",
    "saved_model/test_override.py",
    "saved_model/test_adopt.py",
    "saved_model/test_command_line.py",
)
TESTING = (
    "testing/test_correct_gradients.py",
    "testing/test_errors.py",
    "testing/test_numeric.py",
    "testing/test_wrong_gradients.py",
    "testing/test_library.py",
    "testing/test_wrapped_modes.py",
)
LOOPS = (
    "memory/test_scan.py",
    "memory/test_while_loop.py",
    "memory/test_loop_state.py",
)
OVERRIDE = (
    "rewrite/test_override_gradients.py",
    "rewrite/test_override_errors.py",
    "rewrite/test_rules.py",
    "graph/test_autograph.py",
)
RECOMPUTE = (
    "memory/test_recompute_state.py",
    "memory/test_recompute_errors.py",
    "memory/test_recompute_captures.py",
)
RECOMPUTE_LAYERS = (
    "keras/test_recompute_layer.py",
    "keras/test_recompute_models.py",
    "keras/test_remat.py",
)
# The files of tests for each module, or for all modules of a folder.
TESTS = {
    "__init__.py": ("graph/test_import.py", "keras/test_functional_models.py"),
    "__main__.py": ("saved_model/test_command_line.py", "saved_model/test_command_line_stopped.py"),
    "_src/custom_gradient/checks.py": (*EMBED, *DECORATOR, *RULES),
    "_src/command_line.py": ("saved_model/test_command_line.py", "saved_model/test_command_line_stopped.py"),
    "_src/core/convert.py": (*EMBED, *DECORATOR),
    "_src/embed_gradient/lazy_gx.py": (*EMBED, "graph/test_vectorized_map.py"),
    "_src/embed_gradient/dynamic_axis.py": (*EMBED, "kernels/test_numerics.py", "graph/test_xla.py"),
    "_src/ops/": (
        *EMBED,
        "custom_gradient/test_indexed_slices.py",
        "kernels/test_raw_ops.py",
        "graph/test_forward_mode.py",
        "graph/test_vectorized_map.py",
    ),
    "_src/ready_made/implicit_root.py": IMPLICIT,
    "_src/ready_made/implicit_system.py": IMPLICIT,
    "_src/ready_made/unknowns.py": IMPLICIT,
    "_src/custom_gradient/inline.py": (*DECORATOR, "graph/test_control_flow.py"),
    "_src/core/library.py": ("graph/test_import.py", "packaging/test_build_library.py", "kernels/test_built_in_ops.py"),
    "_src/custom_gradient/graph_rule.py": (
        *DECORATOR,
        *RULES,
        "kernels/test_raw_ops.py",
        "graph/test_forward_mode.py",
        "graph/test_control_flow.py",
    ),
    "_src/core/python_op.py": (*NUMPY_FUNCTION, "ready_made/test_watch.py"),
    "_src/core/slices.py": ("custom_gradient/test_indexed_slices.py",),
    "_src/ops/composed.py": ("kernels/test_built_in_ops.py", "kernels/test_built_in_kernel.py"),
    "_src/core/tapes.py": (*EMBED, *DECORATOR),
    "_src/custom_gradient/wording.py": (*DECORATOR, "custom_gradient/test_variant_errors.py"),
    "_src/core/tf_internal.py": ("packaging/test_tf_internal.py", *EMBED, *DECORATOR),
    "_src/core/pytree.py": (*EMBED, *DECORATOR, "custom_gradient/test_variants.py"),
    "_src/custom_gradient/decorator.py": (
        *DECORATOR,
        "keras/test_functional_arguments.py",
        "keras/test_functional_models.py",
        "graph/test_autograph.py",
    ),
    "_src/custom_gradient/traced_rule.py": (*DECORATOR, *RULES),
    "_src/custom_gradient/custom_vjp.py": (
        "custom_gradient/test_variants.py",
        "custom_gradient/test_variant_errors.py",
        "graph/test_autograph.py",
    ),
    "_src/custom_gradient/pass_through.py": (
        "custom_gradient/test_variants.py",
        "custom_gradient/test_variant_errors.py",
        "graph/test_autograph.py",
    ),
    "_src/memory/checkpointed_loop.py": LOOPS,
    "_src/memory/loop_step.py": LOOPS,
    "_src/memory/scan.py": LOOPS,
    "_src/memory/segments.py": LOOPS,
    "_src/memory/while_loop.py": LOOPS,
    "_src/memory/": (
        "custom_gradient/test_variants.py",
        "memory/test_recompute_state.py",
        "memory/test_recompute_keep.py",
        "memory/test_recompute_errors.py",
        "memory/test_recompute_captures.py",
    ),
    "_src/rewrite/override_gradients.py": OVERRIDE,
    "_src/rewrite/overridden_op.py": (*OVERRIDE, "saved_model/test_override.py"),
    "_src/rewrite/graph_copy.py": (*OVERRIDE, *RECOMPUTE),
    "_src/rewrite/python_gradients.py": (*LOOPS, "memory/test_recompute_captures.py"),
    "_src/rewrite/rule_table.py": (*OVERRIDE, "saved_model/test_override.py"),
    "rules.py": OVERRIDE,
    "_src/rewrite/": RECOMPUTE,
    "sysconfig.py": ("kernels/test_gpu_kernels_query.py", "graph/test_import.py", "graph/test_autograph.py"),
    "_src/embed_gradient/alignment.py": (*EMBED, "kernels/test_built_in_ops.py", "graph/test_vectorized_map.py"),
    "_src/embed_gradient/vjp.py": (*EMBED, "custom_gradient/test_indexed_slices.py"),
    "_src/": ("graph/test_import.py",),
    "_src/core/": (*EMBED, *DECORATOR),
    "_src/custom_gradient/": DECORATOR,
    "_src/embed_gradient/": EMBED,
    "_src/custom_gradient/custom_jvp.py": ("custom_gradient/test_custom_jvp.py", "graph/test_autograph.py"),
    "_src/custom_gradient/unused_outputs.py": ("custom_gradient/test_unused_outputs.py",),
    "_src/ops/custom_gradient_token.py": NUMPY_FUNCTION,
    "_src/external/": NUMPY_FUNCTION,
    "linear.py": LINEAR,
    "_src/linear/": LINEAR,
    "_src/ready_made/": READY_MADE,
    "_src/keras/": KERAS,
    "_src/layers/": KERAS,
    "_src/layers/keras2.py": (*KERAS, *RECOMPUTE_LAYERS),
    "_src/layers/keras3.py": (*KERAS, *RECOMPUTE_LAYERS),
    "_src/layers/layer_call.py": RECOMPUTE_LAYERS,
    "_src/layers/recompute.py": RECOMPUTE_LAYERS,
    "_src/layers/remat.py": RECOMPUTE_LAYERS,
    "compat/": ("compat/test_tfp_math.py", "compat/test_bayesflow.py", "keras/test_functional_models.py"),
    "layers/": ("keras/test_layers.py",),
    "saved_model/": SAVED_MODEL,
    "testing/": TESTING,
}


class Mutant(NamedTuple):
    """One change of one module."""

    module: str
    line: int
    before: str
    after: str
    text: str

    @property
    def name(self) -> str:
        """The name of the mutant."""
        return name_of(self._asdict())


def tests_for(module: str) -> tuple[str, ...]:
    """The files of tests for a module."""
    return TESTS.get(module) or TESTS[module.rpartition("/")[0] + "/"]


def modules() -> list[str]:
    """The modules that are changed."""
    paths = (str(path.relative_to(ROOT / PACKAGE)) for path in (ROOT / PACKAGE).rglob("*.py"))
    return sorted(path for path in paths if not path.startswith(LEFT_OUT))


def what_runs(text: str) -> str:
    """The code without its annotations, which only type checkers read."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.unparse(tree)


def changed_lines(text: str, changed: str) -> tuple[int, str, str]:
    """The number of the first line that differs, and its text before and after."""
    matcher = difflib.SequenceMatcher(None, text.splitlines(), changed.splitlines(), autojunk=False)
    _, begin, end, other, last = next(op for op in matcher.get_opcodes() if op[0] != "equal")
    strip = lambda lines: " ".join(line.strip() for line in lines)  # noqa: E731
    return begin + 1, strip(text.splitlines()[begin:end]), strip(changed.splitlines()[other:last])


def draw(module: str, one_of: int) -> Iterator[Mutant]:
    """Some of a module's mutants: one of every `one_of` places, with one change each."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code

    text = (ROOT / PACKAGE / module).read_text()
    nodes = list(ast_nodes(get_ast(text)))
    places: dict[Any, list[tuple[Any, int]]] = {}
    for name in sorted(plugins.operator_names()):
        operator = plugins.get_operator(name)
        # Operators that need names as arguments, and one that cannot replace a name with a dot.
        if operator.arguments() or name == "core/ExceptionReplacer":
            continue
        seen = 0
        for node in nodes:
            for position in operator().mutation_positions(node):
                places.setdefault(position, []).append((operator(), seen))
                seen += 1
    order = sorted(places)
    generator = random.Random(module)
    generator.shuffle(order)
    wanted = -(-len(order) // one_of)
    for position in order:
        changed = mutate_code(text, *generator.choice(places[position]))
        # Changes of annotations, and those without effect, say nothing about the tests.
        if wanted and changed is not None and what_runs(changed) != what_runs(text):
            wanted -= 1
            yield Mutant(module, *changed_lines(text, changed), changed)


def exists(test: str) -> bool:
    """Whether a test of this name exists."""
    file, _, function = test.partition("::")
    return f"def {function.partition('[')[0]}(" in (ROOT / "tests" / file).read_text()


class Coverage:
    """The tests that run each line."""

    def __init__(self, folder: pathlib.Path, chosen: list[str]) -> None:
        """Runs all tests of some modules in a copy of the sources, unless the same sources were measured before."""
        from coverage import CoverageData

        files = sorted({test for module in chosen for test in tests_for(module)})
        texts = [(ROOT / PACKAGE / module).read_bytes() for module in modules()]
        digest = hashlib.sha256(b"".join([*texts, *map(str.encode, files)])).hexdigest()[:12]
        path = COVERAGE / f"coverage-{digest}"
        if not path.exists():
            print(f"looking which tests run which line, in {len(files)} files of tests", file=sys.stderr, flush=True)
            what = ("-m", "pytest", "-n", str(CORES), "--dist", "loadfile", "-p", "no:cacheprovider")
            how = (f"--cov={PACKAGE}", "--cov-context=test", "--cov-report=")
            ended = run(folder, *what, *how, *(f"tests/{name}" for name in files), time_limit=3600)
            if ended.returncode != 0:
                raise SystemExit(f"qa: tests fail without a change; got\n{ended.stdout[-5000:]}")
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(folder / ".coverage", path)
        data = CoverageData(str(path))
        data.read()
        self._tests: dict[str, dict[int, list[str]]] = {}
        for measured in data.measured_files():
            _, _, module = measured.rpartition(f"/{PACKAGE}/")
            self._tests[module] = {
                line: sorted({context.rpartition("|")[0].removeprefix("tests/") for context in contexts} - {""})
                for line, contexts in data.contexts_by_lineno(measured).items()
            }

    def tests_of(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Some of the tests that run the line, from all over them: of the module's tests, and of those of others."""
        lines = self._tests.get(mutant.module, {})
        line = max((known for known in lines if known <= mutant.line), default=None)
        files = tests_for(mutant.module)
        own: list[str] = []
        others: list[str] = []
        for test in filter(exists, lines.get(line, [])):
            (own if test.partition("::")[0] in files else others).append(test)
        return tuple(tests[:: -(-len(tests) // FIRST) or 1] for tests in (own, others))


def outcome(mutant: Mutant, folder: pathlib.Path, first: list[str], last: list[str]) -> dict[str, Any]:
    """Runs the tests of a mutant in a copy of the sources."""
    path = folder / PACKAGE / mutant.module
    text = path.read_text()
    path.write_text(mutant.text)
    try:
        noticed = first_failure(folder, first, TIME_LIMIT) if first else None
        noticed = noticed or first_failure(folder, tests_for(mutant.module))
        if last and noticed is None:
            noticed = first_failure(folder, last, TIME_LIMIT)
    finally:
        path.write_text(text)
    row = {name: getattr(mutant, name) for name in ("module", "line", "before", "after")}
    return row | {"noticed_by": noticed}


def name_of(row: dict[str, Any]) -> str:
    """The name of the mutant that a result is about, as long as nobody changes the line."""
    return f"{row['module']}: {row['before']} -> {row['after']}"


def missed(rows: list[dict[str, Any]]) -> list[str]:
    """The names of those that no test notices and nobody has judged to be harmless."""
    return [name for row in rows if row["noticed_by"] is None and (name := name_of(row)) not in HARMLESS]


def main() -> None:
    """Runs the tests on mutants that have no outcome yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one-of", type=int, default=16, metavar="N", help="of every so many places one is changed")
    parser.add_argument("--only", default="", metavar="TEXT", help="modules with this in their name")
    parser.add_argument("--survivors", action="store_true", help="once more those that nothing noticed, unless judged")
    arguments = parser.parse_args()
    if arguments.one_of < 1:
        parser.error(f"--one-of: expected 1 or more, got {arguments.one_of}")
    for name in ("cosmic_ray", "pytest_cov"):
        if importlib.util.find_spec(name) is None:
            parser.error(f"found no {name}; `make mutants` installs it")
    known = {name_of(row): row for row in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    chosen = [name for name in modules() if arguments.only in name]
    if not chosen:
        parser.error(f"--only {arguments.only}: no module has that in its name")
    drawn = [mutant for module in chosen for mutant in draw(module, arguments.one_of)]
    names = {mutant.name for mutant in drawn}  # Outcomes of lines that have changed are forgotten.
    known = {name: row for name, row in known.items() if row["module"] not in chosen or name in names}
    again = set(missed(list(known.values()))) if arguments.survivors else set()
    waiting = [mutant for mutant in drawn if mutant.name not in known or mutant.name in again]
    print(f"{len(drawn)} mutants, {len(drawn) - len(waiting)} of them known", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="tf_cg_ops-") as temporary:
        folders: queue.Queue[pathlib.Path] = queue.Queue()
        for number in range(CORES):
            folder = copy_of_the_sources(pathlib.Path(temporary) / str(number))
            for compiled in (*(ROOT / PACKAGE).glob("*.so"), ROOT / PACKAGE / "_build_info.py"):
                shutil.copy2(compiled, folder / PACKAGE)
            folders.put(folder)
        coverage = Coverage(folder, chosen)

        def try_out(mutant: Mutant) -> tuple[Mutant, dict[str, Any], float]:
            folder, start = folders.get(), time.monotonic()
            try:
                return mutant, outcome(mutant, folder, *coverage.tests_of(mutant)), time.monotonic() - start
            finally:
                folders.put(folder)

        with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
            for done, (mutant, row, seconds) in enumerate(pool.map(try_out, waiting), start=1):
                known[mutant.name] = row
                rows = sorted(known.values(), key=lambda row: (row["module"], row["line"]))
                RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
                said = f"{done} of {len(waiting)}, {seconds:.0f} s, {mutant.name}: {row['noticed_by']}"
                print(said, file=sys.stderr, flush=True)
        # Alone, or in another order, a test may fail without a change. A renamed test is left out.
        noticed = sorted({(known[mutant.name]["noticed_by"] or "").partition("[")[0] for mutant in drawn})
        if failed := first_failure(folder, [test for test in noticed if "/test_" in test]):
            raise SystemExit(f"qa: expected that what noticed a change passes without one, but {failed} fails")
    if names := missed([known[mutant.name] for mutant in drawn]):
        raise SystemExit("qa: the tests noticed nothing of\n" + "\n".join(names))


if __name__ == "__main__":
    main()
