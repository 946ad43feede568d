"""Loads, runs, differentiates, strips and inspects mutated SavedModels: an exception or a result, never anything else.

    python -m qa.fuzz.saved_models --mutants 500 --seed 1 --json summary.json

A mutant is known by the seed and its number, and `--only NUMBER` runs it alone. If the process dies, hangs or takes
too much memory, the same mutant runs once more with built-in ops in the places of this library's: the same failure there
is one of TensorFlow.
"""

import argparse
import gc
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
from collections import Counter

# Before TensorFlow is imported: its notes, and what Keras would import without need.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

if __name__ == "__main__":
    from tests.support.processes import FOR_KERAS_ALONE

    sys.modules.update(dict.fromkeys(FOR_KERAS_ALONE))

import numpy as np

from . import saved_model_actions as actions
from . import saved_model_bases as bases
from . import saved_model_processes as processes
from .injected import fault_of

SECONDS, MEGABYTES = 60, 1500
INJECTABLE = ("abort", "hang", "leak", "wrong", "undocumented")


def inject(kind):
    """Causes a fault that the fuzzer must find."""
    if kind == "abort":
        os.abort()
    if kind == "hang":
        time.sleep(3600)
    if kind == "leak":
        kept = []
        while True:
            kept.append(b"x" * (1 << 24))
            time.sleep(0.001)
    if kind == "undocumented":
        raise actions.UndocumentedError("injected")


def answer(action, folder):
    try:
        return {"result": action(folder)}
    except actions.UndocumentedError as error:
        return {"undocumented": str(error)[:600]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


class Fuzzer:
    """Makes mutants, runs each in a process, and judges what came of it."""

    def __init__(self, seed, seconds, megabytes, injected):
        self.seed, self.seconds, self.megabytes = seed, seconds, megabytes
        self.injected = {int(number): kind for kind, number in (text.split("@") for text in injected)}
        self.expected = {}
        gc.freeze()  # Memory that a child does not touch is not copied for it.

    def prepare(self, folder):
        """Saves the bases, and runs all actions on each: the expected results of neutral mutants."""
        self.bases = folder / "bases"
        self.bases.mkdir()
        self.work = folder / "work"

        def save(tell):
            for base in bases.BASES:
                tell("answer", base.__name__, bases.save(base, self.bases / base.__name__).tolist())

        by_hand = self._run(save)
        for base in bases.BASES:

            def everything(tell, name=base.__name__):
                self._alone(self.work / "models" / name)
                for key, action in {**actions.ALWAYS, **actions.IN_TURN}.items():
                    tell("start", key)
                    tell("answer", key, answer(action, self.work / "models" / name))

            self.expected[base.__name__] = self._run(everything).answers
            gradient = self.expected[base.__name__]["load"]["result"][1]
            np.testing.assert_allclose(gradient, by_hand.answers[base.__name__], 1e-4, 1e-3, err_msg=base.__name__)

    def _run(self, work, seconds=None):
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        shutil.copytree(self.bases, self.work / "models")
        ending = processes.run(work, self.work, seconds or self.seconds, self.megabytes)
        return ending

    def run(self, number):
        """The verdict on one mutant, with its particulars."""
        injected = self.injected.get(number)

        def work(tell):
            folder, info = actions.mutate(self.seed, number, self.work / "models")
            tell("info", info)
            self._alone(folder)
            for key, action in {**actions.ALWAYS, info["action"]: actions.IN_TURN[info["action"]]}.items():
                tell("start", key)
                if injected in ("abort", "hang", "leak"):
                    inject(injected)
                given = answer(lambda folder, action=action: (inject(injected), action(folder))[1], folder)
                tell("answer", key, given)

        seconds = 5 if injected == "hang" else None
        ending = self._run(work, seconds)
        found = {"number": number, **ending.info, "how": ending.how}
        if ending.how != "done":
            found |= {"in": ending.action, "verdict": self._blame(number, ending), "detail": ending.detail}
            return found, ending.answers
        if injected == "wrong":
            ending.info["neutral"] = True
            ending.answers["load"] = {"result": [[0.0]]}
        undocumented = {key: a["undocumented"] for key, a in ending.answers.items() if "undocumented" in a}
        wrong = self._wrong(ending) if ending.info["neutral"] else None
        verdict = "undocumented error" if undocumented else "wrong result" if wrong else "fine"
        return {**found, "verdict": verdict, "detail": undocumented or wrong}, ending.answers

    @staticmethod
    def _alone(folder):
        """Leaves the mutant alone in its folder, so that files left behind are seen."""
        for other in folder.parent.iterdir():
            if other != folder:
                shutil.rmtree(other)

    def _wrong(self, ending):
        expected = self.expected[ending.info["base"]]
        for key, given in ending.answers.items():
            if not same(given, expected[key]):
                return f"{key}: expected {expected[key]}, got {given}"[:600]
        return None

    def _blame(self, number, ending):
        """Whose fault it is: that of TensorFlow if it also happens without the ops of this library."""

        def control(tell):
            folder, _ = actions.mutate(self.seed, number, self.work / "models")
            self._alone(folder)
            actions.replace_our_ops(folder)
            tell("start", ending.action)
            answer(actions.CONTROLS[ending.action], folder)

        if ending.action in actions.CONTROLS and number not in self.injected:
            how = self._run(control).how
            if how not in ("done", "dead (99)"):
                return f"TensorFlow's own: {how}"
        return f"ours: {ending.how}"


def same(given, expected):
    if "result" not in expected:
        return "error" in given and given["error"].split(":")[0] == expected["error"].split(":")[0]
    if "result" not in given or len(given["result"]) != len(expected["result"]):
        return False
    for g, e in zip(given["result"], expected["result"], strict=True):
        if isinstance(e, str) or e is None or g is None:
            if sorted(str(g)) != sorted(str(e)):  # Functions may come in another order.
                return False
        elif not (np.shape(g) == np.shape(e) and np.allclose(g, e, 1e-4, 1e-4)):
            return False
    return True


def kind_of(answer):
    if "result" in answer:
        return "result"
    return answer["error"].split(":")[0] if "error" in answer else "undocumented"


def fuzz(options):
    numbers = options.only or range(options.mutants)
    fuzzer = Fuzzer(options.seed, options.seconds, options.megabytes, options.inject)
    verdicts, outcomes, bad, start = Counter(), {}, [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fuzzer.prepare(pathlib.Path(folder))
        for number in numbers:
            found, answers = fuzzer.run(number)
            verdicts[found["verdict"]] += 1
            for key, given in answers.items():
                outcomes.setdefault(key, Counter())[kind_of(given)] += 1
            if found["verdict"] != "fine":
                print(json.dumps(found), flush=True)
                if found["verdict"].startswith("TensorFlow"):
                    del found["detail"]  # Its stack, which is long.
                bad.append(found)
            elif options.only:
                print(json.dumps({**found, "answers": answers}, indent=1))
    ours = sum(n for verdict, n in verdicts.items() if verdict != "fine" and not verdict.startswith("TensorFlow"))
    return {
        "seed": options.seed,
        "mutants": len(numbers),
        "seconds": round(time.monotonic() - start),
        "verdicts": dict(verdicts.most_common()),
        "faults of this library": ours,
        "outcomes": {key: dict(counts.most_common()) for key, counts in outcomes.items()},
        "not fine": bad[:100],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, help="where the summary is written")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these mutants, and shows what they give")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the limit for each mutant")
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="the limit for each mutant")
    parser.add_argument(
        "--inject", type=fault_of(*INJECTABLE), nargs="+", default=[], metavar="KIND@NUMBER", help="to test the fuzzer"
    )
    options = parser.parse_args()
    summary = fuzz(options)
    if options.json:
        options.json.write_text(json.dumps(summary, indent=1) + "\n")
    shown = {key: value for key, value in summary.items() if key != "not fine"}
    print(json.dumps(shown, indent=1))
    return 1 if summary["faults of this library"] else 0


if __name__ == "__main__":
    sys.exit(main())
