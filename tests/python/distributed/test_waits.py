"""What a rank waits for others is told from what it takes itself."""

import json

from ranks import started

LATE_S = 0.2
SCRIPT = f"""
import json, time
import torch, torch_chameleon
import torch.distributed as dist

dist.init_process_group()
x = torch.ones(64, device="chameleon")
waits = []
for step in range(4):
    y = x + 1
    if dist.get_rank() == 1:
        time.sleep({LATE_S})
    dist.all_reduce(y)
    torch_chameleon.step()
    figures = torch_chameleon.profiler.last_step()
    assert figures["collective_ns"] > 0
    waits.append(figures["collective_wait_ns"])
dist.barrier()
print(json.dumps(waits))
"""


def test_the_one_that_is_early_waits():
    with started("-c", SCRIPT) as processes:
        printed = [process.communicate(timeout=120) for process in processes]
    early, late = (json.loads(output) for output, _ in printed)
    assert max(early) > LATE_S / 2 * 1e9
    assert min(late) < LATE_S / 2 * 1e9
