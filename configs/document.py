"""YAML documents as plain data, with the line of every key."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from .errors import KeyPath, Problem


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document.

    Attributes:
        data: mappings, lists and scalars, by the rules of YAML 1.1.
        root: the YAML node from which they were made.
    """

    data: object
    root: yaml.Node

    def line_of(self, path: KeyPath) -> int:
        """Return the line of the key or list entry at `path`, or of its nearest parent in the file."""
        node, line = self.root, self.root.start_mark.line
        for step in path:
            match node:
                case yaml.MappingNode():
                    found = [(key, value) for key, value in node.value if key.value == step]
                    if not found:
                        break
                    key, node = found[0]
                    line = key.start_mark.line
                case yaml.SequenceNode() if isinstance(step, int) and step < len(node.value):
                    node = node.value[step]
                    line = node.start_mark.line
                case _:
                    break
        return line + 1


def parse_document(raw: bytes) -> Document | Problem:
    """Parse the single document in `raw`, or return the problem: encoding, syntax, a repeated key, an empty file."""
    try:
        root = yaml.compose(raw, Loader=yaml.SafeLoader)
        if root is None:
            return Problem("the file is empty")
        problem = _first_problem(root)
        return problem or Document(data=yaml.safe_load(raw), root=root)
    except yaml.MarkedYAMLError as error:
        return _syntax_problem(error)
    except yaml.reader.ReaderError as error:
        return Problem(f"not a UTF-8 text: {error.reason} at position {error.position}")
    except (ValueError, RecursionError) as error:  # a scalar such as the date 2024-99-99, or endless nesting
        return Problem(f"not a readable YAML value: {error}")
    except (LookupError, AttributeError):  # of PyYAML, for `!!bool x`, `!!int ''` and `!!timestamp x`
        return Problem(
            "not a readable YAML value: one with a tag such as !!int, !!bool or !!timestamp is of another form; "
            "remove the tag"
        )


def _syntax_problem(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    context = f" {error.context}" if error.context else ""
    if error.problem and r"'\t'" in error.problem:
        message = "a tab where YAML allows spaces only; indent with spaces"
    else:
        message = f"not valid YAML: {error.problem or 'unreadable'}{context}"
    return Problem(message, line=mark.line + 1 if mark else None)


def _first_problem(root: yaml.Node) -> Problem | None:
    """Return the first repeated key or impossible text that is found. Each node is visited once."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        problem = None
        if isinstance(node, yaml.MappingNode):
            problem = _repeated_key(node)
            waiting.extend(each for pair in node.value for each in pair)
        elif isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
        elif isinstance(node, yaml.ScalarNode):
            problem = _impossible_text(node)
        if problem is not None:
            return problem
    return None


def _repeated_key(mapping: yaml.MappingNode) -> Problem | None:
    """Return a key that is repeated, of which YAML would silently use the last value."""
    lines: dict[str, int] = {}
    for key, _ in mapping.value:
        name = str(key.value)
        line = key.start_mark.line + 1
        if name in lines:
            return Problem(f"key {name!r} is repeated, first on line {lines[name]}; keep one", line=line)
        lines[name] = line
    return None


def _impossible_text(scalar: yaml.ScalarNode) -> Problem | None:
    """Return what an escape wrote that no file name, header or JSON can hold."""
    found = next((each for each in str(scalar.value) if each == "\0" or "\ud800" <= each <= "\udfff"), None)
    if found is None:
        return None
    what, remedy = "half of a character", "write the whole character"
    if found == "\0":
        what, remedy = "a zero byte", "remove it"
    line = scalar.start_mark.line + 1
    return Problem(f"the text has \\u{ord(found):04x}, {what}; {remedy}", line=line)
