"""Whether the values of a record have the types and ranges that results/schema.json gives them.

Keys may be absent, null may stand for any number and for any element of a list, and what the schema
does not know is not looked at: records of other versions are read too.
"""

import functools
import json
import pathlib

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


def resolved(schema):
    """The schema merged with its $ref."""
    if "$ref" not in schema:
        return schema
    return {**DEFINITIONS[schema["$ref"].split("/")[-1]], **schema}


@functools.lru_cache(maxsize=None)
def properties(kind):
    """{key: schema} of a kind of record, or of a definition that kinds share."""
    definition = DEFINITIONS.get(kind, {})
    found = {}
    for part in (definition, definition.get("then", {}), *definition.get("allOf", [])):
        if "$ref" in part:
            found.update(properties(part["$ref"].split("/")[-1]))
    return {**found, **definition.get("properties", {})}


def types(schema):
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    named = schema.get("type", [])
    named = [named] if isinstance(named, str) else named
    return {type_of(value) for value in values} | \
        {"number" if name == "integer" else name for name in named}


def fault(value, schema):
    """What a value must be and is not, or None."""
    schema = resolved(schema)
    allowed = types(schema)
    wanted = " or ".join(NAMES[name] for name in sorted(allowed - {"null"}))
    if value is None:
        return wanted if allowed == {"string"} else None
    if type_of(value) not in allowed:
        return wanted
    if type_of(value) == "array" and "items" in schema:
        of = next(filter(None, (fault(item, schema["items"]) for item in value
                                if item is not None)), None)
        return of and f"a list of which each is {of}"
    if type_of(value) == "number":
        if value < schema.get("minimum", value):
            return f"{schema['minimum']:g} or more"
        if value <= schema.get("exclusiveMinimum", value - 1):
            return f"more than {schema['exclusiveMinimum']:g}"
    return None


def fault_of(record):
    """What is wrong with a record, or None."""
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return "it has no kind"
    known = properties(record["kind"])
    for key, value in record.items():
        wanted = fault(value, known[key]) if key in known else None
        if wanted:
            return f"{key} is {json.dumps(value)[:40]} and not {wanted}"
    return None
