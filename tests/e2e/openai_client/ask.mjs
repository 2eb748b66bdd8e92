// What the tests share: the official OpenAI client, unmodified, against a running gateway (GATEWAY_URL) of the demo
// pair, a question, one way to ask for answers, whole or streamed, and what an error looks like.
import assert from 'node:assert/strict';
import test from 'node:test';

import OpenAI from 'openai';

export const url = process.env.GATEWAY_URL;
assert.ok(url, 'GATEWAY_URL names the gateway');
export const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'unused', maxRetries: 0, timeout: 60_000 });

export const passage =
  'The trip of Zora Pellson ended in Kingfield. The departure of Zora was on Friday. Nobody likes to drink cider ' +
  'in the cold. The mayor of Porthaven is Ingrid Farrick. Porthaven lies on the river Tavy. Zora Pellson went by ' +
  'ferry. The house by the river is always red.\nby what means did Zora get there';
export const messages = [{ role: 'user', content: passage }];
// Exact: the same tokens each time, whatever is in a cache.
export const exact = { aludel: { fidelity: 'exact' } };
export const greedy = { model: 'chat', messages, temperature: 0, max_tokens: 24, ...exact };
export const greedyPlain = {
  model: 'chat', prompt: 'The river of Kingley is the', temperature: 0, max_tokens: 8, ...exact,
};

export const modes = ['whole', 'stream'];

export async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

// An endpoint's answer, however it came:
// { choices: [{ text, calls, finish_reason, stop_reason, logprobs, tokens }], prompt, usage, aludel }.
// `text` is null where a chat message has no content; ids of calls, which are random, are left out. `prompt` and
// `tokens` are token ids where they were asked for.
class Endpoint {
  constructor(name, resource) {
    Object.assign(this, { name, resource });
  }

  async ask(fields, mode, options) {
    if (mode === 'whole') return this.#ofBody(await this.resource().create(fields, options));
    const stream = { ...fields, stream: true, stream_options: { include_usage: true } };
    return this.#ofChunks(await collect(await this.resource().create(stream, options)));
  }

  #ofBody({ choices, usage, aludel, prompt_token_ids: prompt }) {
    const read = ({ message, text, logprobs, finish_reason, stop_reason, token_ids }) => ({
      text: message ? message.content : text,
      calls: (message?.tool_calls ?? []).map(({ type, function: call }) => ({ type, ...call })),
      logprobs: logprobs?.content ?? logprobs,
      finish_reason,
      stop_reason,
      tokens: token_ids ?? [],
    });
    return { choices: choices.map(read), prompt: prompt ?? choices[0].prompt_token_ids, usage, aludel };
  }

  #ofChunks(chunks) {
    const choices = [];
    for (const { index, delta, text, logprobs, ...rest } of chunks.flatMap((chunk) => chunk.choices)) {
      const choice = (choices[index] ??= {
        text: null, calls: [], logprobs: null, finish_reason: null, stop_reason: undefined, tokens: [] });
      assert.equal(choice.finish_reason, null, 'a chunk behind the end of its choice');
      const more = delta ? delta.content : text;
      if (typeof more === 'string') choice.text = (choice.text ?? '') + more;
      for (const { type, function: call } of delta?.tool_calls ?? []) choice.calls.push({ type, ...call });
      choice.logprobs = joined(choice.logprobs, logprobs?.content ?? logprobs);
      choice.finish_reason = rest.finish_reason;
      choice.stop_reason = rest.stop_reason;
      choice.tokens.push(...(rest.token_ids ?? []));
    }
    const last = chunks.at(-1);
    assert.deepEqual(last.choices, []);
    const prompt = chunks[0].prompt_token_ids ?? chunks[0].choices[0].prompt_token_ids;
    return { choices, prompt, usage: last.usage, aludel: chunks.at(-2).aludel };
  }
}

// Chat's log-probabilities are a list, those of plain completions an object of lists.
function joined(before, more) {
  if (!before || !more) return before ?? more ?? null;
  if (Array.isArray(more)) return [...before, ...more];
  return Object.fromEntries(Object.keys(more).map((name) => [name, [...before[name], ...more[name]]]));
}

export const chat = new Endpoint('chat', () => client.chat.completions);
export const plain = new Endpoint('plain', () => client.completions);

// A table of [what, fields, check]: each row is asked whole and streamed, `check(answer, mode)` looks at both
// answers, and both must be the same.
export function testFields(endpoint, base, rows) {
  for (const [what, fields, check] of rows) {
    const answers = [];
    for (const mode of modes) {
      test(`${endpoint.name}, ${mode}: ${what}`, async () => {
        const answer = await endpoint.ask({ ...base, ...fields }, mode);
        assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
        await check(answer, mode);
        answers.push(answer);
        assert.deepEqual(answer.choices, answers[0].choices);
        assert.deepEqual(answer.usage.completion_tokens, answers[0].usage.completion_tokens);
      });
    }
  }
}

// An error of `type` with these properties.
export function fails(type, properties) {
  return (error) => {
    assert.ok(error instanceof type, `${error.constructor.name}: ${error.message}`);
    for (const [name, value] of Object.entries(properties)) {
      assert.equal(error[name], value, `${name}: ${error.message}`);
    }
    assert.ok(error.message.length > 8 && error.type, error.message);
    assert.match(error.requestID, /^\w/);
    return true;
  };
}

export const schemaFormat = (schema) =>
  ({ type: 'json_schema', json_schema: { name: 'answer', schema, strict: true } });

export async function post(path, body) {
  return (await fetch(`${url}${path}`, { method: 'POST', body: JSON.stringify(body) })).json();
}

// The token ids of a text in the middle of an answer.
export async function tokenize(text) {
  return (await post('/tokenize', { model: 'chat', prompt: text, add_special_tokens: false })).tokens;
}

// The least bias, to 1, with which `endpoint` says `token` twice: a penalty of 2 then takes it out of the second
// place. `twice` is how the two of them read.
export async function repeatingBias(endpoint, base, token, twice) {
  const says = async (bias) =>
    (await endpoint.ask({ ...base, max_tokens: 2, logit_bias: { [token]: bias } }, 'whole')).choices[0].text === twice;
  let [once, repeated] = [0, 100];
  assert.equal(await says(once), false, 'the answer repeats itself as it is');
  assert.equal(await says(repeated), true, 'a bias of 100 does not decide');
  while (repeated - once > 1) {
    const middle = Math.floor((once + repeated) / 2);
    if (await says(middle)) repeated = middle;
    else once = middle;
  }
  return repeated;
}
