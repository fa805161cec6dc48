"""Detection of the form in which a chat template expects message content: a list of parts, or one string.

The engine guesses the form from the template's syntax tree and converts every message to it. kvatlas must make the same
guess: a template expects parts if it loops over the content of a message. It recognizes the same few forms of this loop.
Source: vLLM 0.32.0 renderers/hf.py, `--chat-template-content-format auto`.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes


def wants_content_parts(template: nodes.Template) -> bool:
    """Return whether `template` loops over the content of a message.

    These loops count:
    - over `message.content` or `message["content"]`, if `message` is the target of a loop over `messages` or over a
      variable assigned from it
    - in a macro, over a parameter to which such a content is passed
    - outside of macros, over a variable named `content`
    Filters, tests and slices around these expressions are ignored. If the target of such a loop or assignment is not a
    plain name, the result is False, as in the engine.
    """
    try:
        messages = _message_names(template)
        return any(_is_content_loop(template, messages))
    except _UnknownTargetError:
        return False


class _UnknownTargetError(Exception):
    """A target that is not a plain name."""


def _message_names(template: nodes.Template) -> frozenset[str]:
    """Return the targets of the loops over all messages."""
    lists = {"messages"}
    grown = True
    while grown:
        found = {
            _target(assign.target)
            for assign in template.find_all(nodes.Assign)
            if _is_name(_bare(assign.node), lists)
        }
        grown = not found <= lists
        lists |= found
    return frozenset(
        _target(loop.target) for loop in template.find_all(nodes.For) if _is_name(_bare(loop.iter), lists)
    )


def _is_content_loop(template: nodes.Template, messages: frozenset[str]) -> Iterator[bool]:
    """Yield for each loop, in the template's order, whether it loops over content."""
    parameters: dict[int, set[str]] = {}
    for macro in template.find_all(nodes.Macro):
        names = _content_parameters(template, macro, messages)
        # The innermost macro around a loop comes last and takes precedence, unless no content is passed to it.
        for loop in macro.find_all(nodes.For):
            if names or id(loop) not in parameters:
                parameters[id(loop)] = names
    for loop in template.find_all(nodes.For):
        source = _bare(loop.iter)
        over_content = _is_content(source, messages) or (
            isinstance(loop.iter, nodes.Name) and loop.iter.name in parameters.get(id(loop), {"content"})
        )
        if over_content:
            _target(loop.target)
        yield over_content


def _content_parameters(template: nodes.Template, macro: nodes.Macro, messages: frozenset[str]) -> set[str]:
    """Return the parameters of `macro` to which some call passes a message's content."""
    declared = [argument.name for argument in macro.args]
    names: set[str] = set()
    for call in template.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        passed = list(zip(declared, call.args, strict=False))
        passed += [(pair.key, pair.value) for pair in call.kwargs if pair.key in declared]
        names |= {name for name, value in passed if _is_content(_bare(value), messages)}
    return names


def _bare(node: nodes.Node | None) -> nodes.Node | None:
    """Strip filters, tests and slices from `node`; None for a filter block, which has no expression."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    return node


def _is_name(node: nodes.Node | None, names: set[str] | frozenset[str]) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name in names


def _is_content(node: nodes.Node | None, messages: frozenset[str]) -> bool:
    match node:
        case nodes.Getitem():
            return (
                _is_name(node.node, messages)
                and isinstance(node.arg, nodes.Const)
                and node.arg.value == "content"
            )
        case nodes.Getattr():
            return _is_name(node.node, messages) and node.attr == "content"
        case _:
            return False


def _target(node: nodes.Node) -> str:
    if not isinstance(node, nodes.Name):
        raise _UnknownTargetError
    return node.name
