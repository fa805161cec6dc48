"""Expressions over the usage of a request: the part of the Common Expression Language that computes with numbers.

There are literals, `usage` with `.name` and `["name"]`, arithmetic, comparisons, `&&`, `||`, `!`, `? :`, `has()`, `int()`,
`double()` and `size()`; no lists, maps or macros. Whole and floating-point numbers mix, which the language itself refuses.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeAlias, cast

from ..errors import ExpressionError

Value: TypeAlias = "int | float | bool | str | Mapping[str, Value] | None"
Variables: TypeAlias = Mapping[str, Value]
Node: TypeAlias = Callable[[Variables], Value]
"""Part of an expression: gives its value, or raises ExpressionError."""

MAX_DEPTH = 100
"""Deepest nesting, far above any real expression."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?u?)|(?P<text>\"[^\"\\]*\"|'[^'\\]*')|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>&&|\|\||[<>=!]=|[-+*/%<>!?:.,()\[\]]))"
)

_LITERALS: Mapping[str, Value] = {"true": True, "false": False, "null": None}
_FUNCTIONS = ("has", "int", "double", "size")


class Expression:
    """An expression that was read.

    Args:
        source: as written.
        variables: names that it may use.

    Raises:
        ExpressionError: it cannot be read, or uses a name that does not exist.
    """

    def __init__(self, source: str, *, variables: Collection[str]) -> None:
        self._node = _Reader(_tokens(source), variables).whole()

    def evaluate(self, variables: Variables) -> Value:
        """Return the value.

        Raises:
            ExpressionError: there is none, such as for a field that is absent.
        """
        return self._node(variables)


class _Token(NamedTuple):
    """Kind `number`, `text`, `name`, `sign` or `end`, the text, and its place for people, from 1."""

    kind: str
    text: str
    column: int


def _tokens(source: str) -> list[_Token]:
    found: list[_Token] = []
    place, end = 0, len(source.rstrip())
    while place < end:
        match = _TOKEN.match(source, place)
        if match is None:
            column = place + len(source[place:]) - len(source[place:].lstrip()) + 1
            raise ExpressionError(f"column {column}: {source[column - 1]!r} is not supported")
        kind = match.lastgroup or ""
        found.append(_Token(kind, match[kind], match.start(kind) + 1))
        place = match.end()
    return [*found, _Token("end", "", end + 1)]


class _Reader:
    """Reads by recursive descent, loosest operators first."""

    def __init__(self, tokens: list[_Token], variables: Collection[str]) -> None:
        self._tokens, self._variables = tokens, variables
        self._place = self._depth = 0

    def whole(self) -> Node:
        node = self._choice()
        if self._token.kind != "end":
            raise self._error("expected an operator or the end")
        return node

    @property
    def _token(self) -> _Token:
        return self._tokens[self._place]

    def _error(self, expected: str) -> ExpressionError:
        token = self._token
        found = f"found {token.text!r}" if token.kind != "end" else "the expression ends"
        return ExpressionError(f"column {token.column}: {found}, {expected}")

    def _take(self, *signs: str) -> str | None:
        """Take the next token if it is one of these signs."""
        token = self._token
        if token.kind != "sign" or token.text not in signs:
            return None
        self._place += 1
        return token.text

    def _need(self, sign: str) -> None:
        if self._take(sign) is None:
            raise self._error(f"expected {sign!r}")

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"nested more than {MAX_DEPTH} deep")
        node = self._either()
        if self._take("?"):
            first = self._choice()
            self._need(":")
            node = _chosen(node, first, self._choice())
        self._depth -= 1
        return node

    def _either(self) -> Node:
        node = self._both()
        while self._take("||"):
            node = _logical(node, self._both(), decides=True)
        return node

    def _both(self) -> Node:
        node = self._relation()
        while self._take("&&"):
            node = _logical(node, self._relation(), decides=False)
        return node

    def _relation(self) -> Node:
        node = self._sum()
        while sign := self._take("==", "!=", "<", "<=", ">", ">="):
            node = _compared(sign, node, self._sum())
        return node

    def _sum(self) -> Node:
        node = self._product()
        while sign := self._take("+", "-"):
            node = _computed(sign, node, self._product())
        return node

    def _product(self) -> Node:
        node = self._signed()
        while sign := self._take("*", "/", "%"):
            node = _computed(sign, node, self._signed())
        return node

    def _signed(self) -> Node:
        n_not = n_minus = 0
        while sign := self._take("!", "-"):
            n_not, n_minus = n_not + (sign == "!"), n_minus + (sign == "-")
        node = self._member()
        if n_not and n_minus:
            raise self._error("expected no mix of '!' and '-' before it")
        if n_not:
            return _negated(node, twice=n_not % 2 == 0)
        return _computed("-", lambda _: 0, node) if n_minus % 2 else node

    def _member(self) -> Node:
        node = self._primary()
        while sign := self._take(".", "["):
            token = self._token
            if token.kind != ("name" if sign == "." else "text"):
                raise self._error("expected the name of a field")
            self._place += 1
            node = _field(node, token.text if sign == "." else token.text[1:-1])
            if sign == "[":
                self._need("]")
        return node

    def _primary(self) -> Node:
        token = self._token
        if self._take("("):
            node = self._choice()
            self._need(")")
            return node
        self._place += token.kind != "end"
        match token.kind:
            case "number":
                return _constant(_number(token.text))
            case "text":
                return _constant(token.text[1:-1])
            case "name" if token.text in _LITERALS:
                return _constant(_LITERALS[token.text])
            case "name" if token.text in _FUNCTIONS and self._token.text == "(":
                return self._called(token.text)
            case "name" if token.text in self._variables:
                return _variable(token.text)
            case _:
                self._place -= token.kind != "end"
                known = ", ".join((*self._variables, *_FUNCTIONS))
                raise self._error(f"expected a number, a text or one of {known}")

    def _called(self, function: str) -> Node:
        self._need("(")
        node = self._choice()
        self._need(")")
        return _call(function, node)


def _number(source: str) -> Value:
    digits = source.removesuffix("u")
    return int(digits) if digits.isdigit() else float(digits)


def _constant(value: Value) -> Node:
    return lambda _: value


def _variable(name: str) -> Node:
    return lambda variables: variables[name]


def _field(node: Node, name: str) -> Node:
    def value(variables: Variables) -> Value:
        holder = node(variables)
        if not isinstance(holder, Mapping) or name not in holder:
            raise ExpressionError(f"no such field: {name}")
        return holder[name]

    return value


def _chosen(condition: Node, first: Node, second: Node) -> Node:
    return lambda variables: (first if _truth(condition(variables)) else second)(variables)


def _logical(first: Node, second: Node, *, decides: bool) -> Node:
    """Return `||` or `&&`: an operand that decides does so though the other one has no value."""

    def value(variables: Variables) -> Value:
        try:
            if _truth(first(variables)) is decides:
                return decides
        except ExpressionError:
            if _truth(second(variables)) is decides:
                return decides
            raise
        return _truth(second(variables))

    return value


def _negated(node: Node, *, twice: bool) -> Node:
    return lambda variables: _truth(node(variables)) is twice


def _truth(value: Value) -> bool:
    if not isinstance(value, bool):
        raise ExpressionError("a condition is neither true nor false")
    return value


_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def _compared(sign: str, first: Node, second: Node) -> Node:
    def value(variables: Variables) -> Value:
        one, other = first(variables), second(variables)
        if sign in ("==", "!="):
            is_equal = one == other and isinstance(one, bool) is isinstance(other, bool)
            return is_equal is (sign == "==")
        return _COMPARISONS[sign](_as_number(one), _as_number(other))

    return value


def _computed(sign: str, first: Node, second: Node) -> Node:
    def value(variables: Variables) -> Value:
        one, other = _as_number(first(variables)), _as_number(second(variables))
        try:
            return _calculated(sign, one, other)
        except (ZeroDivisionError, OverflowError, ValueError) as error:
            raise ExpressionError(f"{sign} has no result") from error

    return value


def _calculated(sign: str, one: float, other: float) -> int | float:
    are_whole = isinstance(one, int) and isinstance(other, int)
    match sign:
        case "+":
            return one + other
        case "-":
            return one - other
        case "*":
            return one * other
        case "/":
            return int(one / other) if are_whole else one / other
        case _:
            return int(math.fmod(one, other)) if are_whole else math.fmod(one, other)


def _call(function: str, node: Node) -> Node:
    def has(variables: Variables) -> Value:
        try:
            node(variables)
        except ExpressionError:
            return False
        return True

    def converted(variables: Variables) -> Value:
        value = node(variables)
        if function == "size":
            if not isinstance(value, str | Mapping):
                raise ExpressionError("size() of a number")
            return len(cast("str", value))
        number = _as_number(value)
        if function == "double":
            return float(number)
        if not math.isfinite(number):
            raise ExpressionError("int() of a number that is not finite")
        return math.trunc(number)

    return has if function == "has" else converted


def _as_number(value: Value) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ExpressionError("expected a number")
    return value
