// What is not a field: models, the report, the client's helpers, and the paths beside OpenAI's.
import assert from 'node:assert/strict';
import test from 'node:test';

import OpenAI from 'openai';

import { client, collect, greedy, messages, passage, post, url } from './ask.mjs';

test('lists and retrieves models', async () => {
  const ids = (await client.models.list()).data.map((model) => model.id);
  assert.deepEqual(ids.sort(), ['chat', 'json']);
  assert.equal((await client.models.retrieve('json')).object, 'model');
  await assert.rejects(client.models.retrieve('gpt'), OpenAI.NotFoundError);
});

test('answers with a report beside OpenAI\'s fields, and the same in headers', async () => {
  const { data, response } = await client.chat.completions.create(greedy).withResponse();
  assert.equal(data.object, 'chat.completion');
  assert.equal(data.choices[0].message.role, 'assistant');
  assert.match(data.choices[0].message.content, /\w/);
  assert.ok(['stop', 'length'].includes(data.choices[0].finish_reason));
  assert.equal(data.aludel.plan, response.headers.get('x-aludel-plan'));
  assert.equal(data.aludel.payload_bytes, Number(response.headers.get('x-aludel-payload-bytes')));
  assert.equal(data.aludel.format, response.headers.get('x-aludel-format'));
  assert.equal(data.usage.prompt_tokens_details.cached_tokens, Number(response.headers.get('x-aludel-cached-tokens')));
  assert.match(response.headers.get('server-timing'), /queue;dur=.*first_decode;dur=/);
  assert.ok(response.headers.get('x-request-id'));
  const stages = Object.values(data.aludel.stages).reduce((sum, seconds) => sum + seconds, 0);
  assert.ok(Math.abs(stages - data.aludel.ttft) < 1e-6);
});

test('streams with a role first and usage last, where it is asked for', async () => {
  const ask = { ...greedy, stream: true };
  const stream_options = { include_usage: true };
  const chunks = await collect(await client.chat.completions.create({ ...ask, stream_options }));
  assert.deepEqual(chunks[0].choices[0].delta, { role: 'assistant', content: '' });
  for (const chunk of chunks.slice(0, -1)) assert.equal(chunk.usage, null);
  assert.ok(chunks.at(-1).usage.completion_tokens > 0);
  assert.ok(chunks.at(-2).aludel.ttft > 0);
  for (const without of [undefined, null, { include_usage: false }]) {
    const bare = await collect(await client.chat.completions.create({ ...ask, stream_options: without }));
    assert.ok(bare.every((chunk) => !('usage' in chunk) && chunk.choices.length === 1));
  }
});

test('assembles a stream with the client\'s own helper', async () => {
  const runner = client.chat.completions.stream(greedy);
  const whole = await client.chat.completions.create(greedy);
  assert.equal(await runner.finalContent(), whole.choices[0].message.content);
});

test('says how the cache came', async () => {
  const fresh = [{ role: 'user', content: `Zeno of Elmsworth keeps bees. ${passage}` }];
  const ask = (aludel) => client.chat.completions.create({ ...greedy, messages: fresh, aludel });
  const local = await ask({ fidelity: 'exact' });
  assert.equal(local.aludel.plan, 'local');
  assert.equal(local.aludel.payload_bytes, 0);
  const remote = await ask({ fidelity: 'fast' });
  assert.equal(remote.aludel.plan, 'remote');
  assert.ok(remote.aludel.payload_bytes > 0 && remote.aludel.payload_bytes <= remote.aludel.raw_bytes * 1.1);
  const cached = await ask({ fidelity: 'fast' });
  assert.equal(cached.aludel.plan, 'cached');
  assert.equal(cached.aludel.format, remote.aludel.format);
  assert.equal(cached.aludel.payload_bytes, 0);
  assert.ok(cached.usage.prompt_tokens_details.cached_tokens > 0);
});

test('serves the second model from the same prefill server', async () => {
  const answer = await client.chat.completions.create({ ...greedy, model: 'json', max_tokens: 40, aludel: {} });
  assert.equal(answer.model, 'json');
  assert.match(answer.choices[0].message.content, /\w/);
});

test('serves more at once than are admitted, through the client\'s own retries', async () => {
  const whole = (await client.chat.completions.create(greedy)).choices[0].message.content;
  const patient = client.withOptions({ maxRetries: 8 });
  const answers = await Promise.all(Array.from({ length: 24 }, () => patient.chat.completions.create(greedy)));
  for (const answer of answers) assert.equal(answer.choices[0].message.content, whole);
});

test('speaks of itself', async () => {
  const get = async (path) => (await fetch(`${url}${path}`)).json();
  assert.match((await get('/version')).version, /^\d+\.\d+/);
  assert.equal((await fetch(`${url}/health`)).status, 200);
  assert.equal((await get('/ready?model=chat')).status, 'ready');
  const tokens = await post('/tokenize', { model: 'chat', messages, return_token_strs: true });
  assert.equal(tokens.count, tokens.tokens.length);
  assert.equal(tokens.token_strs.length, tokens.count);
  assert.equal(tokens.max_model_len, 1024);
  const open = await post('/tokenize', { model: 'chat', messages, add_generation_prompt: false });
  assert.equal(open.count, tokens.count - 1);
  const whole = await client.chat.completions.create(greedy);
  assert.equal(whole.usage.prompt_tokens, tokens.count);
  const prompt = 'The river of Kingley';
  const plain = await post('/tokenize', { model: 'chat', prompt, add_special_tokens: false });
  assert.equal((await post('/detokenize', { model: 'chat', tokens: plain.tokens })).prompt, prompt);
});

test('answers what no client of OpenAI sends in the same shape', async () => {
  const send = (path, body, method = 'POST') =>
    fetch(`${url}${path}`, { method, body, headers: { 'Content-Type': 'application/json' } });
  for (const [reply, status, code] of [
    [await send('/v1/chat/completions', '{"model": '), 400, null],
    [await send('/v1/chat/completions', '['.repeat(100000)), 400, null],
    [await send('/v1/nowhere', '{}'), 404, 'unknown_url'],
    [await send('/v1/chat/completions', undefined, 'GET'), 405, 'method_not_allowed'],
  ]) {
    assert.equal(reply.status, status);
    const { error } = await reply.json();
    assert.deepEqual(Object.keys(error), ['message', 'type', 'param', 'code']);
    assert.equal(error.code, code);
  }
});
