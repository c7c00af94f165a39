# SPDX-License-Identifier: Apache-2.0
"""Python types as JSON schemas, and JSON values as instances of these types."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import inspect
import json
import sys
import types
import typing
import uuid
from collections import abc
from typing import Any, Callable, Mapping, Optional, Union

_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "format": "time"},
    uuid.UUID: {"type": "string", "format": "uuid"},
}
_FROM_TEXT: dict[Any, Callable[[str], Any]] = {
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    uuid.UUID: uuid.UUID,
}
_LISTS = (list, abc.Sequence, abc.Iterable, abc.Collection)
_SETS = (set, frozenset, abc.Set)
_MAPPINGS = (dict, abc.Mapping)
_UNIONS = (Union, getattr(types, "UnionType", Union))  # the second: X | Y, from Python 3.10 on


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type: a dataclass, TypedDict or enum, Literal, Optional and Union, list, tuple,
    set and dict of such, str, int, float, bool, None, dates and UUIDs; or a class of pydantic. A text in
    Annotated, or `description` in the metadata of a dataclass's field, describes what it is for.
    TypeError for any other, with its place.
    """
    if hasattr(kind, "model_json_schema"):  # of pydantic, which need not be installed
        return dict(kind.model_json_schema())
    schemas = _Schemas()
    schema = schemas.of(kind, getattr(kind, "__name__", "the type"))
    if schemas.definitions:
        schema = {**schema, "$defs": schemas.definitions}
    return schema


def function_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a function's arguments as one object. TypeError for an argument without a type, or that
    cannot be named.
    """
    schemas = _Schemas()
    members: dict[str, Any] = {}
    required: list[str] = []
    for name, (kind, default) in _parameters(function).items():
        members[name] = schemas.of(kind, f"{function.__name__}: {name}")
        if default is inspect.Parameter.empty:
            required.append(name)
    schema = _object(members, required)
    if schemas.definitions:
        schema["$defs"] = schemas.definitions
    return schema


def _parameters(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """The type and the default of each."""
    hints = typing.get_type_hints(function, include_extras=True)
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{function.__name__}: {name} has to be an argument with a name of its own")
        if name not in hints:
            raise TypeError(f"{function.__name__}: {name} has no type")
        found[name] = (hints[name], parameter.default)
    return found


def _object(members: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(members),
        "required": required,
        "additionalProperties": False,
    }


def _fields(kind: Any) -> dict[str, tuple[Any, bool, str]]:
    """Fields of a dataclass: each that __init__ takes, its type, whether it is required, its description."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        field.name: (
            hints[field.name],
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            str(field.metadata.get("description", "")),
        )
        for field in dataclasses.fields(kind)
        if field.init
    }


def _typed_dict_fields(kind: Any) -> dict[str, tuple[Any, bool, str]]:
    """Fields of a TypedDict, as _fields() has them."""
    hints = typing.get_type_hints(kind)
    return {name: (hint, name in kind.__required_keys__, "") for name, hint in hints.items()}


class _Schemas:
    """Named types become definitions where they are met again, which a recursive type needs."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self._names: dict[Any, str] = {}
        self._root: Any = None

    def of(self, kind: Any, place: str) -> dict[str, Any]:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if _is_annotated(kind):  # first: its metadata may have no hash
            schema = self.of(arguments[0], place)
            texts = [text for text in kind.__metadata__ if isinstance(text, str)]
            return {**schema, "description": texts[0]} if texts else schema
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        if kind is Any or kind is object:
            return {}
        if origin is typing.Literal:
            return {"enum": list(arguments)}
        if origin in _UNIONS:
            return {"anyOf": [self.of(each, place) for each in arguments]}
        if origin in _LISTS or kind in (list, abc.Sequence):
            return {"type": "array", "items": self.of(arguments[0] if arguments else Any, place)}
        if origin in _SETS:
            return {"type": "array", "items": self.of(arguments[0], place)}
        if origin is tuple:
            return self._tuple(arguments, place)
        if origin in _MAPPINGS or kind is dict:
            if arguments and arguments[0] is not str:
                raise TypeError(f"{place}: the keys of an object are str, not {arguments[0]}")
            values = self.of(arguments[1], place) if arguments else {}
            return {"type": "object", "additionalProperties": values or True}
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"enum": [member.value for member in kind]}
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return self._named(kind, lambda: self._dataclass(kind))
        if _is_typed_dict(kind):
            return self._named(kind, lambda: self._typed_dict(kind))
        if hasattr(kind, "model_json_schema"):
            raise TypeError(f"{place}: a class of pydantic may not be a part of another type")
        raise TypeError(f"{place}: no JSON schema is known of {kind!r}")

    def _tuple(self, arguments: tuple[Any, ...], place: str) -> dict[str, Any]:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return {"type": "array", "items": self.of(arguments[0], place)}
        return {
            "type": "array",
            "prefixItems": [self.of(each, place) for each in arguments],
            "minItems": len(arguments),
            "maxItems": len(arguments),
        }

    def _named(self, kind: Any, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The outermost type is the schema itself, every other a definition."""
        if self._root is None:
            self._root = kind
            return make()
        if kind is self._root:
            return {"$ref": "#"}
        if kind not in self._names:
            name, count = kind.__name__, 2
            while name in self.definitions:
                name, count = f"{kind.__name__}{count}", count + 1
            self._names[kind] = name
            self.definitions[name] = {}  # taken while it is made
            self.definitions[name] = make()
        return {"$ref": f"#/$defs/{self._names[kind]}"}

    def _dataclass(self, kind: Any) -> dict[str, Any]:
        members, required = {}, []
        for name, (hint, is_required, description) in _fields(kind).items():
            members[name] = self.of(hint, f"{kind.__name__}.{name}")
            if description:
                members[name] = {**members[name], "description": description}
            if is_required:
                required.append(name)
        return _object(members, required)

    def _typed_dict(self, kind: Any) -> dict[str, Any]:
        fields = _typed_dict_fields(kind).items()
        members = {name: self.of(hint, f"{kind.__name__}.{name}") for name, (hint, _, _) in fields}
        return _object(members, [name for name, (_, is_required, _) in fields if is_required])


def _is_annotated(kind: Any) -> bool:
    return hasattr(kind, "__metadata__")


def _is_typed_dict(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__required_keys__")


def build(kind: Any, value: Any, place: str = "") -> Any:
    """An instance of `kind` out of a JSON value. ValueError, with the place, where it does not fit."""
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if _is_annotated(kind):
        return build(arguments[0], value, place)
    if kind is Any or kind is object:
        return value
    if kind in _FROM_TEXT:
        return _from_text(kind, _expect(value, str, place), place)
    if kind is float:
        return float(_expect(value, (int, float), place))
    if kind in _PLAIN:
        return _expect(value, kind, place)
    if origin is typing.Literal:
        return _among(arguments, value, place)
    if origin in _UNIONS:
        return _first_that_fits(arguments, value, place)
    if origin in _LISTS or kind in (list, abc.Sequence):
        return _items(arguments[0] if arguments else Any, value, place)
    if origin in _SETS:
        items = _items(arguments[0], value, place)
        return frozenset(items) if origin is frozenset else set(items)
    if origin is tuple:
        return _tuple_of(arguments, value, place)
    if origin in _MAPPINGS or kind is dict:
        inner = arguments[1] if arguments else Any
        members = _expect(value, dict, place)
        return {name: build(inner, each, _member(place, name)) for name, each in members.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(_among([member.value for member in kind], value, place))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind(**_members(kind, _fields(kind), value, place))
    if _is_typed_dict(kind):
        return _members(kind, _typed_dict_fields(kind), value, place)
    raise TypeError(f"{place or 'the value'}: nothing is known of {kind!r}")


def build_arguments(function: Callable[..., Any], value: Any) -> dict[str, Any]:
    """The keyword arguments of a call of `function` out of a JSON object."""
    fields = {
        name: (kind, default is inspect.Parameter.empty, "")
        for name, (kind, default) in _parameters(function).items()
    }
    return _members(function, fields, value, "")


def to_text(value: Any) -> str:
    """The text of a tool's answer: a str as it is, any other value as JSON, dataclasses and enums included."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=_to_json)


def _to_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (set, frozenset)):
        return list(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "tolist"):  # of NumPy
        return value.tolist()
    if isinstance(value, uuid.UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no JSON: {value!r}")


def _member(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _wrong(place: str, value: Any, wanted: str) -> ValueError:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) > 60:
        text = text[:57] + "..."
    return ValueError(f"{place or 'the document'} is {text}, {wanted} is needed")


def _expect(value: Any, kind: Any, place: str) -> Any:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if isinstance(value, bool) and bool not in kinds or not isinstance(value, kinds):
        raise _wrong(place, value, " or ".join(each.__name__ for each in kinds))
    return value


def _from_text(kind: Any, text: str, place: str) -> Any:
    if sys.version_info < (3, 11):
        text = text.replace("Z", "+00:00")
    try:
        return _FROM_TEXT[kind](text)
    except ValueError:
        raise _wrong(place, text, f"a {kind.__name__}") from None


def _among(values: Any, value: Any, place: str) -> Any:
    for each in values:
        if each == value and type(each) is type(value):
            return each
    raise _wrong(place, value, "one of " + json.dumps(list(values), ensure_ascii=False))


def _first_that_fits(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    wrong: Optional[ValueError] = None
    for kind in kinds:
        try:
            return build(kind, value, place)
        except ValueError as error:
            # The word of the alternative that is a kind of object says more than "None is needed".
            wrong = error if wrong is None or kind is not type(None) else wrong
    assert wrong is not None
    raise wrong


def _items(kind: Any, value: Any, place: str) -> list[Any]:
    items = _expect(value, list, place)
    return [build(kind, each, f"{place}[{i}]") for i, each in enumerate(items)]


def _tuple_of(kinds: tuple[Any, ...], value: Any, place: str) -> tuple[Any, ...]:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_items(kinds[0], value, place))
    items = _expect(value, list, place)
    if len(items) != len(kinds):
        raise _wrong(place, value, f"a list of {len(kinds)}")
    return tuple(build(kind, each, f"{place}[{i}]") for i, (kind, each) in enumerate(zip(kinds, items)))


def _members(
    owner: Any, fields: Mapping[str, tuple[Any, bool, str]], value: Any, place: str
) -> dict[str, Any]:
    members = _expect(value, dict, place)
    for name, (_, is_required, _) in fields.items():
        if is_required and name not in members:
            raise ValueError(f"{_member(place, name)} is missing")
    for name in members:
        if name not in fields:
            raise ValueError(f"{_member(place, name)} is not a member of {owner.__name__}")
    return {name: build(fields[name][0], each, _member(place, name)) for name, each in members.items()}
