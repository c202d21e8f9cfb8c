// An agent of ollama's package for Node: answers a question with the tool `weather`. Argument: a folder with `node_modules`.

import assert from "node:assert/strict";
import {createRequire} from "node:module";
import {join} from "node:path";

const require = createRequire(join(process.argv[2], "here.js"));
const {Ollama} = require("ollama");

const ollama = new Ollama({host: process.env.OLLAMA_HOST});
const {models} = await ollama.list();
const model = models[0].model;
const parameters = {type: "object", properties: {city: {type: "string"}}, required: ["city"]};
const tools = [{type: "function", function: {name: "weather", description: "The weather of a city.", parameters}}];
const messages = [{role: "user", content: "How is the weather?"}];
const cities = [];
for (;;) {
  const message = {role: "assistant", content: "", tool_calls: []};
  for await (const part of await ollama.chat({model, messages, tools, stream: true})) {
    message.content += part.message.content;
    message.tool_calls.push(...(part.message.tool_calls ?? []));
  }
  if (!message.tool_calls.length) {
    assert.deepEqual(cities, ["Bern", "Rome", "Oslo"]);
    console.log(message.content);
    break;
  }
  messages.push(message);
  for (const {function: call} of message.tool_calls) {
    cities.push(call.arguments.city);
    messages.push({role: "tool", tool_name: call.name, content: `sunny in ${call.arguments.city}`});
  }
}
