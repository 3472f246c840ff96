#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=900 label=full
"""10,000 sessions of a small model, one after the other, with futures, errors and training among them: nothing is left behind."""
import gc
import os
import sys
import threading

import kit

kit.begin()

import numpy as np
import onnxpipe as op

SESSIONS = int(os.environ.get("OPIPE_TEST_SESSIONS", "10000"))
IDS = np.zeros((1, 4), np.int64)
MOST = 4 << 20


def taken():
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), threading.active_count()


def main():
    model = op.Model(kit.DEMO)
    plan = op.Plan(model, stages=2, dims={"batch": 1, "seq": 4})
    training = op.Training(loss="cross-entropy", output="logits", labels="labels")
    begun = None
    for number in range(SESSIONS):
        if number == SESSIONS // 10:
            begun = taken()
        with op.Session(plan) as session:
            session.run(IDS)
            if number % 8 == 0:
                session.submit(IDS).result(20)
                kit.raises(op.InvalidError, "input_ids", session.run, IDS.astype(np.float32))
        if number % 100 == 0:
            with op.Trainer(op.Model(kit.DEMO), training=training, dims={"batch": 1, "seq": 4}) as trainer:
                trainer.submit({"input_ids": IDS, "labels": IDS}).result(20)
                op.Tensor.numpy(op.as_tensor(trainer.get(next(iter(trainer.parameters)))))
    ended = taken()
    print(f"{SESSIONS} sessions: {(ended[0] - begun[0]) >> 10} KiB, {ended[1] - begun[1]} descriptors, {ended[2] - begun[2]} threads more")
    assert ended[0] - begun[0] < MOST and ended[1:] == begun[1:], (begun, ended)
    return 0


if __name__ == "__main__":
    sys.exit(main())
