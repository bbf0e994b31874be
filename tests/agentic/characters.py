"""A chat tokenizer with a token for each character, and templates that behave like those of real models."""

from collections.abc import Sequence

END = 1
SPECIAL = {"<bos>": 2, "<end>": END, "<user>": 3, "<assistant>": 4, "<system>": 5, "<tool>": 6}
NAMES = {number: name for name, number in SPECIAL.items()}


class Characters:
    """Renders `<role>content<end>` and a line break; a character is its code point.

    Args:
        drop_thinking: Thinking is cut out of all turns but the last one, as Qwen3 does.
        default_system: Put in front when the chat has no system message, as Qwen2.5 does.
        strip: Contents lose blanks at both ends, as Llama 3 does.
        bos: The chat begins with a token of its own.
    """

    end_token_id = END

    def __init__(
        self,
        *,
        drop_thinking: bool = False,
        default_system: str = "",
        strip: bool = False,
        bos: bool = False,
        separator: str = "\n",
    ) -> None:
        self.drop_thinking, self.default_system, self.strip = drop_thinking, default_system, strip
        self.bos, self.separator = bos, separator

    def render(self, messages: Sequence, *, tools: Sequence, generation_prompt: bool) -> list[int]:
        ids = [SPECIAL["<bos>"]] if self.bos else []
        messages = list(messages)
        if self.default_system and (not messages or messages[0]["role"] != "system"):
            messages = [{"role": "system", "content": self.default_system}, *messages]
        if tools:
            ids += self.encode(f"tools:{len(tools)}\n")
        for index, message in enumerate(messages):
            content = str(message["content"])
            if self.drop_thinking and "</think>" in content and index < len(messages) - 1:
                content = content.split("</think>")[-1].lstrip("\n")
            content = content.strip() if self.strip else content
            ids += [SPECIAL[f"<{message['role']}>"], *self.encode(content), END, *self.encode(self.separator)]
        return ids + ([SPECIAL["<assistant>"]] if generation_prompt else [])

    def encode(self, text: str) -> list[int]:
        return [ord(character) + 16 for character in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(NAMES.get(int(token)) or chr(int(token) - 16) for token in token_ids)
