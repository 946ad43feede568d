"""Makes calls one after the other in a process of its own, because a call may end it.

The library reads once whether its passes are switched off, so a process makes the calls of one kind alone. Reports on a pipe which call begins, and how it ended.
"""

import argparse
import json
import os
import resource
import time

from .raw_answers import answer
from .raw_calls import make_call
from .raw_ops import INJECTABLE


def _abort(verdict):
    os.abort()


def _hang(verdict):
    time.sleep(10**6)


def _refuse(verdict):
    """A reference that is wrong."""
    verdict.outputs, verdict.why = None, "injected"
    return verdict


INJECTED = dict(zip(INJECTABLE, (_abort, _hang, _refuse), strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("stop", type=int)
    parser.add_argument("pipe", type=int)
    parser.add_argument(
        "--inject", action="append", default=[], help="a fault for one call, to test the fuzzer: abort@7"
    )
    arguments = parser.parse_args()
    injected = {int(number): INJECTED[kind] for kind, number in (text.split("@") for text in arguments.inject)}

    def say(**what):
        os.write(arguments.pipe, json.dumps(what).encode() + b"\n")

    keeps_ops = os.environ.get("TF_CG_OPS_DISABLE_PASSES") == "1"
    for number in range(arguments.first, arguments.stop):
        call = make_call(number)
        if call.keeps_ops != keeps_ops:
            continue
        say(begins=number)
        outcome, exception, failure = answer(call, *([injected[number]] if number in injected else []))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        about = {"call": call.describe(), "failure": failure} if failure else {}
        say(ended=number, op=call.op, mode=call.mode, outcome=outcome, exception=exception, memory_mb=memory, **about)


if __name__ == "__main__":
    main()
