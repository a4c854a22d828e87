"""Shows the constructor of attrs classes in the API reference.

The reference is made from the source without importing it, where an attrs class has no ``__init__``: this adds one,
from the fields, as attrs does when the class is made.
"""

from __future__ import annotations

from typing import Any

import griffe

ATTRS_DECORATORS = {"attrs.define", "attrs.frozen", "attrs.mutable"}


class AttrsSignatures(griffe.Extension):
    """Gives every attrs class of a package its constructor."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Visit the whole package once it is loaded."""
        _visit(pkg)


def _visit(parent: griffe.Module | griffe.Class) -> None:
    for member in list(parent.members.values()):
        if member.is_alias:
            continue
        if isinstance(member, griffe.Module | griffe.Class):
            _visit(member)
        if isinstance(member, griffe.Class) and _is_attrs(member) and "__init__" not in member.members:
            member.set_member("__init__", _constructor(member))


def _is_attrs(cls: griffe.Class) -> bool:
    return any(decorator.callable_path in ATTRS_DECORATORS for decorator in cls.decorators)


def _constructor(cls: griffe.Class) -> griffe.Function:
    parameters: dict[str, griffe.Parameter] = {}
    for base in [*reversed(cls.mro()), cls]:
        if _is_attrs(base):
            fields = (member for member in base.members.values() if isinstance(member, griffe.Attribute))
            parameters |= {p.name: p for p in map(_parameter, fields) if p is not None}
    ordered = sorted(parameters.values(), key=lambda p: p.kind is griffe.ParameterKind.keyword_only)
    own = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    return griffe.Function("__init__", parameters=griffe.Parameters(own, *ordered), parent=cls)


def _parameter(field: griffe.Attribute) -> griffe.Parameter | None:
    arguments = _field_arguments(field.value)
    shared = "instance-attribute" not in field.labels  # a ClassVar, or a property
    if field.annotation is None or shared or (arguments or {}).get("init") == "False":
        return None
    keyword_only = arguments is not None and arguments.get("kw_only") == "True"
    kind = griffe.ParameterKind.keyword_only if keyword_only else griffe.ParameterKind.positional_or_keyword
    return griffe.Parameter(
        field.name.lstrip("_"), annotation=field.annotation, kind=kind, default=_default(field, arguments)
    )


def _default(field: griffe.Attribute, arguments: dict[str, str] | None) -> Any:
    if arguments is None:
        return field.value
    factory = arguments.get("factory")
    return f"{factory}()" if factory else arguments.get("default")


def _field_arguments(value: Any) -> dict[str, str] | None:
    """Return the keywords of a ``field(...)``, ``None`` for any other value."""
    if not isinstance(value, griffe.ExprCall) or value.function.canonical_path not in ("attrs.field", "attr.field"):
        return None
    keywords = [a for a in value.arguments if isinstance(a, griffe.ExprKeyword)]
    return {keyword.name: str(keyword.value) for keyword in keywords}
