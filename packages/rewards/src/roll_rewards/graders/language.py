"""Grader `language`: the response keeps to one language (extra `language` for languages of one script)."""

from dataclasses import dataclass

from roll_rewards.errors import RewardError
from roll_rewards.extraction import Thinking, visible_part
from roll_rewards.scores import Score
from roll_rewards.text.scripts import detected_language, script_shares, scripts_of
from roll_rewards.threads import call_in_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """The fraction of the response's letters that are in the language's script, 0..1; 1 without letters.

    That is DeepSeek-R1's language consistency without a language model: it sees Chinese in English
    reasoning, not French in it. With `detect` a response in another language of the same script scores 0.

    Example: `Language(language="zh", thinking="ignore")` looks at the reasoning as well.

    Attributes:
        language: ISO 639-1 code; None takes the column `language`, without one the prompt's (column
            `prompt`).
        detect: Whether langdetect must find the language as well.
        at_least: From this fraction on the score is 1, below it 0; None keeps the fraction.
        thinking: `ignore` judges reasoning and answer alike; see `visible_part`.

    Raises:
        RewardError: When grading, no language is known, or langdetect is needed and not installed.

    Source: DeepSeek-R1 (arXiv 2501.12948), section 2.3.2.
    """

    language: str | None = None
    detect: bool = False
    at_least: float | None = None
    thinking: Thinking = "ignore"

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The fraction; `parsed` is the script that most letters are in. See `Grader.grade`."""
        language = self.language or columns.get("language") or await self._of_prompt(columns.get("prompt"))
        if not isinstance(language, str):
            raise RewardError(
                "grader 'language' needs its option 'language', a column 'language' or a text in 'prompt', "
                f"got {language!r:.80}"
            )
        text = visible_part(response, thinking=self.thinking)
        shares = script_shares(text)
        if not shares:
            return Score(value=1.0)
        share = min(sum(shares.get(script, 0.0) for script in scripts_of(language)), 1.0)
        value = share if self.at_least is None else float(share >= self.at_least)
        if self.detect:
            found = await call_in_thread(lambda: detected_language(text), name="grader language")
            value = value if found == language.split("-")[0].lower() else 0.0
        main = max(shares, key=lambda script: shares[script])
        return Score(value=value, parsed=main, parts={"share": share})

    async def _of_prompt(self, prompt: object) -> str | None:
        if not isinstance(prompt, str):
            return None
        return await call_in_thread(lambda: detected_language(prompt), name="grader language")
