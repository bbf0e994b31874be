"""What holds for every test."""

import os

# Two processes test at a time, on as few as two cores: with a thread for each core in both, tiny tensors
# wait for each other. Set before anything imports torch; whoever sets it keeps it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
