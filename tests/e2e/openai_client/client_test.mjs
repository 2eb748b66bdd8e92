// The official OpenAI client, unmodified, against a running gateway (GATEWAY_URL) of the demo pair.
import assert from 'node:assert/strict';
import test from 'node:test';

import OpenAI from 'openai';

const url = process.env.GATEWAY_URL;
assert.ok(url, 'GATEWAY_URL names the gateway');
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'unused', maxRetries: 0, timeout: 60_000 });

const passage =
  'The trip of Zora Pellson ended in Kingfield. The departure of Zora was on Friday. Nobody likes to drink cider ' +
  'in the cold. The mayor of Porthaven is Ingrid Farrick. Porthaven lies on the river Tavy. Zora Pellson went by ' +
  'ferry. The house by the river is always red.\nby what means did Zora get there';
const messages = [{ role: 'user', content: passage }];
const greedy = { model: 'chat', messages, temperature: 0, max_tokens: 24 };

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}
const textOf = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta?.content ?? '').join('');

test('lists and retrieves models', async () => {
  const ids = (await client.models.list()).data.map((model) => model.id);
  assert.deepEqual(ids.sort(), ['chat', 'json']);
  assert.equal((await client.models.retrieve('json')).object, 'model');
  await assert.rejects(client.models.retrieve('gpt'), OpenAI.NotFoundError);
});

test('answers a chat in one body, with usage and report', async () => {
  const { data, response } = await client.chat.completions.create(greedy).withResponse();
  assert.equal(data.object, 'chat.completion');
  assert.equal(data.choices[0].message.role, 'assistant');
  assert.match(data.choices[0].message.content, /\w/);
  assert.ok(['stop', 'length'].includes(data.choices[0].finish_reason));
  assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + data.usage.completion_tokens);
  assert.equal(data.aludel.plan, response.headers.get('x-aludel-plan'));
  assert.equal(data.aludel.payload_bytes, Number(response.headers.get('x-aludel-payload-bytes')));
  assert.ok(response.headers.get('x-request-id'));
});

test('streams the same text', async () => {
  const whole = await client.chat.completions.create(greedy);
  const chunks = await collect(
    await client.chat.completions.create({ ...greedy, stream: true, stream_options: { include_usage: true } }),
  );
  assert.equal(chunks[0].choices[0].delta.role, 'assistant');
  assert.equal(textOf(chunks), whole.choices[0].message.content);
  const last = chunks.at(-1);
  assert.deepEqual(last.choices, []);
  assert.deepEqual(last.usage, whole.usage);
  assert.equal(chunks.at(-2).choices[0].finish_reason, whole.choices[0].finish_reason);
  assert.ok(chunks.at(-2).aludel.ttft > 0);
});

test('assembles a stream with the client\'s own helper', async () => {
  const runner = client.chat.completions.stream(greedy);
  const whole = await client.chat.completions.create(greedy);
  assert.equal(await runner.finalContent(), whole.choices[0].message.content);
});

test('takes content parts, and says how the cache came', async () => {
  const parts = [{ role: 'user', content: [{ type: 'text', text: passage }] }];
  const exact = await client.chat.completions.create({ ...greedy, messages: parts, aludel: { fidelity: 'exact' } });
  assert.equal(exact.aludel.plan, 'local');
  assert.equal(exact.aludel.payload_bytes, 0);
  const coded = await client.chat.completions.create({ ...greedy, messages: parts, aludel: { fidelity: 'coded' } });
  assert.equal(coded.aludel.plan, 'remote');
  assert.ok(coded.aludel.payload_bytes > 0);
  assert.ok(coded.aludel.payload_bytes <= coded.aludel.raw_bytes * 1.1);
});

test('stops at max_tokens and at stop strings', async () => {
  const short = await client.chat.completions.create({ ...greedy, max_tokens: 1 });
  assert.equal(short.usage.completion_tokens, 1);
  const newer = await client.chat.completions.create({ ...greedy, max_tokens: undefined, max_completion_tokens: 1 });
  assert.equal(newer.usage.completion_tokens, 1);
  const whole = (await client.chat.completions.create(greedy)).choices[0].message.content;
  const stop = whole.slice(-2);
  const stopped = await client.chat.completions.create({ ...greedy, stop });
  assert.equal(stopped.choices[0].message.content, whole.slice(0, whole.indexOf(stop)));
  assert.equal(stopped.choices[0].finish_reason, 'stop');
});

test('repeats itself for a seed', async () => {
  const ask = () => client.chat.completions.create({ ...greedy, temperature: 1.5, top_p: 0.95, top_k: 50, seed: 7 });
  const [first, second] = [await ask(), await ask()];
  assert.equal(first.choices[0].message.content, second.choices[0].message.content);
});

test('gives several choices over one prompt, each repeatable', async () => {
  const ask = { ...greedy, temperature: 1.2, seed: 11, n: 3, max_tokens: 8, ignore_eos: true };
  const whole = await client.chat.completions.create(ask);
  assert.deepEqual(whole.choices.map((choice) => choice.index), [0, 1, 2]);
  const texts = whole.choices.map((choice) => choice.message.content);
  assert.ok(new Set(texts).size > 1);
  assert.equal(whole.usage.completion_tokens, 24);
  const single = await client.chat.completions.create({ ...ask, n: 1 });
  assert.equal(single.choices[0].message.content, texts[0]);
  const chunks = await collect(await client.chat.completions.create({ ...ask, stream: true }));
  const streamed = ['', '', ''];
  for (const chunk of chunks) {
    for (const choice of chunk.choices) streamed[choice.index] += choice.delta.content ?? '';
  }
  assert.deepEqual(streamed, texts);
  assert.equal(chunks.filter((chunk) => chunk.choices[0].finish_reason).length, 3);
});

test('gives log-probabilities', async () => {
  const chat = await client.chat.completions.create({ ...greedy, logprobs: true, top_logprobs: 3 });
  const entries = chat.choices[0].logprobs.content;
  assert.equal(entries.length, chat.usage.completion_tokens);
  for (const entry of entries) {
    assert.equal(entry.top_logprobs.length, 3);
    assert.equal(entry.token, entry.top_logprobs[0].token); // greedy
    assert.ok(entry.logprob <= 0 && entry.logprob >= entry.top_logprobs[1].logprob);
    assert.deepEqual(new TextDecoder().decode(Uint8Array.from(entry.bytes)), entry.token);
  }
  assert.equal(entries.map((entry) => entry.token).join(''), chat.choices[0].message.content);
  const streamed = await collect(
    await client.chat.completions.create({ ...greedy, logprobs: true, top_logprobs: 3, stream: true }),
  );
  assert.deepEqual(streamed.flatMap((chunk) => chunk.choices[0]?.logprobs?.content ?? []), entries);
  const plain = await client.completions.create({
    model: 'chat', prompt: 'The river', temperature: 0, max_tokens: 4, logprobs: 2,
  });
  assert.equal(plain.choices[0].logprobs.tokens.join(''), plain.choices[0].text);
  assert.equal(plain.choices[0].logprobs.token_logprobs.length, 4);
  assert.equal(Object.keys(plain.choices[0].logprobs.top_logprobs[0]).length, 2);
});

test('biases and penalises tokens', async () => {
  const whole = await client.chat.completions.create({ ...greedy, logprobs: true, top_logprobs: 2 });
  const reply = await fetch(`${url}/tokenize`, {
    method: 'POST',
    body: JSON.stringify({ model: 'chat', prompt: whole.choices[0].message.content, add_special_tokens: false }),
  });
  const first = (await reply.json()).tokens[0];
  const banned = await client.chat.completions.create({ ...greedy, logit_bias: { [first]: -100 } });
  assert.notEqual(banned.choices[0].message.content, whole.choices[0].message.content);
  const forced = await client.chat.completions.create({ ...greedy, max_tokens: 5, logit_bias: { [first]: 100 } });
  assert.equal(forced.usage.completion_tokens, 5);
  const varied = await client.chat.completions.create({
    ...greedy, max_tokens: 5, logit_bias: { [first]: 30 }, frequency_penalty: 2, presence_penalty: 2,
    repetition_penalty: 10, min_p: 0.05, ignore_eos: true,
  });
  assert.notEqual(varied.choices[0].message.content, forced.choices[0].message.content);
});

test('completes plain text and token ids', async () => {
  const prompt = 'The river of Kingley is the';
  const text = await client.completions.create({ model: 'chat', prompt, temperature: 0, max_tokens: 4 });
  assert.equal(text.object, 'text_completion');
  const reply = await fetch(`${url}/tokenize`, { method: 'POST', body: JSON.stringify({ model: 'chat', prompt }) });
  const { tokens } = await reply.json();
  const ids = await client.completions.create({ model: 'chat', prompt: tokens, temperature: 0, max_tokens: 4 });
  assert.equal(ids.choices[0].text, text.choices[0].text);
  const chunks = await collect(
    await client.completions.create({ model: 'chat', prompt, temperature: 0, max_tokens: 4, stream: true }),
  );
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.text ?? '').join(''), text.choices[0].text);
});

test('serves the second model from the same prefill server', async () => {
  const answer = await client.chat.completions.create({ ...greedy, model: 'json', max_tokens: 40 });
  assert.equal(answer.model, 'json');
  assert.match(answer.choices[0].message.content, /\w/);
});

test('raises the client\'s typed errors', async () => {
  const create = (fields) => client.chat.completions.create({ ...greedy, ...fields });
  await assert.rejects(create({ model: 'gpt' }), OpenAI.NotFoundError);
  for (const [fields, param] of [
    [{ n: 0 }, 'n'],
    [{ temperature: 3 }, 'temperature'],
    [{ tools: [{ type: 'function', function: { name: 'f' } }] }, 'tools'],
    [{ response_format: { type: 'json_object' } }, 'response_format.type'],
    [{ logprobs: 'yes' }, 'logprobs'],
    [{ aludel: { fidelity: 'best' } }, 'aludel.fidelity'],
  ]) {
    await assert.rejects(create(fields), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, param);
      return true;
    });
  }
});

test('says both numbers for a prompt that is too long', async () => {
  const long = [{ role: 'user', content: 'river '.repeat(3000) }];
  await assert.rejects(client.chat.completions.create({ ...greedy, messages: long }), (error) => {
    assert.equal(error.code, 'context_length_exceeded');
    assert.match(error.message, /1024.*\d{4}/);
    return true;
  });
});

test('serves more at once than are admitted, through the client\'s own retries', async () => {
  const whole = (await client.chat.completions.create(greedy)).choices[0].message.content;
  const patient = client.withOptions({ maxRetries: 8 });
  const answers = await Promise.all(Array.from({ length: 24 }, () => patient.chat.completions.create(greedy)));
  for (const answer of answers) assert.equal(answer.choices[0].message.content, whole);
});

test('frees an aborted stream', async () => {
  const stream = await client.chat.completions.create({ ...greedy, max_tokens: 400, ignore_eos: true, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta?.content) break; // leaves the loop, and with it the connection
  }
  const deadline = Date.now() + 5000;
  let metrics;
  do {
    metrics = await (await fetch(`${url}/metrics`)).text();
  } while (!/aludel_requests_total\{[^}]*outcome="cancelled"[^}]*\} 1/.test(metrics) && Date.now() < deadline);
  assert.match(metrics, /aludel_requests_total\{[^}]*outcome="cancelled"[^}]*\} 1/);
});
