"""Which keys hold credentials, and what is masked."""

import pytest
from roll_launch.config.credentials import is_credential, masked_data, masked_line


@pytest.mark.parametrize(
    "key",
    [
        "api_key",
        "apiKey",
        "APIKey",
        "API_KEY",
        "api-key",
        "apikey",
        "openai_api_key",
        "token",
        "hf_token",
        "HF_TOKEN",
        "accessToken",
        "access_tokens",
        "auth_token",
        "password",
        "passwd",
        "db_password",
        "secret",
        "client_secret",
        "secret_key",
        "private_key",
        "aws_secret_access_key",
        "Authorization",
        "authorization",
        "credentials",
        "cookie",
        "basic_auth",
        "dbpassword",
    ],
)
def test_these_keys_hold_credentials(key: str) -> None:
    assert is_credential(key)


@pytest.mark.parametrize(
    "key",
    [
        "max_tokens",
        "tokenizer",
        "token_level",
        "micro_batch_tokens",
        "stop_token_ids",
        "pad_token",
        "eos_token",
        "bos_token",
        "api_key_env",
        "token_file",
        "password_path",
        "key",
        "primary_key",
        "label_key",
        "author",
        "secretary",
        "monkey",
        "num_key_value_heads",
        "",
        "123",
        "tokens",
    ],
)
def test_these_keys_do_not(key: str) -> None:
    assert not is_credential(key)


def test_credentials_are_masked_at_any_depth_and_the_rest_stays() -> None:
    data = {
        "tracker": {"api_key": "k1", "project": "p"},
        "list": [{"token": "k2", "n": 1}],
        "credentials": {"user": "k3", "keys": ["k4", 5]},
        "headers": [{"name": "Authorization", "value": "Bearer k6"}, {"name": "Accept", "value": "text"}],
        "url": "https://user:k7@host/x",
        "token": None,
        "password": "",
        "use_secret": True,
        "max_tokens": 8,
    }
    assert masked_data(data) == {
        "tracker": {"api_key": "***", "project": "p"},
        "list": [{"token": "***", "n": 1}],
        "credentials": {"user": "***", "keys": ["***", "***"]},
        "headers": [{"name": "Authorization", "value": "***"}, {"name": "Accept", "value": "text"}],
        "url": "https://user:***@host/x",
        "token": None,
        "password": "",
        "use_secret": True,
        "max_tokens": 8,
    }


def test_known_secrets_are_masked_within_text() -> None:
    assert masked_data({"a": ["x-abc-y", "abcd"]}, secrets=frozenset({"abc", "abcd"})) == {
        "a": ["x-***-y", "***"]
    }


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("  api_key: hunter2", "  api_key: ***"),
        ("x: {token: abc, n: 1}", "x: {token: ***"),
        ('"password" : "a b"', '"password" : ***'),
        ("learner.api_key=abc", "learner.api_key=***"),
        ("- api_key: [a, b]", "- api_key: ***"),
        ("url: http://u:p@h/", "url: http://u:***@h/"),
        ("max_tokens: 8", "max_tokens: 8"),
    ],
)
def test_lines_are_shown_with_credentials_masked(line: str, shown: str) -> None:
    assert masked_line(line) == shown
