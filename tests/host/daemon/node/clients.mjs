// Checks the daemon with the official npm clients. Arguments: folder with `node_modules`, URL, id of the model.

import assert from "node:assert/strict";
import {createRequire} from "node:module";
import {join} from "node:path";

const [folder, url, model] = process.argv.slice(2);
const require = createRequire(join(folder, "here.js"));
const place = {
  type: "object", properties: {city: {enum: ["Bern", "Rome"]}}, required: ["city"], additionalProperties: false,
};
const hello = [{role: "user", content: "Hello"}];
const cities = ["Bern", "Rome"];
const refused = async (work, status) => {
  await assert.rejects(work, (error) => (error.status ?? error.status_code) === status);
};

// Token counts with cached prompt tokens included, which depend on earlier requests.
const counted = (usage) => ({
  input: usage.prompt_tokens ?? usage.input_tokens + usage.cache_read_input_tokens,
  output: usage.completion_tokens ?? usage.output_tokens,
});

async function openai() {
  const {OpenAI} = require("openai");
  const client = new OpenAI({baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0});
  const models = [];
  for await (const one of client.models.list()) models.push(one.id);
  assert.deepEqual(models, [model]);

  const ask = {model, messages: hello, temperature: 0, max_completion_tokens: 6};
  const whole = await client.chat.completions.create(ask);
  let text = "", usage;
  for await (const part of await client.chat.completions.create({...ask, stream: true, stream_options: {include_usage: true}})) {
    text += part.choices[0]?.delta.content ?? "";
    usage = part.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.deepEqual(counted(usage), counted(whole.usage));

  const tools = [{type: "function", function: {name: "weather", parameters: place}}];
  const call = {...ask, max_completion_tokens: 60, tools, tool_choice: "required", parallel_tool_calls: false};
  const runner = client.chat.completions.stream(call);
  const streamed = (await runner.finalChatCompletion()).choices[0];
  assert.equal(streamed.finish_reason, "tool_calls");
  const made = (await client.chat.completions.create(call)).choices[0].message;
  assert.equal(streamed.message.tool_calls[0].function.arguments, made.tool_calls[0].function.arguments);
  assert.ok(cities.includes(JSON.parse(made.tool_calls[0].function.arguments).city));
  const messages = [...hello, made, {role: "tool", tool_call_id: made.tool_calls[0].id, content: "Sunny."}];
  const told = await client.chat.completions.create({...ask, messages, tools});
  assert.ok(told.usage.prompt_tokens > whole.usage.prompt_tokens);

  const respond = {model, input: "Hello", temperature: 0, max_output_tokens: 6};
  const response = await client.responses.create(respond);
  const events = [];
  for await (const event of await client.responses.create({...respond, stream: true})) events.push(event);
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, at) => at));
  assert.equal(events.at(-1).response.output[0].content[0].text, response.output_text);
  const final = await client.responses.stream(respond).finalResponse();
  assert.equal(final.output_text, response.output_text);

  await refused(client.chat.completions.create({...ask, model: "gpt-7"}), 404);
  await refused(client.chat.completions.create({...ask, temperature: 9}), 400);
  await refused(client.embeddings.create({model, input: "a"}), 400);
}

async function anthropic() {
  const {Anthropic} = require("@anthropic-ai/sdk");
  const client = new Anthropic({baseURL: url, apiKey: "none", maxRetries: 0});
  const ask = {model, max_tokens: 6, system: "Be brief.", messages: hello, temperature: 0};
  const whole = await client.messages.create(ask);
  const streamed = await client.messages.stream(ask).finalMessage();
  assert.deepEqual(streamed.content, whole.content);
  assert.equal(streamed.stop_reason, whole.stop_reason);
  assert.deepEqual(counted(streamed.usage), counted(whole.usage));
  const count = await client.messages.countTokens({model, system: "Be brief.", messages: hello});
  assert.equal(count.input_tokens, counted(whole.usage).input);

  const tools = [{name: "weather", input_schema: place}];
  const call = {...ask, max_tokens: 60, tools, tool_choice: {type: "any"}};
  const made = await client.messages.stream(call).finalMessage();
  assert.equal(made.stop_reason, "tool_use");
  const use = made.content.find((block) => block.type === "tool_use");
  assert.ok(cities.includes(use.input.city));
  const result = {role: "user", content: [{type: "tool_result", tool_use_id: use.id, content: "Sunny."}]};
  const messages = [...hello, {role: "assistant", content: made.content.filter((block) => block === use)}, result];
  await client.messages.create({...ask, tools, messages});
  await refused(client.messages.create({...ask, model: "claude-7"}), 404);
}

async function ollama() {
  const {Ollama} = require("ollama");
  const client = new Ollama({host: url});
  assert.deepEqual((await client.list()).models.map((one) => one.model), [model]);
  const ask = {model: `${model}:latest`, messages: hello, options: {temperature: 0, num_predict: 6}};
  const whole = await client.chat(ask);
  let text = "", last;
  for await (const part of await client.chat({...ask, stream: true})) {
    text += part.message.content;
    last = part;
  }
  assert.equal(text, whole.message.content);
  assert.ok(last.done && last.eval_count === whole.eval_count);
  const said = await client.generate({model, prompt: "Hello", options: ask.options});
  assert.ok(said.done);
  const held = await client.chat({...ask, format: place, options: {temperature: 0, num_predict: 60}});
  assert.ok(cities.includes(JSON.parse(held.message.content).city));
  await refused(client.chat({...ask, model: "other"}), 404);
  await refused(client.embed({model, input: "a"}), 400);
}

await openai();
await anthropic();
await ollama();
console.log("ok");
