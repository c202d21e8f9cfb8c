// An agent of Vercel's AI SDK: answers a question with the tool `weather`. Argument: a folder with `node_modules`.

import assert from "node:assert/strict";
import {createRequire} from "node:module";
import {join} from "node:path";

const require = createRequire(join(process.argv[2], "here.js"));
const {generateText, streamText, jsonSchema, stepCountIs, tool} = require("ai");
const {createOpenAICompatible} = require("@ai-sdk/openai-compatible");

const {OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey, OPENAI_MODEL: id} = process.env;
const model = createOpenAICompatible({name: "orind", baseURL, apiKey})(id);
const cities = [];
const weather = tool({
  description: "The weather of a city.",
  inputSchema: jsonSchema({type: "object", properties: {city: {type: "string"}}, required: ["city"]}),
  execute: async ({city}) => {
    cities.push(city);
    return `sunny in ${city}`;
  },
});
const request = {model, tools: {weather}, stopWhen: stepCountIs(8), prompt: "How is the weather?"};

const {text} = await generateText(request);
const streamed = streamText(request);
assert.equal(await streamed.text, text);
assert.deepEqual(cities, ["Bern", "Rome", "Oslo", "Bern", "Rome", "Oslo"]);
assert.match(text, /three cities/);
console.log(text);
