# SPDX-License-Identifier: Apache-2.0
"""JSON schemas of types, and their values. Needs no server."""

import datetime
import enum
import unittest
import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, TypedDict, Union

from lintel._schema import build, build_arguments, function_schema, schema_of, to_text


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: float
    y: float = 0.0


@dataclass
class Tree:
    name: Annotated[str, "what it is called"]
    children: List["Tree"] = field(default_factory=list)
    at: Optional[Point] = None


class Options(TypedDict, total=False):
    limit: int


@dataclass
class Everything:
    colour: Colour
    kind: Literal["a", 1]
    points: Sequence[Point]
    pair: Tuple[int, str]
    many: Tuple[int, ...]
    labels: Mapping[str, int]
    options: Options
    day: datetime.date
    id: uuid.UUID
    either: Union[int, str]
    any: Any
    note: str = field(default="", metadata={"description": "what else there is"})


POINT = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x"],
         "additionalProperties": False}


class SchemaTest(unittest.TestCase):
    def test_a_dataclass_is_an_object_of_its_fields(self):
        self.assertEqual(schema_of(Point), POINT)
        self.assertEqual(schema_of(List[Point]), {"type": "array", "items": POINT})

    def test_a_type_within_itself_is_a_reference(self):
        self.assertEqual(schema_of(Tree), {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "what it is called"},
                "children": {"type": "array", "items": {"$ref": "#"}},
                "at": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]},
            },
            "required": ["name"], "additionalProperties": False, "$defs": {"Point": POINT}})
        tree = build(Tree, {"name": "a", "children": [{"name": "b", "at": {"x": 1}}]})
        self.assertEqual(tree, Tree("a", [Tree("b", [], Point(1.0))]))

    def test_each_kind_of_type_has_a_schema_and_values(self):
        members = schema_of(Everything)["properties"]
        self.assertEqual(members["colour"], {"enum": ["red", "blue"]})
        self.assertEqual(members["kind"], {"enum": ["a", 1]})
        self.assertEqual(members["pair"], {
            "type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2})
        self.assertEqual(members["labels"], {"type": "object", "additionalProperties": {"type": "integer"}})
        self.assertEqual(members["day"], {"type": "string", "format": "date"})
        self.assertEqual(members["any"], {})
        self.assertEqual(members["note"], {"type": "string", "description": "what else there is"})
        value = {"colour": "blue", "kind": 1, "points": [{"x": 1.5}], "pair": [1, "b"], "many": [1, 2],
                 "labels": {"a": 1}, "options": {}, "day": "2026-11-30",
                 "id": "12345678-1234-5678-1234-567812345678", "either": "text", "any": [None]}
        self.assertEqual(build(Everything, value), Everything(
            Colour.BLUE, 1, [Point(1.5)], (1, "b"), (1, 2), {"a": 1}, {}, datetime.date(2026, 11, 30),
            uuid.UUID(value["id"]), "text", [None]))

    def test_metadata_that_is_no_text_is_left_out(self):
        kind = Annotated[int, {"of": "others"}, "how many"]
        self.assertEqual(schema_of(kind), {"type": "integer", "description": "how many"})
        self.assertEqual(build(kind, 3), 3)

    def test_a_value_that_does_not_fit_is_named_with_its_place(self):
        for kind, value, text in (
            (Point, {"y": 1}, "x is missing"),
            (Point, {"x": "a"}, 'x is "a", int or float is needed'),
            (Point, {"x": 1, "z": 1}, "z is not a member of Point"),
            (Tree, {"name": "a", "children": [{"name": 7}]}, "children[0].name is 7, str is needed"),
            (Tree, {"name": "a", "at": {"y": 1}}, "at.x is missing"),
            (Point, [], "the document is [], dict is needed"),
            (int, True, "the document is true, int is needed"),
            (Colour, "green", 'the document is "green", one of ["red", "blue"] is needed'),
            (Tuple[int, str], [1], "the document is [1], a list of 2 is needed"),
            (datetime.date, "now", 'the document is "now", a date is needed'),
        ):
            with self.subTest(text), self.assertRaises(ValueError) as caught:
                build(kind, value)
            self.assertEqual(str(caught.exception), text)

    def test_a_type_without_a_schema_is_named_with_its_place(self):
        @dataclass
        class Odd:
            number: complex
        for kind, text in ((Odd, "Odd.number: no JSON schema is known of"), (Dict[int, str], "keys of an object are str")):
            with self.assertRaisesRegex(TypeError, text):
                schema_of(kind)

    def test_a_function_has_the_schema_of_its_arguments(self):
        def move(to: Point, *, speed: Literal["slow", "fast"] = "slow") -> None: ...
        self.assertEqual(function_schema(move), {
            "type": "object",
            "properties": {"to": POINT, "speed": {"enum": ["slow", "fast"]}},
            "required": ["to"], "additionalProperties": False})
        self.assertEqual(build_arguments(move, {"to": {"x": 1}}), {"to": Point(1.0)})
        with self.assertRaisesRegex(ValueError, "speed is .*, one of"):
            build_arguments(move, {"to": {"x": 1}, "speed": "still"})
        for wrong in (lambda x: x, lambda *x: x, lambda **x: x):
            with self.assertRaises(TypeError):
                function_schema(wrong)

    def test_a_class_of_pydantic_speaks_for_itself(self):
        class Model:  # the used part of pydantic
            @classmethod
            def model_json_schema(cls):
                return {"type": "object"}

            @classmethod
            def model_validate(cls, value):
                return "made of " + str(value)
        self.assertEqual(schema_of(Model), {"type": "object"})
        self.assertEqual(build(Model, {}), "made of {}")

    def test_what_a_tool_gives_is_text(self):
        self.assertEqual(to_text("as it is"), "as it is")
        self.assertEqual(to_text({"a": [Point(1.0), Colour.RED]}), '{"a": [{"x": 1.0, "y": 0.0}, "red"]}')
        self.assertEqual(to_text(datetime.date(2026, 11, 30)), '"2026-11-30"')
        with self.assertRaises(TypeError):
            to_text(object())


if __name__ == "__main__":
    unittest.main()
