"""Describes the server's API in the form of OpenAPI 3.1, from which client generators make clients."""

from collections.abc import Mapping
from typing import Any

from bert4rec_tf.export.functions import INPUTS
from bert4rec_tf.serving.http.predict import DEFAULT_SIGNATURE, HISTORIES, USERS, list_server_inputs
from bert4rec_tf.serving.signatures import LoadedModel, Signature

ID = {"type": ["string", "integer"]}
TYPES: dict[str, dict[str, Any]] = {"string": ID, "int32": {"type": "integer"}, "bool": {"type": "boolean"}}
OWN_INPUTS = {
    "users": {
        "type": "array",
        "items": ID,
        "description": "In place of histories that the model holds.",
    },
    "where": {
        "type": "string",
        "description": "A condition on the items' attributes, such as in_stock and price < 20.",
    },
    "explain": {"type": "boolean", "description": "Adds why each item is recommended."},
}
ANY = {"type": "object", "additionalProperties": True}


def describe(name: str, version: int, model: LoadedModel) -> dict[str, Any]:
    """Returns the description of a server that calls `model` by this name."""

    def answer(schema: Mapping[str, Any], kind: str = "application/json") -> dict[str, Any]:
        error = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
        failure = {"description": "One line that says why", "content": {"application/json": {"schema": error}}}
        return {"200": {"description": "The answer", "content": {kind: {"schema": schema}}}, "default": failure}

    def get(operation: str, summary: str, kind: str = "application/json") -> dict[str, Any]:
        schema = ANY if kind == "application/json" else {"type": "string"}
        return {"get": {"operationId": operation, "summary": summary, "responses": answer(schema, kind)}}

    outputs = {"type": "object", "properties": {"outputs": ANY, "predictions": {"type": "array", "items": {}}}}
    bodies = [_describe_body(signature, model) for signature in model.signatures.values()]
    predict = {
        "operationId": "predict",
        "summary": "Calls a signature of the model, as in TensorFlow Serving",
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"anyOf": bodies}}}},
        "responses": answer(outputs),
    }
    path = f"/v1/models/{name}"
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{name}: what comes next", "version": str(version)},
        "paths": {
            f"{path}:predict": {"post": predict},
            path: get("getStatus", "The state of each version"),
            f"{path}/metadata": get("getMetadata", "The signatures and the model card"),
            "/healthz": get("getLiveness", "Whether the server runs"),
            "/readyz": get("getReadiness", "Whether a model answers, and its version"),
            "/metrics": get("getMetrics", "Numbers in Prometheus' text form", "text/plain"),
        },
    }


def _describe_body(signature: Signature, model: LoadedModel) -> dict[str, Any]:
    inputs = {name: OWN_INPUTS[name] for name in list_server_inputs(signature, model)}
    replaced = {HISTORIES} if USERS in inputs else set()
    for name in signature.inputs:
        schema: dict[str, Any] = TYPES.get(INPUTS[name].dtype.name, {"type": "number"})
        for _ in range(INPUTS[name].shape.rank):
            schema = {"type": "array", "items": schema}
        inputs[name] = schema
    required = [name for name, default in signature.inputs.items() if default is None and name not in replaced]
    columns: dict[str, Any] = {"type": "object", "properties": inputs, "required": required}
    columns["additionalProperties"] = False
    if len(signature.inputs) == 1:
        columns = {"anyOf": [columns, *(inputs[name] for name in signature.inputs)]}
    is_default = signature.name == DEFAULT_SIGNATURE
    return {
        "type": "object",
        "properties": {
            "signature_name": {"const": signature.name, **({"default": signature.name} if is_default else {})},
            "inputs": columns,
            "instances": {"type": "array", "items": {}},
        },
        "required": [] if is_default else ["signature_name"],
        "oneOf": [{"required": ["inputs"]}, {"required": ["instances"]}],
        "additionalProperties": False,
        "title": signature.name,
    }
