"""The figures as Markdown."""

import csv
import math
from typing import Any

from ..harness import names
from ..harness.names import DECORATOR, EMBED, KERNEL, LOG, SQRT, TF, TF_LOOP
from ..harness.record import ROOT
from .targets import evaluate

# Tensors with this many elements do not fit into a cache.
LARGE = 4_000_000
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def digits(value: float, count: int = 3) -> str:
    """So many digits, without an exponent where that is readable."""
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.{count}g}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{value:.{count - 1}e}"


def quantity(value: float, unit: str) -> str:
    """A number with its unit."""
    if unit != "s":
        return f"{digits(value)} {unit}".strip()
    scale, name = next(((scale, name) for scale, name in _SECONDS if value >= scale), _SECONDS[-1])
    return f"{digits(value / scale)} {name}"


def rows(header: tuple[str, ...], *body: tuple[str, ...]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def origin(run: dict[str, Any]) -> str:
    """The machine and the date, in a sentence or two."""
    machine, versions, commit = run["machine"], run["versions"], run["commit"]
    names = {"tensorflow-cpu": "TensorFlow", "tensorflow": "TensorFlow"}
    names |= {"tensorflow-probability": "TensorFlow Probability", "jax": "JAX", "numpy": "NumPy"}
    present = [f"{names[key]} {versions[key]}" for key in names if versions.get(key)]
    state = " with changes" if commit["dirty"] else ""
    cache = machine["last_level_cache_bytes"]
    return (
        f"{machine['processor']}, {machine['cores']} cores"
        + (f", {cache / 2**20:.0f} MB of last-level cache" if cache else "")
        + f"; {', '.join(present)}, Python {versions['python']}; commit {(commit['hash'] or 'unknown')[:12]}{state}, "
        + run["started"][:10]
        + "".join(f"; {subjects}: commit {commit}" for commit, subjects in _later_runs(run).items())
        + ("; quick run: the figures mean nothing" if run["quick"] else "")
        + "."
    )


def _later_runs(run: dict[str, Any]) -> dict[str, str]:
    """The subjects with cases that were measured later, by the commit and the date."""
    found: dict[str, set[str]] = {}
    for case in run["cases"]:
        if "commit" in case:
            key = f"{(case['commit']['hash'] or 'unknown')[:12]}, {case['started']}"
            found.setdefault(key, set()).add(case["subject"].replace("_", " "))
    return {key: ", ".join(sorted(subjects)) for key, subjects in found.items()}


def targets(run: dict[str, Any]) -> str:
    """Each target with its limit, the measured figure, and whether it is reached."""
    body = []
    for found in evaluate(run["cases"]):
        reached = {True: "yes", False: "**no**", None: ""}[found.reached]
        name, limit = f"{found.target.name}<br>`{found.target.expression}`", digits(found.target.limit)
        # A figure that is only rounded to its limit has another digit, which shows the difference.
        count = 4 if found.measured and digits(found.measured["median"]) == limit else 3
        body.append((name, limit, _spread(found.measured, count) or "not measured", reached))
    return rows(("target", "at most", "median (p20 to p80)", "reached"), *body)


def memory(run: dict[str, Any]) -> str:
    """The bytes to move, the speed of the yardstick, and the speed of the kernel compared with it."""
    body = []
    for case in run["cases"]:
        found = [name for name in names.YARDSTICKS if name in case["implementations"]]
        if case["elements"] >= LARGE and case["bytes_moved"] and found:
            yardstick, kernel = case["implementations"][found[0]]["median"], case["implementations"][KERNEL]["median"]
            times = [f"{quantity(t, 's')}<br>{case['bytes_moved'] / t / 1e9:.1f} GB/s" for t in (yardstick, kernel)]
            ratio = _spread(case["ratios"][KERNEL][found[0]])
            moved = f"{case['bytes_moved'] / 1e6:,.0f} MB"
            body.append((f"{case['subject']}: {case['case']}<br>{moved}, {found[0]}", *times, ratio))
    return rows(("case<br>bytes moved at least, yardstick", "yardstick", f"{KERNEL}", "ratio (p20 to p80)"), *body)


def loops(run: dict[str, Any]) -> str:
    """The memory of loops: a row for each length, a column for each implementation."""
    (case,) = (case for case in run["cases"] if (case["subject"], case["case"]) == ("loops", "peak memory"))
    found = by_length(case)
    columns = (TF_LOOP, SQRT, LOG)
    body = []
    for num_steps in found[SQRT]:
        cells = [f"{found[name][num_steps]:,.0f}" if num_steps in found[name] else "not run" for name in columns]
        body.append((f"{num_steps:,}", *cells))
    return rows(("steps", *(f"`{name}`" for name in columns)), *body)


def by_length(case: dict[str, Any]) -> dict[str, dict[int, float]]:
    """The medians of a case whose implementations have several lengths: by name, then by length."""
    found: dict[str, dict[int, float]] = {}
    for name, summary in case["implementations"].items():
        of, _, length = name.rpartition(", ")
        found.setdefault(of, {})[int(length.split()[0].replace(",", ""))] = summary["median"]
    return found


def growth(run: dict[str, Any]) -> str:
    """The costs of the largest size, and the power with which each has grown since the size before."""
    body = []
    columns: list[str] = []
    for case in (case for case in run["cases"] if case["subject"] == "growth"):
        found = by_length(case)
        columns = list(found)
        cells = []
        for figures in found.values():
            (n, before), (most, after) = list(figures.items())[-2:]
            power = f" (n^{math.log(after / before, most / n):.1f})" if min(before, after) > 0 else ""
            cells.append(f"{quantity(after, case['unit'])}{power}")
        body.append((f"{case['case']}, n = {most:,}", *cells))
    return rows(("", *(f"`{name}`" for name in columns)), *body)


def of_models(run: dict[str, Any]) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    """The medians of whole models, by network and mode, then implementation, then kind (as in the case's name)."""
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for case in (case for case in run["cases"] if case["subject"] == "models"):
        kind, network, mode = case["case"].split(", ")
        for name, summary in case["implementations"].items():
            found.setdefault((network, mode), {}).setdefault(name, {})[kind] = summary["median"]
    return found


def models(run: dict[str, Any]) -> str:
    """The time and the memory of a step of each model, in each mode."""
    columns = (EMBED, DECORATOR, TF, names.TFP)
    body = []
    for (network, mode), by_name in of_models(run).items():
        found = map(by_name.get, columns)
        cells = [f"{quantity(f['time'], 's')}<br>{f['peak memory']:,.0f} MiB" if f else "" for f in found]
        body.append((f"{network}, {mode}", *cells))
    return rows(("", *(f"`{name}`" for name in columns)), *body)


def compiled(run: dict[str, Any]) -> str:
    """The time of a value with its gradient, compiled by XLA, for each implementation."""
    columns = (DECORATOR, TF, names.JAX)
    body = []
    for case in run["cases"]:
        if case["subject"] == "compiled":
            found = case["implementations"]
            cells = (
                quantity(found[name]["median"], "s") if name in found else case["absent"][name] for name in columns
            )
            body.append((case["case"], *cells))
    return rows(("", *(f"`{name}`" for name in columns)), *body)


def masked(run: dict[str, Any]) -> str:
    """The time of a step of each model, as it is and with masked gradients."""
    body = []
    for case in run["cases"]:
        if case["subject"] == "masked":
            medians = (case["implementations"][name]["median"] for name in (names.UNMASKED, names.MASKED))
            cells = (quantity(median, "s") for median in medians)
            ratio = _spread(case["ratios"][names.MASKED][names.UNMASKED])
            body.append((case["case"].removeprefix("time, "), *cells, ratio))
    return rows(("", names.UNMASKED, f"`{names.MASKED}`", "ratio (p20 to p80)"), *body)


def size(run: dict[str, Any]) -> str:
    """The parts of the op library, the largest first, and the time of its build."""
    (parts,) = (case for case in run["cases"] if case["subject"] == "library_size")
    (build,) = (case for case in run["cases"] if case["subject"] == "build_time")
    sizes = sorted(parts["implementations"].items(), key=lambda item: -item[1]["median"])
    body = [(name, f"{summary['median']:,.0f} kB") for name, summary in sizes]
    body += [
        (f"cold build {name}", quantity(summary["median"], "s")) for name, summary in build["implementations"].items()
    ]
    return rows(("", ""), *body)


def times_of_loops(run: dict[str, Any]) -> str:
    """The time of loops in multiples of the plain loop's."""
    body = []
    for case in run["cases"]:
        if case["subject"] == "loops" and case["case"].startswith("time, "):
            plain = quantity(case["implementations"][TF_LOOP]["median"], "s")
            ratios = (_spread(case["ratios"][name][TF_LOOP]) for name in (SQRT, LOG))
            body.append((case["case"].removeprefix("time, "), plain, *ratios))
    return rows(("step", f"`{TF_LOOP}`", f"`{SQRT}`, times this", f"`{LOG}`, times this"), *body)


def blocks(run: dict[str, Any]) -> str:
    """The memory and the time of blocks of a network, one row for each way."""
    found = {case["case"].partition(",")[0]: case for case in run["cases"] if case["subject"] == "blocks"}
    memory, time = (found[kind]["implementations"] for kind in ("peak memory", "time"))
    body = [(f"`{name}`", f"{memory[name]['median']:,.0f}", quantity(time[name]["median"], "s")) for name in memory]
    return rows(("", "MiB", "time"), *body)


def plans(run: dict[str, Any]) -> str:
    """The peaks and times of whole models within a memory, after the machine that measured them."""
    found = {case["case"]: case for case in run["cases"] if case["subject"] == "plans"}
    plain = names.NO_RECOMPUTATION

    def ratio(case: dict[str, Any], name: str) -> str:
        summary = case["ratios"].get(name, {}).get(plain)
        return f"{summary['median']:.2f}" if summary else ""

    body, sentences = [], []
    for title, case in found.items():
        kind, _, model = title.partition(", ")
        medians = {name: summary["median"] for name, summary in case["implementations"].items()}
        if kind == names.PEAK:
            predicted = found.get(f"{names.PREDICTED}, {model}", {}).get("implementations", {})
            for name, peak in medians.items():
                cells = f"{predicted[name]['median']:,.0f}" if name in predicted else "", f"{peak:,.0f}"
                share, time = ratio(case, name), ratio(found[f"{names.STEP}, {model}"], name)
                body.append((model, f"`{name}`", *cells, share, time))
            body += [(model, f"`{name}`", reason, "", "", "") for name, reason in case["absent"].items()]
        elif kind == names.COMPILATION:
            times = ", ".join(f"{ratio(case, name)} (`{name}`)" for name in case["ratios"])
            sentences.append(f"The first call of {model}, in multiples of the plain first call: {times}.")
        elif kind == names.RESIDENT:
            sizes = ", ".join(f"{size:,.0f} MiB (`{name}`)" for name, size in medians.items())
            sentences.append(
                f"By how much a process with TensorFlow's defaults grows in three steps of {model}: {sizes}."
            )
        elif kind == "planning":
            trace, plan = quantity(medians[names.TRACE], "s"), quantity(medians[names.PLAN], "s")
            sentences.append(f"To trace a function of {model} takes {trace}, to trace and plan it {plan}.")
    header = ("model", "", "predicted, MiB", "measured, MiB", "share", "time")
    return "\n".join([origin(run), "", rows(header, *body), *sentences])


def zoo(run: dict[str, Any]) -> str:
    """The peaks, times and differences of each model, after the machine that measured them."""
    plain, by_title = names.NO_RECOMPUTATION, {}
    for case in run["cases"]:
        if case["subject"] == "zoo":
            title, _, kind = case["case"].partition(": ")
            by_title.setdefault(title, {})[kind] = {n: s["median"] for n, s in case["implementations"].items()}
    body = []
    for title, found in by_title.items():
        for name in found[names.PREDICTED]:

            def ratio(of: str, name: str = name, over: str = plain, found: Any = found) -> str:
                return f"{found[of][name] / found[of][over]:.2f}" if {name, over} <= found[of].keys() else ""

            predicted, measured = found[names.PREDICTED][name], found[names.PEAK][name]
            sizes = f"{predicted:,.0f}", f"{measured:,.0f}", f"{measured / predicted:.2f}"
            difference = f"{found[names.DIFFERENCE][name]:.0e}" if name in found[names.DIFFERENCE] else ""
            shares = (ratio(names.PEAK), ratio(names.STEP), ratio(names.PLAN, over=names.TRACE), difference)
            body.append((title, f"`{name}`", *sizes, *(("", "", "", "") if name == plain else shares)))
    header = ("model", "", "predicted, MiB", "measured, MiB", "measured / predicted", "share", "time")
    return f"{origin(run)}\n\n{rows((*header, 'plan and trace / trace', 'difference'), *body)}"


def document(run: dict[str, Any]) -> str:
    """All cases: the medians, and the ratios with their spread."""
    parts = [f"{origin(run)}\n\nRatios are medians over pairs of samples from the same round.\n"]
    if any(case["subject"] == "zoo" for case in run["cases"]):
        parts.append(zoo(run))
    for case in (case for case in run["cases"] if case["subject"] != "zoo"):
        body = []
        for name, summary in case["implementations"].items():
            ratios = [_spread(ratios.get(name)) for ratios in case["ratios"].values()]
            body.append((name, quantity(summary["median"], case["unit"]), *ratios))
        header = ("", "median", *(f"{ours} / this" for ours in case["ratios"]))
        absent = "".join(f"\nAbsent: {name} ({reason}).\n" for name, reason in case["absent"].items())
        parts.append(
            f"**{case['subject']}: {case['case']}** ({case['rounds']} rounds)\n\n{rows(header, *body)}{absent}"
        )
    return "\n".join(parts)


def _spread(summary: dict[str, float] | None, count: int = 3) -> str:
    if summary is None:
        return ""
    median, p20, p80 = (digits(summary[name], count) for name in ("median", "p20", "p80"))
    return f"{median} ({p20} to {p80})"


def gpu(_: dict[str, Any]) -> str:
    """The fractions of the yardstick that `make cuda-check` found, from 256 MiB up, the smaller of the sizes."""
    with (ROOT / "benchmarks" / "cuda_check_h100.csv").open() as file:
        cases = [case for case in csv.DictReader(file) if int(case["bytes"]) >= 256 * 2**20]
    dtypes = list(dict.fromkeys(case["dtype"] for case in cases))
    forms = dict.fromkeys((case["case"], case["yardstick"]) for case in cases)

    def fraction(form: tuple[str, str], dtype: str) -> str:
        found = [float(c["fraction"]) for c in cases if (c["case"], c["yardstick"], c["dtype"]) == (*form, dtype)]
        return f"{min(found):.2f}"

    return rows(
        ("case", "against a", *dtypes),
        *((f"`{form[0]}`", form[1], *(fraction(form, dtype) for dtype in dtypes)) for form in forms),
    )
