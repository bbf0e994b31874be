"""Which keys hold credentials, and text with them masked. Used wherever a configuration is shown or saved."""

import re

MASK = "***"

SHORTEST_COPY = 8
"""Characters; a shorter credential may be an ordinary word elsewhere."""

_SECRET_WORDS = frozenset(
    [
        "auth",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "passphrase",
        "passwd",
        "password",
        "passwords",
        "pwd",
        "secret",
        "secrets",
    ]
)
_SECRET_ENDINGS = ("apikey", "accesskey", "privatekey", "secretkey", "accesstoken", "authtoken", "password")
_KEY_OWNERS = frozenset(
    [
        "access",
        "account",
        "api",
        "encryption",
        "license",
        "private",
        "secret",
        "service",
        "signing",
        "ssh",
        "subscription",
    ]
)
_PLACES = frozenset(["env", "envvar", "file", "filename", "name", "path", "variable"])
"""Last words of keys that say where a credential is, and do not hold it."""
_VOCABULARY = frozenset(
    ["bos", "cls", "end", "eos", "image", "mask", "pad", "sep", "start", "stop", "think", "unk"]
)
"""Words before `token` that make it a token of a vocabulary."""

_URL_PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):([^\s/@]+)(?=@)")
_ASSIGNMENT = re.compile(r"(?P<key>[\w-]+)[\"']?\s*[:=]\s*(?=\S)")


def is_credential(key: str) -> bool:
    """Whether a key names a credential: `api_key`, `hf_token`, `Authorization`; not `pad_token`."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", key)]
    if not words or words[-1] in _PLACES:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if _SECRET_WORDS.intersection(words) or last.endswith(_SECRET_ENDINGS):
        return True
    if last in ("token", "tokens"):
        return before not in _VOCABULARY and (last == "token" or before in _KEY_OWNERS | {"auth"})
    return last in ("key", "keys") and before in _KEY_OWNERS


def masked_data(data: object, *, secrets: frozenset[str] = frozenset()) -> object:
    """A copy of nested data in which every text or number under a credential's key is `***`.

    A list of `{name: Authorization, value: ...}` pairs is recognised, and passwords inside of addresses.

    Args:
        data: Mappings, sequences and scalars.
        secrets: Texts to mask wherever they stand, such as credentials that came from the environment.
    """
    if isinstance(data, dict):
        named = any(isinstance(data.get(key), str) and is_credential(data[key]) for key in ("name", "key"))
        return {
            key: _masked_leaves(value)
            if is_credential(str(key)) or (named and str(key).lower() == "value")
            else masked_data(value, secrets=secrets)
            for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        return [masked_data(value, secrets=secrets) for value in data]
    if isinstance(data, str):
        return _without(_URL_PASSWORD.sub(rf"\1:{MASK}", data), secrets)
    return data


def credentials_in(data: object) -> frozenset[str]:
    """Texts under credentials' keys that are long enough to be recognised where they were copied to."""
    found: set[str] = set()
    if isinstance(data, dict):
        for key, value in data.items():
            held = isinstance(value, str) and len(value) >= SHORTEST_COPY and is_credential(str(key))
            found |= {value} if held else credentials_in(value)
    elif isinstance(data, list):
        for value in data:
            found |= credentials_in(value)
    return frozenset(found)


def masked_line(line: str) -> str:
    """A line of a file for a message: all that follows a credential's key is masked."""
    for match in _ASSIGNMENT.finditer(line):
        if is_credential(match["key"]):
            return line[: match.end()] + MASK
    return _URL_PASSWORD.sub(rf"\1:{MASK}", line)


def _masked_leaves(data: object) -> object:
    """All that is below a credential's key; what cannot be a credential (null, true, an empty text) stays."""
    if isinstance(data, dict):
        return {key: _masked_leaves(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_masked_leaves(value) for value in data]
    return data if data is None or isinstance(data, bool) or data == "" else MASK


def _without(text: str, secrets: frozenset[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text
