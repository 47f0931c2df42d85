"""From words to the tree: a parser by precedence, without backtracking.

A query is what stands between brackets: definitions, bindings and labels reach to its end; below them come pipes,
commas, then operators in the order of `_LEVELS`, then terms with what follows them (`.a`, `[…]`, `?`).
"""

from __future__ import annotations

from typing import Any, NoReturn

from perdure.core.jq import tree
from perdure.core.jq.lexer import Token, tokens, wrong
from perdure.core.jq.limits import DEEPEST, LONGEST, LONGEST_CHAIN
from perdure.core.jq.tree import Node, Pattern
from perdure.errors import ExpressionError

#: operator: (level, how it associates); a higher level binds tighter.
_LEVELS: dict[str, tuple[int, str]] = {
    "//": (1, "right"),
    **dict.fromkeys(("=", "|=", "+=", "-=", "*=", "/=", "%=", "//="), (2, "none")),
    "or": (3, "left"),
    "and": (4, "left"),
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), (5, "none")),
    "+": (6, "left"),
    "-": (6, "left"),
    **dict.fromkeys(("*", "/", "%"), (7, "left")),
}
_CONSTANTS = {"null": None, "true": True, "false": False}
HERE = tree.Identity()
NULL = tree.Literal(None)


def parse(text: str) -> Node:
    if len(text) > LONGEST:
        raise ExpressionError(f"the expression has {len(text):,} characters, more than {LONGEST:,}")
    parser = Parser(text, tokens(text), 0)
    if parser.next.kind == "end":
        raise wrong(text, 0, "the expression is empty: `.` stands for the input")
    node = parser.query()
    parser.finish()
    return node


def number(text: str) -> int | float:
    """A number as it is written: digits of integers are kept, what is too large becomes the largest float."""
    if text.isascii() and text.isdigit():
        return int(text) if len(text) <= 300 else 1.7976931348623157e308
    value = min(float(text), 1.7976931348623157e308)
    # `1e3` is an integer, `1.0` stays what it is.
    return int(value) if "." not in text and value <= 2**53 and value == int(value) else value


class Parser:
    def __init__(self, text: str, words: list[Token], level: int) -> None:
        self.text = text
        self.words = words
        self.place = 0
        self.level = level

    # --- words ---------------------------------------------------------------------------------------------------

    @property
    def next(self) -> Token:
        return self.words[self.place]

    def take(self) -> Token:
        token = self.words[self.place]
        self.place += 1
        return token

    def sees(self, *values: str) -> bool:
        token = self.next
        return token.kind in ("mark", "keyword") and token.value in values

    def accept(self, *values: str) -> bool:
        if self.sees(*values):
            self.place += 1
            return True
        return False

    def expect(self, value: str) -> None:
        if not self.accept(value):
            self.stop(f"`{value}` is missing")

    def kind(self, kind: str, what: str) -> Any:
        if self.next.kind != kind:
            self.stop(f"{what} is missing")
        return self.take().value

    def stop(self, message: str) -> NoReturn:
        token = self.next
        before = "the end" if token.kind == "end" else "a string" if token.kind == "string" else f"`{token.value}`"
        raise wrong(self.text, token.at, f"{message} before {before}")

    def finish(self) -> None:
        if self.next.kind != "end":
            raise wrong(self.text, self.next.at, "the expression should have ended here")

    # --- queries -------------------------------------------------------------------------------------------------

    def query(self) -> Node:
        self.level += 1
        if self.level > DEEPEST:
            raise wrong(self.text, self.next.at, f"the expression is nested deeper than {DEEPEST} levels")
        stages = [self.commas()]
        while self.accept("|"):
            stages.append(self.commas())
        self.level -= 1
        return stages[0] if len(stages) == 1 else tree.Pipe(tuple(stages))

    def commas(self) -> Node:
        items = [self.item()]
        while self.accept(","):
            items.append(self.item())
        return items[0] if len(items) == 1 else tree.Comma(tuple(items))

    def item(self) -> Node:
        if self.sees("import", "include", "module"):
            raise wrong(self.text, self.next.at, f"`{self.next.value}` is not allowed: expressions have no modules")
        if self.accept("def"):
            return self.definition()
        if self.accept("label"):
            name = self.kind("variable", "the name of the label")
            self.expect("|")
            return tree.Label(name, self.query())
        source = self.expression(0)
        if self.accept("as"):
            patterns = self.patterns()
            self.expect("|")
            return tree.Bind(source, patterns, self.query())
        return source

    def definition(self) -> Node:
        name = self.kind("word", "the name of the function")
        params: list[str] = []
        variables: list[tuple[str, int]] = []
        if self.accept("("):
            while True:
                token = self.take()
                if token.kind not in ("word", "variable"):
                    raise wrong(self.text, token.at, "the name of a parameter is missing")
                if token.kind == "variable":
                    variables.append((token.value, token.at))
                params.append(token.value)
                if not self.accept(";"):
                    break
            self.expect(")")
        self.expect(":")
        body = self.query()
        self.expect(";")
        for variable, at in reversed(variables):
            body = tree.Bind(tree.Call(variable, (), at), (tree.Name(variable),), body)
        return tree.Define(name, tuple(params), body, self.query())

    # --- operators -----------------------------------------------------------------------------------------------

    def expression(self, lowest: int) -> Node:
        left = self.postfix()
        barred = 0
        chain = 0
        while True:
            token = self.next
            level, side = _LEVELS.get(token.value, (0, "")) if token.kind in ("mark", "keyword") else (0, "")
            if not level or level < lowest:
                return left
            if level == barred:
                raise wrong(self.text, token.at, f"`{token.value}` cannot follow here: put parentheses")
            chain += 1
            if chain > LONGEST_CHAIN:
                raise wrong(self.text, token.at, f"more than {LONGEST_CHAIN} operators in a row: put parentheses")
            self.take()
            self.level += 1
            if self.level > DEEPEST:
                raise wrong(self.text, token.at, f"the expression is nested deeper than {DEEPEST} levels")
            right = self.expression(level if side == "right" else level + 1)
            self.level -= 1
            left = _operation(token.value, left, right)
            barred = level if side == "none" else 0

    def postfix(self) -> Node:
        term = self.term()
        links = 0
        while True:
            links += 1
            if links > LONGEST_CHAIN:
                raise wrong(self.text, self.next.at, "the path is too long")
            if self.next.kind == "field":
                name = self.take().value
                term = tree.Index(term, tree.Literal(name), self.accept("?"))
            elif self.sees(".") and self.words[self.place + 1].kind == "string":
                self.take()
                term = tree.Index(term, self.string("text"), self.accept("?"))
            elif self.sees(".") and self.words[self.place + 1].value == "[":
                self.take()
                self.take()
                term = self.bracket(term, slices=False)
            elif self.accept("["):
                term = self.bracket(term)
            elif self.accept("?"):
                term = tree.Try(term)
            else:
                return term

    def bracket(self, term: Node, slices: bool = True) -> Node:
        if self.accept("]"):
            return tree.Iterate(term, self.accept("?"))
        if slices and self.accept(":"):
            end = self.query()
            self.expect("]")
            return tree.Slice(term, NULL, end, self.accept("?"))
        key = self.query()
        if slices and self.accept(":"):
            end = NULL if self.sees("]") else self.query()
            self.expect("]")
            return tree.Slice(term, key, end, self.accept("?"))
        self.expect("]")
        return tree.Index(term, key, self.accept("?"))

    # --- terms ---------------------------------------------------------------------------------------------------

    def term(self) -> Node:
        token = self.next
        match token.kind:
            case "number":
                self.take()
                return tree.Literal(number(token.value))
            case "string":
                return self.string("text")
            case "format":
                self.take()
                return self.string(token.value) if self.next.kind == "string" else tree.Format(token.value)
            case "field":
                self.take()
                return tree.Index(HERE, tree.Literal(token.value), self.accept("?"))
            case "variable":
                self.take()
                if token.value == "__loc__":
                    return self.location(token)
                return tree.Variable(token.value, token.at)
            case "word":
                return self.call()
            case "mark" | "keyword":
                return self.marked()
            case _:
                return self.stop("an expression is missing")

    def marked(self) -> Node:
        if self.accept("."):
            if self.next.kind == "string":
                return tree.Index(HERE, self.string("text"), self.accept("?"))
            return HERE
        at = self.next.at
        if self.accept(".."):
            return tree.Call("recurse", (), at)
        if self.accept("-"):
            self.level += 1
            if self.level > DEEPEST:
                self.stop("too many signs")
            term = self.postfix()
            self.level -= 1
            return tree.Negate(term)
        if self.accept("("):
            body = self.query()
            self.expect(")")
            return body
        if self.accept("["):
            if self.accept("]"):
                return tree.Literal([])
            body = self.query()
            self.expect("]")
            return tree.Array(body)
        if self.accept("{"):
            return self.object()
        if self.accept("break"):
            return tree.Break(self.kind("variable", "the label to break to"), at)
        return self.worded()

    def worded(self) -> Node:
        if self.accept("if"):
            return self.condition()
        if self.accept("try"):
            self.level += 1
            if self.level > DEEPEST:
                self.stop("too many `try`")
            body = self.postfix()
            handler = self.postfix() if self.accept("catch") else None
            self.level -= 1
            return tree.Try(body, handler)
        if self.accept("reduce"):
            source, patterns, init, update = self.loop()
            self.expect(")")
            return tree.Reduce(source, patterns, init, update)
        if self.accept("foreach"):
            source, patterns, init, update = self.loop()
            extract = self.query() if self.accept(";") else None
            self.expect(")")
            return tree.Foreach(source, patterns, init, update, extract)
        return self.stop("an expression is missing")

    def loop(self) -> tuple[Node, tuple[Pattern, ...], Node, Node]:
        source = self.expression(0)
        self.expect("as")
        patterns = self.patterns()
        self.expect("(")
        init = self.query()
        self.expect(";")
        return source, patterns, init, self.query()

    def condition(self) -> Node:
        self.level += 1
        if self.level > DEEPEST:
            self.stop("too many conditions")
        condition = self.query()
        self.expect("then")
        then = self.query()
        if self.accept("elif"):
            orelse = self.condition()
        else:
            orelse = self.query() if self.accept("else") else HERE
            self.expect("end")
        self.level -= 1
        return tree.If(condition, then, orelse)

    def call(self) -> Node:
        token = self.take()
        if token.value in _CONSTANTS and not self.sees("("):
            return tree.Literal(_CONSTANTS[token.value])
        args: list[Node] = []
        if self.accept("("):
            args.append(self.query())
            while self.accept(";"):
                args.append(self.query())
            self.expect(")")
        return tree.Call(token.value, tuple(args), token.at)

    def string(self, format: str) -> Node:
        parts: list[str | Node] = []
        for part in self.take().value:
            if isinstance(part, str):
                parts.append(part)
                continue
            inner = Parser(self.text, part, self.level)
            parts.append(inner.query())
            inner.finish()
        if all(isinstance(part, str) for part in parts):
            return tree.Literal("".join(str(part) for part in parts))
        return tree.Text(tuple(parts), format)

    def location(self, token: Token) -> Node:
        return tree.Literal({"file": "<top-level>", "line": self.text.count("\n", 0, token.at) + 1})

    # --- objects and patterns ------------------------------------------------------------------------------------

    def object(self) -> Node:
        self.level += 1
        if self.level > DEEPEST:
            self.stop(f"objects are nested deeper than {DEEPEST} levels")
        entries: list[tuple[Node, Node | None]] = []
        while not self.accept("}"):
            if entries:
                self.expect(",")
                if self.accept("}"):
                    break
            entries.append(self.entry())
        self.level -= 1
        return tree.Object(tuple(entries))

    def entry(self) -> tuple[Node, Node | None]:
        token = self.next
        key: Node
        if token.kind == "variable":
            self.take()
            key = tree.Variable(token.value, token.at)
            if token.value == "__loc__":
                return tree.Literal("__loc__"), self.location(token)
            if not self.sees(":"):
                return tree.Literal(token.value), key
        elif token.kind in ("word", "keyword"):
            self.take()
            key = tree.Literal(token.value)
        elif token.kind == "string":
            key = self.string("text")
        elif token.kind == "format" and self.words[self.place + 1].kind == "string":
            self.take()
            key = self.string(token.value)
        elif self.accept("("):
            key = self.query()
            if isinstance(key, tree.Literal) and type(key.value) is not str:
                raise wrong(self.text, token.at, "the key of an object is not a string")
            self.expect(")")
            self.expect(":")
            return key, self.entry_value()
        else:
            self.stop("a key is missing (one that is an expression needs parentheses)")
        return key, (self.entry_value() if self.accept(":") else None)

    def entry_value(self) -> Node:
        stages = [self.expression(0)]
        while self.accept("|"):
            stages.append(self.expression(0))
        return stages[0] if len(stages) == 1 else tree.Pipe(tuple(stages))

    def patterns(self) -> tuple[Pattern, ...]:
        found = [self.pattern()]
        while self.accept("?//"):
            found.append(self.pattern())
        return tuple(found)

    def pattern(self) -> Pattern:
        self.level += 1
        if self.level > DEEPEST:
            self.stop("the pattern is nested too deep")
        found: Pattern
        if self.next.kind == "variable":
            found = tree.Name(self.take().value)
        elif self.accept("["):
            items = [self.pattern()]
            while self.accept(","):
                items.append(self.pattern())
            self.expect("]")
            found = tree.Items(tuple(items))
        elif self.accept("{"):
            fields = [self.field()]
            while self.accept(","):
                fields.append(self.field())
            self.expect("}")
            found = tree.Fields(tuple(fields))
        else:
            self.stop("a pattern is missing (`$name`, `[…]` or `{…}`)")
        self.level -= 1
        return found

    def field(self) -> tuple[str | None, Node, Pattern | None]:
        token = self.next
        if token.kind == "variable":
            self.take()
            return token.value, tree.Literal(token.value), (self.pattern() if self.accept(":") else None)
        key: Node
        if token.kind in ("word", "keyword"):
            self.take()
            key = tree.Literal(token.value)
        elif token.kind == "string":
            key = self.string("text")
        elif self.accept("("):
            key = self.query()
            self.expect(")")
        else:
            self.stop("the key of a pattern is missing")
        self.expect(":")
        return None, key, self.pattern()


def _operation(op: str, left: Node, right: Node) -> Node:
    if op == "//":
        return tree.Otherwise(left, right)
    if op in ("and", "or"):
        return tree.Logic(op, left, right)
    if op in ("=", "|=", "+=", "-=", "*=", "/=", "%=", "//="):
        return tree.Assign(op, left, right)
    return tree.Binary(op, left, right)
