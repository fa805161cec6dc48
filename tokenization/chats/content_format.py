"""Whether a chat template wants message content as a list of parts or as one string.

The engine guesses it from the template's syntax tree and then hands over every message in that form, also those that
came in the other one, so the guess must be made alike: a template wants parts when it loops over the content of a
message. The few ways of writing such a loop that the engine knows are the ones known here.
Source: vLLM 0.32.0 renderers/hf.py, `--chat-template-content-format auto`.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes


def wants_content_parts(template: nodes.Template) -> bool:
    """Whether `template` loops over the content of a message.

    Loops counted: over `message.content` or `message["content"]`, where `message` is the target of a loop over
    `messages` or over a variable set from it; in a macro, over the parameter that such a content is passed for;
    outside of macros, over a variable called `content`. Filters, tests and slices around any of these do not matter.
    A loop or assignment of these kinds with a target other than a plain name makes the answer False, as in the engine.
    """
    try:
        messages = _message_names(template)
        return any(_is_content_loop(template, messages))
    except _UnknownTargetError:
        return False


class _UnknownTargetError(Exception):
    """A target that is no plain name."""


def _message_names(template: nodes.Template) -> frozenset[str]:
    """Targets of the loops over all messages."""
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
    """For each loop, in the order of the template, whether it is one over content."""
    parameters: dict[int, set[str]] = {}
    for macro in template.find_all(nodes.Macro):
        names = _content_parameters(template, macro, messages)
        # The innermost macro around a loop comes last and decides, unless it takes no content.
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
    """Parameters of `macro` that some call passes a message's content for."""
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
    """`node` without the filters, tests and slices around it; None for a filter block, which filters no expression."""
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
