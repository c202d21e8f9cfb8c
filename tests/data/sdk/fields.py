#!/usr/bin/env python3
"""Prints fields.json: the names of all fields in the request types of the official clients.

pip install openai anthropic ollama && python3 tests/data/sdk/fields.py > tests/data/sdk/fields.json
"""

import json
import sys
import typing
from importlib.metadata import version

import ollama._types as ollama
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count
from anthropic.types.beta import message_create_params as beta
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat
from openai.types.responses import input_token_count_params, response_create_params


def names(*types):
    found = set()
    for one in types:
        members = typing.get_args(one) if typing.get_origin(one) is typing.Union else [one]
        for member in members:
            found |= set(typing.get_type_hints(member))
    return sorted(found)


def fields(*models):
    all_ = {name.rstrip("_") for m in models for name in m.model_fields}
    return sorted(all_)


json.dump(
    {
        "versions": {name: version(name) for name in ("openai", "anthropic", "ollama")},
        "/v1/chat/completions": names(chat.CompletionCreateParams),
        "/v1/completions": names(completion_create_params.CompletionCreateParams),
        "/v1/responses": names(
            response_create_params.ResponseCreateParams,
            input_token_count_params.InputTokenCountParams,
        ),
        "/v1/embeddings": names(embedding_create_params.EmbeddingCreateParams),
        "/v1/messages": names(
            message_create_params.MessageCreateParams,
            message_count_tokens_params.MessageCountTokensParams,
            beta.MessageCreateParams,
            beta_count.MessageCountTokensParams,
        ),
        "/api/chat": fields(ollama.ChatRequest),
        "/api/generate": fields(ollama.GenerateRequest),
        "/api/embed": fields(ollama.EmbedRequest, ollama.EmbeddingsRequest),
        "/api/create": fields(ollama.CreateRequest),
        "/api/show": fields(
            ollama.ShowRequest,
            ollama.PullRequest,
            ollama.PushRequest,
            ollama.DeleteRequest,
        ),
        "options": fields(ollama.Options),
    },
    sys.stdout,
    indent=1,
)
print()
