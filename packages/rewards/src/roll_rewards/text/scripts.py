"""In which script and language a text is written: by Unicode alone, or by langdetect (extra)."""

import importlib
import re
from collections import Counter
from typing import Any

from roll_rewards.errors import RewardError

_RANGES = {
    "latin": "A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff",
    "han": "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f",
    "kana": "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9d",
    "hangul": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
    "cyrillic": "\u0400-\u052f",
    "greek": "\u0370-\u03ff\u1f00-\u1fff",
    "arabic": "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff",
    "hebrew": "\u0590-\u05ff",
    "devanagari": "\u0900-\u097f",
    "bengali": "\u0980-\u09ff",
    "gurmukhi": "\u0a00-\u0a7f",
    "gujarati": "\u0a80-\u0aff",
    "tamil": "\u0b80-\u0bff",
    "telugu": "\u0c00-\u0c7f",
    "kannada": "\u0c80-\u0cff",
    "malayalam": "\u0d00-\u0d7f",
    "thai": "\u0e00-\u0e7f",
    "georgian": "\u10a0-\u10ff",
    "armenian": "\u0530-\u058f",
}
_PATTERNS = {script: re.compile(f"[{span}]") for script, span in _RANGES.items()}
_SCRIPTS_OF = {
    "zh": ("han",), "ja": ("han", "kana"), "ko": ("hangul", "han"), "ru": ("cyrillic",), "uk": ("cyrillic",),
    "bg": ("cyrillic",), "mk": ("cyrillic",), "el": ("greek",), "ar": ("arabic",), "fa": ("arabic",),
    "ur": ("arabic",), "he": ("hebrew",), "hi": ("devanagari",), "mr": ("devanagari",), "ne": ("devanagari",),
    "bn": ("bengali",), "pa": ("gurmukhi",), "gu": ("gujarati",), "ta": ("tamil",), "te": ("telugu",),
    "kn": ("kannada",), "ml": ("malayalam",), "th": ("thai",), "ka": ("georgian",), "hy": ("armenian",),
}  # fmt: skip
_SHARED = frozenset(("cyrillic", "arabic", "devanagari", "latin"))
_MATHS = re.compile(r"\$[^$]*\$|\\[A-Za-z]+|```.*?```|`[^`]*`|https?://\S+", re.DOTALL)
_DETECTED_CHARS = 20_000


def script_shares(text: str) -> dict[str, float]:
    """Fraction of a text's letters in each script; formulas, code and addresses are left out."""
    prose = _MATHS.sub(" ", text)
    counts = Counter({script: len(pattern.findall(prose)) for script, pattern in _PATTERNS.items()})
    total = counts.total()
    return {script: count / total for script, count in counts.items() if count}


def scripts_of(language: str) -> tuple[str, ...]:
    """The scripts of a language by its ISO 639-1 code (`zh-cn` is `zh`); Latin for those not listed."""
    return _SCRIPTS_OF.get(language.split("-")[0].lower(), ("latin",))


def detected_language(text: str) -> str | None:
    """ISO 639-1 code of the language of a text, None when it has no letters.

    A script that one language alone uses decides; between languages of one script langdetect does, with a
    fixed seed.

    Raises:
        RewardError: langdetect is needed and not installed.
    """
    shares = script_shares(text)
    if not shares:
        return None
    if shares.get("kana", 0) > 0.05:
        return "ja"
    main = max(shares, key=lambda script: shares[script])
    if main not in _SHARED:
        return next((code for code, scripts in _SCRIPTS_OF.items() if scripts[0] == main), None)
    detector = _langdetect()
    try:
        return str(detector.detect(text[:_DETECTED_CHARS])).split("-")[0]
    except detector.LangDetectException:
        return None


def _langdetect() -> Any:
    try:
        langdetect = importlib.import_module("langdetect")
    except ImportError as error:
        raise RewardError(
            f"languages of one script need langdetect: pip install 'roll-rewards[language]' ({error})"
        ) from error
    langdetect.DetectorFactory.seed = 0
    return langdetect
