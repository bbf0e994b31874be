"""Mathematical expressions as trees: a reader of LaTeX and plain notation with bounded size and depth.

It never evaluates anything, so that reading costs time in proportion to the text. What it does not know
(integrals, sums, limits) it refuses with `Unreadable`; `comparison` then asks math-verify.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

_MAX_CHARS = 2000
_MAX_DEPTH = 60
_MAX_DIGITS = 1000

FUNCTIONS = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln",
        "log",
    "exp", "abs", "sqrt", "floor", "ceil", "max", "min", "gcd",
))  # fmt: skip
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log", "ceiling": "ceil"}
GREEK = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota",
    "kappa", "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "phi", "varphi", "chi", "psi", "omega",
        "Gamma",
    "Delta", "Theta", "Lambda", "Xi", "Sigma", "Phi", "Psi", "Omega", "ell", "hbar",
))  # fmt: skip
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?|\.\d+)|\\(?P<command>[A-Za-z]+)|(?P<word>[A-Za-z]+)"
    r"|(?P<symbol>\*\*|\\[{}|]|[-+*/^_!()\[\]{}|,'.:]))"
)
_CLOSING = {"(": ")", "[": "]", "{": "}", "\\{": "\\}", "lfloor": "rfloor", "lceil": "rceil"}


class Unreadable(Exception):
    """The text is no expression that this reader knows; the argument says where it stopped."""


@dataclass(frozen=True, slots=True)
class Node:
    """An operation with its operands, a number, or a name.

    Example: `Node("+", (Node("name", name="x"), Node("number", value=Fraction(1, 2))))`.

    Attributes:
        op: `number`, `name`, `+`, `*`, `/`, `^`, `neg`, `!`, `binom`, `root`, `log_base` or a function.
        args: Operands.
        value: Of a number.
        name: Of a variable or constant (`pi`, `e`, `i`, `infty` are the constants).
        decimals: Of a number that was written with a point, how many digits followed it; else None.
    """

    op: str
    args: "tuple[Node, ...]" = ()
    value: Fraction = Fraction(0)
    name: str = ""
    decimals: int | None = None


def read_expression(text: str) -> Node:
    """The tree of an expression.

    Args:
        text: LaTeX or plain notation, cleaned by `notation.clean`, at most 2000 characters.

    Raises:
        Unreadable: It is empty, too long, nested deeper than 60 levels, or not understood.
    """
    if len(text) > _MAX_CHARS:
        raise Unreadable(f"{len(text)} characters, at most {_MAX_CHARS} are read")
    reader = _Reader(_tokens(text))
    node = reader.sum()
    if reader.kind != "end":
        raise Unreadable(f"cannot read {reader.text!r} after an expression")
    return node


def names_in(node: Node) -> frozenset[str]:
    """The variables of an expression, constants left out."""
    if node.op == "name":
        return frozenset() if node.name in ("pi", "e", "i", "infty") else frozenset((node.name,))
    return frozenset().union(*(names_in(arg) for arg in node.args))


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Unreadable(f"cannot read {text[position : position + 20]!r}")
        tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
        position = match.end()
    return [*tokens, ("end", "")]


class _Reader:
    """Recursive descent, one token ahead."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    @property
    def kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def text(self) -> str:
        return self._tokens[self._at][1]

    def _is(self, *symbols: str) -> bool:
        return self.kind in ("symbol", "command") and self.text in symbols

    def _take(self) -> str:
        if self.kind == "end":
            raise Unreadable("the text ends in the middle of an expression")
        text = self.text
        self._at += 1
        return text

    def _expect(self, symbol: str) -> None:
        if not self._is(symbol):
            raise Unreadable(f"expected {symbol!r}, got {self.text!r}")
        self._at += 1

    def sum(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Unreadable(f"nested deeper than {_MAX_DEPTH} levels")
        terms = []
        sign = self._sign()
        while True:
            term = self._product()
            terms.append(Node("neg", (term,)) if sign < 0 else term)
            if not self._is("+", "-"):
                break
            sign = self._sign()
        self._depth -= 1
        return terms[0] if len(terms) == 1 else Node("+", tuple(terms))

    def _sign(self) -> int:
        sign = 1
        while self._is("+", "-"):
            sign = -sign if self._take() == "-" else sign
        return sign

    def _product(self) -> Node:
        result = self._power()
        while True:
            if self._is("*", "times", "cdot", "ast"):
                self._take()
                result = Node("*", (result, self._signed_power()))
            elif self._is("/", "div", ":"):
                self._take()
                result = Node("/", (result, self._signed_power()))
            elif self._starts_factor():
                if self.kind == "number" and self._tokens[self._at - 1][0] == "number":
                    raise Unreadable(f"two numbers side by side, the second {self.text!r}")
                factor = self._power()
                result = _mixed(result, factor) or Node("*", (result, factor))
            else:
                return result

    def _signed_power(self) -> Node:
        sign = self._sign()
        power = self._power()
        return Node("neg", (power,)) if sign < 0 else power

    def _starts_factor(self) -> bool:
        if self.kind in ("number", "word"):
            return True
        if self.kind == "command":
            return self.text not in ("times", "cdot", "ast", "div", "rfloor", "rceil", "pm", "mp")
        return self._is("(", "[", "{") and self.kind == "symbol"

    def _power(self) -> Node:
        base = self._postfix()
        if self._is("^", "**"):
            self._take()
            if self._is("circ"):
                raise Unreadable("a degree sign inside an expression")
            return Node("^", (base, self._exponent()))
        return base

    def _exponent(self) -> Node:
        if self._is("-", "+"):
            sign = self._sign()
            inner = self._exponent()
            return Node("neg", (inner,)) if sign < 0 else inner
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Unreadable(f"nested deeper than {_MAX_DEPTH} levels")
        power = self._letter() if self.kind == "word" else self._power()
        self._depth -= 1
        return power

    def _postfix(self) -> Node:
        node = self._atom()
        while self._is("!"):
            self._take()
            node = Node("!", (node,))
        return node

    def _atom(self) -> Node:
        if self.kind == "number":
            return _number(self._take())
        if self.kind == "word":
            return self._word()
        if self.kind == "command":
            return self._command(self._take())
        if self._is("(", "[", "{", "\\{"):
            opened = self._take()
            node = self.sum()
            self._expect(_CLOSING[opened])
            return node
        if self._is("|"):
            self._take()
            node = self.sum()
            self._expect("|")
            return Node("abs", (node,))
        raise Unreadable(f"expected a number or a name, got {self.text!r}")

    def _word(self) -> Node:
        word = self.text
        name = _ALIASES.get(word, word)
        if name in FUNCTIONS:
            self._take()
            return self._call(name)
        if word in ("pi", "infinity", "inf", "oo"):
            self._take()
            return Node("name", name="pi" if word == "pi" else "infty")
        if len(word) > 3:
            raise Unreadable(f"the word {word!r}")
        return self._letter()

    def _letter(self) -> Node:
        """One letter of a word as a name; the rest stays, to be multiplied."""
        word = self.text
        kind = self.kind
        if len(word) > 1:
            self._tokens[self._at] = (kind, word[1:])
        else:
            self._at += 1
        return self._subscripted(word[0])

    def _subscripted(self, name: str) -> Node:
        if self._is("_"):
            self._take()
            if self._is("{"):
                self._take()
                parts = []
                while not self._is("}"):
                    if self.kind == "end":
                        raise Unreadable("a subscript without an end")
                    parts.append(self._take())
                self._take()
                name = f"{name}_{''.join(parts)}"
            else:
                name = f"{name}_{self._take()}"
        primes = 0
        while self._is("'"):
            primes += 1
            self._take()
        return Node("name", name=name + "'" * primes)

    def _command(self, name: str) -> Node:
        name = _ALIASES.get(name, name)
        if name in ("frac", "dfrac", "tfrac", "cfrac"):
            return Node("/", (self._argument(), self._argument()))
        if name in ("binom", "dbinom", "tbinom"):
            return Node("binom", (self._argument(), self._argument()))
        if name == "sqrt":
            if self._is("["):
                self._take()
                degree = self.sum()
                self._expect("]")
                return Node("root", (self._argument(), degree))
            return Node("sqrt", (self._argument(),))
        if name in ("lfloor", "lceil"):
            node = self.sum()
            self._expect(_CLOSING[name])
            return Node("floor" if name == "lfloor" else "ceil", (node,))
        if name in FUNCTIONS:
            return self._call(name)
        if name in ("pi", "infty"):
            return Node("name", name=name)
        if name in ("lvert", "vert"):
            node = self.sum()
            self._take()
            return Node("abs", (node,))
        if name in GREEK:
            return self._subscripted(name)
        raise Unreadable(f"the command \\{name}")

    def _argument(self) -> Node:
        """What follows a command: a group, or one digit, letter or command."""
        if self._is("{", "("):
            opened = self._take()
            node = self.sum()
            self._expect(_CLOSING[opened])
            return node
        if self.kind == "number" and "." not in self.text:
            digits = self.text
            if len(digits) > 1:
                self._tokens[self._at] = ("number", digits[1:])
            else:
                self._at += 1
            return _number(digits[0])
        if self.kind == "word":
            return self._letter()
        return self._atom()

    def _call(self, name: str) -> Node:
        """A function with its power, base and argument: `\\sin^2 t`, `\\log_2 8`, `sqrt(8)`."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Unreadable(f"nested deeper than {_MAX_DEPTH} levels")
        base = power = None
        for _ in range(2):
            if self._is("_"):
                self._take()
                base = self._argument()
            elif self._is("^"):
                self._take()
                power = self._exponent()
        arguments = self._arguments()
        self._depth -= 1
        if name == "log" and base is not None:
            node = Node("log_base", (arguments[0], base))
        elif base is not None or (len(arguments) != 1 and name not in ("max", "min", "gcd")):
            raise Unreadable(f"{len(arguments)} arguments of {name}")
        elif power == Node("neg", (Node("number", value=Fraction(1)),)):
            if f"arc{name}" not in FUNCTIONS:
                raise Unreadable(f"the inverse of {name}")
            return Node(f"arc{name}", tuple(arguments))
        else:
            node = Node(name, tuple(arguments))
        return node if power is None else Node("^", (node, power))

    def _arguments(self) -> list[Node]:
        if self._is("(", "[", "{"):
            opened = self._take()
            arguments = [self.sum()]
            while self._is(","):
                self._take()
                arguments.append(self.sum())
            self._expect(_CLOSING[opened])
            return arguments
        if self._is("|"):
            return [self._atom()]
        # Without parentheses a function takes the product of simple factors that follows: sin 2x.
        argument = self._signed_power()
        while self.kind in ("number", "word") and _ALIASES.get(self.text, self.text) not in FUNCTIONS:
            argument = Node("*", (argument, self._power()))
        while self.kind == "command" and (self.text in GREEK or self.text == "pi"):
            argument = Node("*", (argument, self._power()))
        return [argument]


def _number(text: str) -> Node:
    if len(text) > _MAX_DIGITS:
        raise Unreadable(f"a number of {len(text)} digits, at most {_MAX_DIGITS} are read")
    decimals = len(text) - text.index(".") - 1 if "." in text else None
    return Node("number", value=Fraction(text), decimals=decimals)


def _mixed(whole: Node, part: Node) -> Node | None:
    """`2\\frac{1}{2}` is two and a half; None for all that is a product."""
    if whole.op != "number" or whole.decimals is not None or part.op != "/":
        return None
    over, under = part.args
    if {over.op, under.op} != {"number"} or over.value >= under.value:
        return None
    return Node("+", (whole, part))
