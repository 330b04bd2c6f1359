"""Whether the values of a record have the types and ranges that results/schema.json gives them.

Keys may be absent, null may stand for any number and for any element of a list, and what the schema
does not know is not looked at: records of other versions are read too.
"""

import functools
import json
import math
import pathlib
from typing import NamedTuple

DEFINITIONS = json.loads(
    (pathlib.Path(__file__).parents[1] / "schema.json").read_text(encoding="utf-8"))["$defs"]
NAMES = {"number": "a number", "string": "text", "boolean": "true or false", "array": "a list",
         "object": "an object"}


def type_of(value):
    """Name of the JSON type; integers are numbers."""
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    return {str: "string", list: "array", dict: "object"}.get(type(value), "number")


@functools.lru_cache(maxsize=None)
def properties(kind):
    """{key: schema} of a kind of record, or of a definition that kinds share."""
    definition = DEFINITIONS.get(kind, {})
    found = {}
    for part in (definition, definition.get("then", {}), *definition.get("allOf", [])):
        if "$ref" in part:
            found.update(properties(part["$ref"].split("/")[-1]))
    return {**found, **definition.get("properties", {})}


class Shape(NamedTuple):
    """What the schema says of a value, resolved."""
    types: frozenset
    whole: bool  # not a fraction, if it is a number
    items: "Shape"  # of a list; else None
    minimum: float
    above: float
    maximum: float

    @property
    def wanted(self):
        return " or ".join(NAMES[name] for name in sorted(self.types - {"null"}))


def shape_of(schema):
    if "$ref" in schema:
        schema = {**DEFINITIONS[schema["$ref"].split("/")[-1]], **schema}
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    named = schema.get("type", [])
    named = [named] if isinstance(named, str) else named
    types = {type_of(value) for value in values} | {
        "number" if name == "integer" else name for name in named}
    return Shape(frozenset(types), "integer" in named and "number" not in named, shape_of(schema["items"]) if "items" in schema else None,
                 schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf),
                 schema.get("maximum", math.inf))


@functools.lru_cache(maxsize=None)
def shapes(kind):
    """{key: Shape} of a kind of record."""
    return {key: shape_of(schema) for key, schema in properties(kind).items()}


def fault(value, shape):
    """What a value must be and is not, or None."""
    if value is None:
        return shape.wanted if shape.types == {"string"} else None
    kind = type_of(value)
    if kind not in shape.types:
        return shape.wanted
    if kind == "array" and shape.items:
        of = next(filter(None, (fault(item, shape.items) for item in value
                                if item is not None)), None)
        return of and f"a list of which each is {of}"
    if kind == "number":
        if shape.whole and value != int(value):
            return "a whole number"
        if value < shape.minimum:
            return f"{shape.minimum:g} or more"
        if value <= shape.above:
            return f"more than {shape.above:g}"
        if value > shape.maximum:
            return f"{shape.maximum:g} or less"
    return None


def fault_of(record):
    """What is wrong with a record, or None."""
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return "it has no kind"
    known = shapes(record["kind"])
    for key, value in record.items():
        wanted = fault(value, known[key]) if key in known else None
        if wanted:
            return f"{key} is {json.dumps(value)[:40]} and not {wanted}"
    return None
