"""The child process of ``crsbench materialize``: executes Dagster runs that its parent names.

What lives here: reading requests from standard input, one JSON object per line, and answering on standard output.
What stays out: what to run (``materialize``). It ends when its parent does, whatever ended the parent: a request pipe
that closes is the signal, which also works after SIGKILL. Everything that Dagster prints goes to a log file.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import traceback
from typing import Any, TextIO

Request = dict[str, Any]


def main(home: str, log: str) -> None:
    """Serve requests on a home until the parent closes the pipe; ``log`` is the file that standard error goes to."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()

    from crsbench_assets.config.errors import CrsbenchError
    from crsbench_assets.defs import build_definitions
    from crsbench_assets.orchestration.execution import Executor
    from crsbench_assets.orchestration.instance import open_instance
    from crsbench_assets.storage.layout import resolve_home

    layout = resolve_home(home)
    try:
        definitions = build_definitions()
    except CrsbenchError as error:
        _answer(answers, {"error": str(error)})
        return
    with open_instance(layout) as instance:
        executor = Executor(definitions, instance, layout)
        _answer(answers, {"ready": True})
        while True:
            request = requests.get()
            try:
                result = executor.serve(request, lambda text: _answer(answers, {"progress": text}))
            except CrsbenchError as error:
                result = {"error": str(error)}
            except Exception as error:
                traceback.print_exc()
                result = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}; {log} says where."}
            _answer(answers, {"done": True, **result})


def _answer(answers: TextIO, value: Request) -> None:
    try:
        answers.write(json.dumps(value) + "\n")
    except BrokenPipeError:
        os._exit(1)


def _listen(requests: queue.SimpleQueue[Request]) -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    # the parent is gone or wants us gone; in-process runs cannot be interrupted, so the process ends as it stands:
    # the attempt file tells the next command what was cut off. Steps of a multiprocess executor end along with it.
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
