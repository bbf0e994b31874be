"""What each process of a test's group runs: `python group_run.py RANK RANKS DIRECTORY SCENARIO...`.

Every scenario writes DIRECTORY/NAME-RANK.pt: what it returned, or the traceback of what it raised. Nothing
heavy is imported at the top: Megatron-Core writes checkpoints with the help of a process that imports this
file again.
"""

import sys
import traceback
import warnings
from datetime import timedelta
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    warnings.simplefilter("ignore")
    import cpu_devices

    cpu_devices.redirect()
    import torch
    import torch.distributed as dist
    from roll_learners.megatron import close_groups
    from scenarios import SCENARIOS

    rank, ranks, directory, names = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory}/rendezvous",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=600),
    )
    for name in names:
        own = directory / name
        own.mkdir(exist_ok=True)
        try:
            result: object = SCENARIOS[name](own)
        except Exception:  # whatever it is, the test shows it
            result = traceback.format_exc()
        torch.save(result, directory / f"{name}-{rank}.pt")
        if isinstance(result, str):
            print(f"{name}, rank {rank}: {result}", file=sys.stderr, flush=True)
            break
        dist.barrier()
        close_groups()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
