"""Wire models of tools: their definitions, the choice among them, and the calls that clients send back.

Knows OpenAI's shapes alone. Schemas of parameters are checked for what clients get wrong; the rest is found out by the
replica that compiles them.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from goose_ray.api.tools.choice import ToolChoice
from goose_ray.api.validation import WireModel
from goose_ray.errors import InvalidRequestError

__all__ = [
    "MAX_TOOLS",
    "CallOfMessage",
    "CalledFunction",
    "FunctionDefinition",
    "FunctionName",
    "NamedFunction",
    "Tool",
    "check_tool_choice",
    "tool_choice_of",
]

MAX_TOOLS = 128
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_NAME = r"^[a-zA-Z0-9_.-]{1,128}$"


class FunctionDefinition(WireModel):
    name: Annotated[str, Field(pattern=_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    # true: a schema that cannot be enforced to the letter is refused where it is to be
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _describes_an_object(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is None:
            return None
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:
            # NaN, or beyond what a float can be
            raise PydanticCustomError("schema", "Parameters should be JSON, with finite numbers") from None
        if value.get("type", "object") != "object":
            raise _schema_fault('Parameters should be a JSON schema of type "object"', "type")
        properties = value.get("properties", {})
        if not isinstance(properties, dict):
            raise _schema_fault("Properties should be schemas by name", "properties")
        for name, schema in properties.items():
            if not isinstance(schema, dict | bool):
                raise _schema_fault("A property should be a JSON schema", f"properties.{name}")
        required = value.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise _schema_fault("Required should be a list of names", "required")
        return value


class Tool(WireModel):
    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        """As the client sent it, and complete, as templates expect it to be; `strict` says nothing to a model."""
        parameters = self.function.parameters or {}
        return {
            "type": "function",
            "function": {
                "name": self.function.name,
                "description": self.function.description or "",
                # in the client's order
                "parameters": parameters | (_NO_PARAMETERS | parameters),
            },
        }


class FunctionName(WireModel):
    name: str


class NamedFunction(WireModel):
    type: Literal["function"]
    function: FunctionName


class CalledFunction(WireModel):
    name: str
    # JSON text
    arguments: Annotated[str, Field(json_schema_extra={"contentMediaType": "application/json"})]


class CallOfMessage(WireModel):
    """A call in a message of the assistant."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    # as in a stream, from which clients put messages together
    index: int | None = None

    def for_template(self, param: str) -> dict[str, Any]:
        """With the arguments as an object, as templates write them out themselves. Raises InvalidRequestError."""
        text = self.function.arguments
        try:
            arguments = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{param}.function.arguments is no JSON: {error}", _arguments_of(param)) from None
        if not isinstance(arguments, dict):
            raise InvalidRequestError(f"{param}.function.arguments must be a JSON object", _arguments_of(param))
        return {"id": self.id, "type": "function", "function": {"name": self.function.name, "arguments": arguments}}


def check_tool_choice(value: Any) -> Any:
    """Raises PydanticCustomError; pydantic itself would name every variant that the value is not."""
    if value in (None, "none", "auto", "required"):
        return value
    if isinstance(value, dict) and value.keys() == {"type", "function"} and value["type"] == "function":
        function = value["function"]
        if isinstance(function, dict) and function.keys() == {"name"} and isinstance(function["name"], str):
            return value
    says = 'Input should be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}'
    raise PydanticCustomError("tool_choice", "{says}", {"says": says})


def tool_choice_of(
    tools: list[Tool] | None, choice: Literal["none", "auto", "required"] | NamedFunction | None, *, parallel: bool
) -> ToolChoice | None:
    """None if there are no tools. Raises InvalidRequestError naming the field that does not fit the others."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequestError("tool_choice needs tools to choose from", "tool_choice")
        return None
    functions: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools):
        if tool.function.name in functions:
            param = f"tools[{index}].function.name"
            raise InvalidRequestError(f"{param}: there is another function {tool.function.name!r}", param)
        functions[tool.function.name] = tool.function.model_dump(exclude_unset=True)
    if not isinstance(choice, NamedFunction):
        return ToolChoice(kind=choice or "auto", functions=functions, parallel=parallel)
    name = choice.function.name
    if name not in functions:
        raise InvalidRequestError(f"tool_choice: there is no function {name!r} in tools", "tool_choice.function.name")
    return ToolChoice(kind="named", functions=functions, function=name, parallel=parallel)


def _arguments_of(param: str) -> str:
    return f"{param}.function.arguments"


def _schema_fault(says: str, at: str) -> PydanticCustomError:
    return PydanticCustomError("schema", "{says}", {"says": says, "at": at})
