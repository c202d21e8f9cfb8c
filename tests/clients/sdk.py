"""Agents of the SDKs from PyPI: each answers a question with the tool `weather`, and prints the answer.

    sdk.py NAME

Address, key and model come from the variables that `orinctl launch` sets. The scripted model calls the tool for three
cities, one after the other.
"""

import os
import sys

MODEL = os.environ["OPENAI_MODEL"]
QUESTION = "How is the weather?"
asked = []


def weather(city: str) -> str:
    """The weather of a city."""
    asked.append(city)
    return f"sunny in {city}"


PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather of a city.", "parameters": PARAMETERS}
TURNS = 8  # more than any agent needs


def openai():
    import json

    import openai

    client, messages = openai.OpenAI(), [{"role": "user", "content": QUESTION}]
    for _ in range(TURNS):
        tools = [{"type": "function", "function": FUNCTION}]
        with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools) as stream:
            for _ in stream:
                pass
            message = stream.get_final_completion().choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def openai_responses():
    import json

    import openai

    client, conversation = openai.OpenAI(), [{"role": "user", "content": QUESTION}]
    for _ in range(TURNS):
        answer = client.responses.create(model=MODEL, input=conversation, tools=[{"type": "function", "strict": False, **FUNCTION}])
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            return answer.output_text
        conversation += [item.model_dump(exclude_none=True) for item in answer.output]
        for call in calls:
            result = weather(**json.loads(call.arguments))
            conversation.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


def anthropic():
    import anthropic

    client, messages = anthropic.Anthropic(), [{"role": "user", "content": QUESTION}]
    tools = [{"name": "weather", "description": FUNCTION["description"], "input_schema": PARAMETERS}]
    for _ in range(TURNS):
        with client.messages.stream(model=MODEL, max_tokens=256, messages=messages, tools=tools) as stream:
            answer = stream.get_final_message()
        if answer.stop_reason != "tool_use":
            return "".join(block.text for block in answer.content if block.type == "text")
        messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": weather(**block.input)}
            for block in answer.content if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})


def ollama():
    import ollama

    messages = [{"role": "user", "content": QUESTION}]
    for _ in range(TURNS):
        message = ollama.chat(model=MODEL, messages=messages, tools=[weather]).message
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            result = weather(**call.function.arguments)
            messages.append({"role": "tool", "tool_name": call.function.name, "content": result})


def pydantic_ai():
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel

    return Agent(OpenAIChatModel(MODEL), tools=[weather]).run_sync(QUESTION).output


def openai_agents():
    from agents import Agent, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(True)
    agent = Agent(name="weather", model=MODEL, tools=[function_tool(weather)])
    return Runner.run_sync(agent, QUESTION).final_output


def langchain():
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    model, messages = ChatOpenAI(model=MODEL).bind_tools([tool(weather)]), [HumanMessage(QUESTION)]
    for _ in range(TURNS):
        message = model.invoke(messages)
        if not message.tool_calls:
            return message.content
        messages.append(message)
        messages += [ToolMessage(weather(**call["args"]), tool_call_id=call["id"]) for call in message.tool_calls]


def litellm():
    import json

    import litellm

    messages = [{"role": "user", "content": QUESTION}]
    for _ in range(TURNS):
        tools = [{"type": "function", "function": FUNCTION}]
        message = litellm.completion(model=f"openai/{MODEL}", messages=messages, tools=tools).choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def llm():
    from llm import Tool
    from llm.default_plugins.openai_models import Chat

    model = Chat("orind", key=os.environ["OPENAI_API_KEY"], model_name=MODEL, api_base=os.environ["OPENAI_BASE_URL"], supports_tools=True)
    return model.chain(QUESTION, tools=[Tool.function(weather)], key=os.environ["OPENAI_API_KEY"]).text()


def instructor():
    import instructor
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    client = instructor.from_provider(f"openai/{MODEL}")
    person = client.chat.completions.create(response_model=Person, messages=[{"role": "user", "content": "Who is Ada?"}])
    print(f"{person.name} is {person.age}")
    sys.exit(0)


def home_assistant():
    """Requests of the integration: a list of models, then streams with tools, a time and a context."""
    import asyncio

    import ollama

    async def converse():
        client, messages = ollama.AsyncClient(host=os.environ["OLLAMA_HOST"]), [{"role": "user", "content": QUESTION}]
        name = (await client.list())["models"][0]["model"]
        for _ in range(TURNS):
            answer = ollama.Message(role="assistant", content="", tool_calls=[])
            parts = await client.chat(
                model=name, messages=messages, tools=[{"type": "function", "function": FUNCTION}],
                stream=True, keep_alive="-1s", think=False, options={"num_ctx": 8192},
            )
            async for part in parts:
                answer.content += part["message"].get("content") or ""
                answer.tool_calls += part["message"].get("tool_calls") or []
            if not answer.tool_calls:
                return answer.content
            messages.append(answer)
            messages += [{"role": "tool", "content": weather(**call.function.arguments)} for call in answer.tool_calls]

    return asyncio.run(converse())


AGENTS = [
    openai, openai_responses, anthropic, ollama, llm, pydantic_ai, openai_agents, langchain, litellm, instructor,
    home_assistant,
]

if __name__ == "__main__":
    (run,) = [agent for agent in AGENTS if agent.__name__ == sys.argv[1]]
    answer = run()
    if asked != ["Bern", "Rome", "Oslo"] or "three cities" not in str(answer):
        sys.exit(f"{run.__name__}: asked for {asked}, and answered {answer!r}")
    print(answer)
