"""A whole stage trains the ids that its engine sampled, where encoding their text would give others."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from roll_launch.cli import main
from roll_learners import LocalLearner
from roll_rollout import read_recording, retokenization_drift
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CONFIG = """
name: test
runtime: local
directory: {root}/runs
tracking: {{tensorboard: false}}
stages:
  - name: rlvr
    pipeline: rlvr
    model:
      source: random
      architecture: qwen3
      config: {{hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
               head_dim: 8, intermediate_size: 48, max_position_embeddings: 128, tie_word_embeddings: true}}
      tokenizer: {root}/tokenizer
    data: {{source: jsonl, path: {root}/train.jsonl}}
    algorithm: {{preset: grpo}}
    rollout:
      record: true
      group_size: 4
      prompts_per_step: 4
      max_prompt_tokens: 32
      sampling: {{max_tokens: 16}}
    rewards: {{grader: {{name: exact}}, overlong: {{buffer_tokens: 14}}}}
    learner: {{threads: 1, optimizer: {{learning_rate: 1.0e-3}}}}
    steps: 2
"""


def write_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """Letters, and pairs of letters that are tokens as well: a text has one encoding, and many ids."""
    letters = "abcdefgh"
    pairs = [one + other for one in letters[:4] for other in letters[4:]]
    vocabulary = {"</s>": 0} | {token: number for number, token in enumerate([*letters, *pairs], 1)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[(pair[0], pair[1]) for pair in pairs]))
    made.pre_tokenizer = pre_tokenizers.Split("~", behavior="isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens(["</s>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", pad_token="</s>")
    tokenizer.save_pretrained(directory)
    return tokenizer


def test_trained_ids_are_the_engines_where_text_would_have_drifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    rows = [{"prompt": letter * 3, "answer": letter} for letter in "abcdefgh"]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "config.yaml").write_text(CONFIG.format(root=tmp_path))
    trained: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    update = LocalLearner.update

    def watched(self, samples, *rest, **more):
        for sample in samples:
            ids, mask = sample.token_ids, sample.response_mask
            trained[tuple(ids[~mask].tolist()), tuple(ids[mask].tolist())] += 1
        return update(self, samples, *rest, **more)

    monkeypatch.setattr(LocalLearner, "update", watched)
    run = tmp_path / "run"
    assert main(["run", str(tmp_path / "config.yaml"), "--run-dir", str(run)]) == 0
    completions = read_recording(run / "recordings" / "rlvr")
    sampled = Counter(
        (tuple(each.prompt_ids.tolist()), tuple(each.token_ids.tolist())) for each in completions
    )
    assert trained.total() >= 16
    assert trained - sampled == Counter()

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    drifting = [
        drift
        for _, response in trained
        if (drift := retokenization_drift(np.array(response), decode=tokenizer.decode, encode=encode))
    ]
    # One random response in five or so holds two letters in a row that are a token together.
    assert len(drifting) >= 3
