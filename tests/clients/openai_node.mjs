// Prints as JSON what OpenAI's client for Node makes of a server: node openai_node.mjs URL MODEL PROMPT
import OpenAI from "openai";

const [url, model, prompt] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const asked = { model, messages: [{ role: "user", content: prompt }], temperature: 0, max_tokens: 24 };

const whole = await client.chat.completions.create(asked);

let streamed = "";
let usage = null;
const stream = await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}

const helped = await client.chat.completions.stream(asked).finalContent();
const completion = await client.completions.create({ model, prompt: "One, two,", temperature: 0, max_tokens: 8 });
const models = [];
for await (const one of client.models.list()) models.push(one.id);
const refused = await client.chat.completions.create({ ...asked, temperature: 9 }).catch((error) => error);

const found = {
  whole: whole.choices[0].message.content,
  streamed,
  helped,
  usage,
  completion: completion.choices[0].text,
  models,
  refused: { kind: refused.constructor.name, status: refused.status, param: refused.param },
};
console.log(JSON.stringify(found));
