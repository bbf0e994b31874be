"""A trainer of your own in a page: GRPO on the letter-sorting task from the packages' public parts. No Ray, no YAML.

    uv run python examples/custom_trainer.py

First a supervised cold start on noisy demonstrations, then reinforcement learning; it prints the sampled accuracy on
held-out prompts before and after.
"""

import asyncio
import itertools
import tempfile
from pathlib import Path

import numpy as np
import torch
from roll_launch.data import PromptEncoder, read_jsonl
from roll_launch.models import load_tokenizer
from roll_launch.tasks.sort_letters import write_files
from roll_learners import LocalLearner, OptimizerSettings, Sample, make_algorithm, policy_step, supervised_step
from roll_rewards import make_grader
from roll_rollout import GenerateRequest, SamplingParams, WeightUpdate, pack_buckets
from roll_rollout.transformers_engine import TransformersEngine
from roll_scheduler import Generated, Graded, RolloutScheduler, SchedulerPolicy
from transformers import Qwen3Config, Qwen3ForCausalLM
