"""One notation for many: LaTeX dressing, Unicode signs and thousands marks brought to a plain form."""

import re
import unicodedata

_SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-",
    "×": r"\times ", "✕": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": "/", "∕": "/",
    "⁄": "/",
    "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ",
    "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}",
    "±": r"\pm ",
    "∓": r"\mp ", "°": r"^\circ ", "º": r"^\circ ", "’": "'", "′": "'", "“": '"', "”": '"', "≈": r"\approx ",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "φ": r"\phi ", "ω": r"\omega ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "½": r"\frac{1}{2}",
    "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "⅕": r"\frac{1}{5}",
    "⅛": r"\frac{1}{8}", "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}", "⅞": r"\frac{7}{8}",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_SIGN_PATTERN = re.compile("|".join(map(re.escape, _SIGNS)))
_DRESSING = re.compile(
    r"\\(?:displaystyle|textstyle|limits|nolimits|left|right|bigg?[lrm]?|Bigg?[lrm]?|qquad|quad|mathstrut)"
    r"(?![A-Za-z])|(?<!\\)\\[,!;:>]"
)
_THOUSANDS = re.compile(
    r"(?<![\d.,}])\d{1,3}(?:(?P<mark>,|\{,\}|~| |\u00a0|\u2009|\u202f)\d{3})(?:(?P=mark)\d{3})*(?![\d])"
)
_SPACED_COMMAND = re.compile(r"\\(?:,|;|:|!|thinspace|enspace)(?=\d{3}(?!\d))")
_RELATIONS = {
    r"\leqslant": r"\le", r"\leq": r"\le", r"\geqslant": r"\ge", r"\geq": r"\ge", r"\neq": r"\ne",
    r"\lt": "<",
    r"\gt": ">", r"\varnothing": r"\emptyset", r"\cdotp": r"\cdot", r"\lbrace": r"\{", r"\rbrace": r"\}",
    r"\lbrack": "[", r"\rbrack": "]", r"\R": r"\mathbb{R}", r"\Reals": r"\mathbb{R}",
    r"\reals": r"\mathbb{R}",
}  # fmt: skip
_RELATION_PATTERN = re.compile("(?:" + "|".join(re.escape(k) for k in _RELATIONS) + r")(?![A-Za-z])")
_TEXT = re.compile(
    r"\\(?:text|mbox|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|mathbf|mathit|mathsf|mathtt|operatorname\*?"
    r"|boldsymbol|bm|rm|bf|emph|underline|hbox)\s*\{([^{}]*)\}"
)
_LEAD = re.compile(
    r"^\W*(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*[:=]?\s+|^(?:approximately|about|roughly|exactly|\\approx)\s+",
    re.IGNORECASE,
)
_REPEATING = re.compile(r"(?<![\d.])(\d{0,50})\.(\d{0,50})\\(?:overline|bar|dot)\s*\{?(\d{1,50})\}?")
_MIXED = re.compile(r"(?<![\d./])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d./])")


def clean(text: str) -> str:
    """The text without dressing: one sign for each meaning, words of `\\text{...}` bare.

    Example: `\\left(4,\\;\\dfrac{π}{3}\\right)` becomes `(4, \\dfrac{\\pi }{3})`.
    """
    text = re.sub("([⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+)", lambda found: f"^{{{found[0].translate(_SUPERSCRIPTS)}}}", text)
    text = _SIGN_PATTERN.sub(lambda found: _SIGNS[found[0]], text)
    text = unicodedata.normalize("NFKC", text).replace("\\\n", " ")
    text = text.replace("**", "^") if re.search(r"[\w)}]\s*\*\*\s*[\w({\-]", text) else text.replace("**", "")
    text = re.sub(r"\\\\\s*\[[\d.]+\s*[a-z]{2}\]", r"\\\\ ", text)
    text = re.sub(r"(?<!\\)\\[()\[\]]|(?<!\\)\$", " ", text)
    text = _SPACED_COMMAND.sub("", text)
    text = re.sub(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r" \\times ", text)
    text = re.sub(r"\\(?:left|right)\s*\.", "", text)
    text = _RELATION_PATTERN.sub(lambda found: _RELATIONS[found[0]], text)
    text = _DRESSING.sub(" ", text)
    text = re.sub(r"(?<!\\)\\ |~|\s+", " ", text)
    for _ in range(3):
        text = _TEXT.sub(lambda found: f" {found[1]} ", text)
    text = text.replace(r"\%", "%").replace(r"\$", "$").replace(r"\&", "&").replace(r"\#", "#")
    text = _REPEATING.sub(_repeating_fraction, text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    return re.sub(r"\s+", " ", _LEAD.sub("", text.strip())).strip()


def _repeating_fraction(found: re.Match[str]) -> str:
    """`0.1\\overline{6}` as a fraction of whole numbers."""
    whole, fixed, period = found[1] or "0", found[2], found[3]
    over = int(whole + fixed + period) - int(whole + fixed)
    under = (10 ** len(period) - 1) * 10 ** len(fixed)
    return f"\\frac{{{over}}}{{{under}}}"


def without_thousands(text: str) -> str:
    """`1,234,567` and `1 234` as plain digits; groups that are no thousands stay."""
    return _THOUSANDS.sub(lambda found: re.sub(r"\D", "", found[0]), text)


def plain_words(text: str) -> str:
    """A text answer for comparison: letter case, spaces, articles and closing marks do not matter."""
    text = re.sub(r"[{}$\\]", " ", text).casefold()
    text = re.sub(r"^\W*(?:the|an?)\s+(?=\w)", "", text)
    return re.sub(r"\s+", " ", text).strip(" .,;:!\"'")
