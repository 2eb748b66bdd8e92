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

const schemaFormat = (schema) => ({ type: 'json_schema', json_schema: { name: 'answer', schema, strict: true } });

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

// Tests below ask this prompt again and again and compare answers: from here on they come from one cache, whatever
// became of the first hand-over.
test('takes what was handed over before from the cache', async () => {
  const plans = [];
  while (plans.at(-1) !== 'cached' && plans.length < 5) {
    plans.push((await client.chat.completions.create(greedy)).aludel.plan);
  }
  assert.equal(plans.at(-1), 'cached', plans.join(', '));
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
  assert.equal(data.aludel.format, response.headers.get('x-aludel-format'));
  assert.equal(data.usage.prompt_tokens_details.cached_tokens, Number(response.headers.get('x-aludel-cached-tokens')));
  assert.match(response.headers.get('server-timing'), /queue;dur=.*first_decode;dur=/);
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
  // Other tests may have asked the same before: then the codes are here already.
  assert.ok(['remote', 'cached'].includes(coded.aludel.plan));
  const fresh = [{ role: 'user', content: `Zeno of Elmsworth keeps bees. ${passage}` }];
  const remote = await client.chat.completions.create({ ...greedy, messages: fresh, aludel: { fidelity: 'coded' } });
  assert.equal(remote.aludel.plan, 'remote');
  assert.ok(remote.aludel.payload_bytes > 0);
  assert.ok(remote.aludel.payload_bytes <= remote.aludel.raw_bytes * 1.1);
  const cached = await client.chat.completions.create({ ...greedy, messages: fresh, aludel: { fidelity: 'coded' } });
  assert.equal(cached.aludel.plan, 'cached');
  assert.equal(cached.aludel.format, remote.aludel.format);
  assert.equal(cached.aludel.payload_bytes, 0);
  assert.ok(cached.usage.prompt_tokens_details.cached_tokens > 0);
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

test('ignores what cannot change the answer', async () => {
  const whole = await client.chat.completions.create(greedy);
  const decorated = await client.chat.completions.create({
    ...greedy, user: 'someone', metadata: { a: 'b' }, store: false, service_tier: 'auto', n: 1, tools: [],
    response_format: { type: 'text' }, logit_bias: {}, parallel_tool_calls: true, something_new: 1,
  });
  assert.equal(decorated.choices[0].message.content, whole.choices[0].message.content);
});

test('answers in JSON where it is asked to', async () => {
  const ask = { ...greedy, max_tokens: 300 };
  const object = await client.chat.completions.create({ ...ask, response_format: { type: 'json_object' } });
  if (object.choices[0].finish_reason === 'stop') {
    assert.equal(typeof JSON.parse(object.choices[0].message.content), 'object');
  }
  const schema = {
    type: 'object',
    properties: {
      answer: { type: 'string', maxLength: 24 },
      sure: { type: 'boolean' },
      score: { type: 'integer', minimum: 0, maximum: 10 },
      tags: { type: 'array', items: { enum: ['trip', 'town'] }, maxItems: 2 },
    },
    required: ['answer', 'sure', 'score', 'tags'],
    additionalProperties: false,
  };
  for (const more of [{}, { temperature: 1.4, seed: 5 }, { temperature: 1, seed: 6, n: 2 }]) {
    const whole = await client.chat.completions.create({ ...ask, ...more, response_format: schemaFormat(schema) });
    for (const choice of whole.choices) {
      assert.equal(choice.finish_reason, 'stop');
      const value = JSON.parse(choice.message.content);
      assert.deepEqual(Object.keys(value), schema.required);
      assert.ok(value.answer.length <= 24 && Number.isInteger(value.score) && value.score <= 10);
    }
  }
  const runner = client.chat.completions.stream({ ...ask, response_format: schemaFormat(schema) });
  const whole = await client.chat.completions.create({ ...ask, response_format: schemaFormat(schema) });
  assert.equal(await runner.finalContent(), whole.choices[0].message.content);
});

const tools = [
  {
    type: 'function',
    function: {
      name: 'find_town',
      description: 'Where somebody went',
      parameters: {
        type: 'object',
        properties: { person: { type: 'string', maxLength: 12 }, days: { type: 'integer', minimum: 1, maximum: 9 } },
        required: ['person', 'days'],
        additionalProperties: false,
      },
    },
  },
  { type: 'function', function: { name: 'clock' } },
];

test('calls the tools that it must call', async () => {
  const check = (message, names) => {
    assert.equal(message.tool_calls.length, 1);
    const [call] = message.tool_calls;
    assert.ok(names.includes(call.function.name));
    const given = JSON.parse(call.function.arguments);
    if (call.function.name === 'find_town') assert.deepEqual(Object.keys(given), ['person', 'days']);
    return call;
  };
  const ask = { ...greedy, max_tokens: 200, tools };
  const named = await client.chat.completions.create({
    ...ask, tool_choice: { type: 'function', function: { name: 'find_town' } },
  });
  assert.equal(named.choices[0].finish_reason, 'tool_calls');
  assert.equal(named.choices[0].message.content, null);
  const call = check(named.choices[0].message, ['find_town']);
  const clock = await client.chat.completions.create({
    ...ask, tool_choice: { type: 'function', function: { name: 'clock' } }, max_tokens: 400,
    logit_bias: {}, temperature: 0.7, seed: 3,
  });
  if (clock.choices[0].finish_reason === 'tool_calls') check(clock.choices[0].message, ['clock']);

  const streamed = client.chat.completions.stream({
    ...ask, tool_choice: { type: 'function', function: { name: 'find_town' } },
  });
  const final = (await streamed.finalChatCompletion()).choices[0];
  assert.equal(final.finish_reason, 'tool_calls');
  const again = check(final.message, ['find_town']);
  assert.equal(again.function.arguments, call.function.arguments);

  const answered = await client.chat.completions.create({
    ...greedy, tools,
    messages: [
      ...messages,
      { role: 'assistant', content: null, tool_calls: [call] },
      { role: 'tool', tool_call_id: call.id, content: 'Kingfield' },
    ],
  });
  assert.ok(['stop', 'length'].includes(answered.choices[0].finish_reason));
  assert.equal(answered.choices[0].message.tool_calls, undefined);
  assert.ok(answered.usage.prompt_tokens > named.usage.prompt_tokens);
  const none = await client.chat.completions.create({ ...greedy, tools, tool_choice: 'none' });
  const without = await client.chat.completions.create(greedy);
  assert.equal(none.choices[0].message.content, without.choices[0].message.content);
});

test('speaks of itself', async () => {
  const get = async (path) => (await fetch(`${url}${path}`)).json();
  assert.match((await get('/version')).version, /^\d+\.\d+/);
  assert.equal((await fetch(`${url}/health`)).status, 200);
  assert.equal((await get('/ready?model=chat')).status, 'ready');
  const post = async (path, body) =>
    (await fetch(`${url}${path}`, { method: 'POST', body: JSON.stringify(body) })).json();
  const chat = await post('/tokenize', { model: 'chat', messages, return_token_strs: true });
  assert.equal(chat.count, chat.tokens.length);
  assert.equal(chat.token_strs.length, chat.count);
  assert.equal(chat.max_model_len, 1024);
  const whole = await client.chat.completions.create(greedy);
  assert.equal(whole.usage.prompt_tokens, chat.count);
  const text = 'The river of Kingley';
  const { tokens } = await post('/tokenize', { model: 'chat', prompt: text, add_special_tokens: false });
  assert.equal((await post('/detokenize', { model: 'chat', tokens })).prompt, text);
});

test('answers errors in OpenAI\'s shape, with their codes', async () => {
  const send = (path, body, method = 'POST') =>
    fetch(`${url}${path}`, { method, body, headers: { 'Content-Type': 'application/json' } });
  for (const [reply, status, code] of [
    [await send('/v1/chat/completions', '{"model": '), 400, null],
    [await send('/v1/chat/completions', '['.repeat(100000)), 400, null],
    [await send('/v1/nowhere', '{}'), 404, 'unknown_url'],
    [await send('/v1/completions', '{"model": "gpt", "prompt": "a"}'), 404, 'model_not_found'],
    [await send('/v1/chat/completions', undefined, 'GET'), 405, 'method_not_allowed'],
    [await send('/v1/completions', 'x'.repeat(20 << 20)), 413, undefined],
  ]) {
    assert.equal(reply.status, status);
    const { error } = await reply.json();
    for (const field of ['message', 'type', 'param', 'code']) assert.ok(field in error, `${status}: ${field}`);
    if (code !== undefined) assert.equal(error.code, code);
  }
  const flood = await Promise.all(
    Array.from({ length: 40 }, () =>
      client.chat.completions.create({ ...greedy, max_tokens: 60, ignore_eos: true }).catch((error) => error)),
  );
  const refused = flood.filter((one) => one instanceof OpenAI.RateLimitError);
  assert.ok(refused.length > 0);
  for (const error of refused) assert.ok(Number(error.headers.get('retry-after')) > 0);
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
    [{ tools: [{ type: 'function', function: { name: 'f' } }], model: 'json' }, 'tools'],
    [{ tools: [{ type: 'function', function: { name: 'a b' } }] }, 'tools[0].function.name'],
    [{ tool_choice: 'required' }, 'tool_choice'],
    [{ response_format: { type: 'xml' } }, 'response_format.type'],
    [{ response_format: schemaFormat({ type: 'string', pattern: 'a' }) }, 'response_format'],
    [{ functions: [{ name: 'f' }] }, 'functions'],
    [{ modalities: ['audio'] }, 'modalities'],
    [{ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'x' } }] }] },
      'messages[0].content[0].type'],
    [{ logit_bias: { x: 1 } }, 'logit_bias'],
    [{ stop: ['a', 'b', 'c', 'd', 'e'] }, 'stop'],
    [{ aludel: { max_staleness_ms: -1 } }, 'aludel.max_staleness_ms'],
    [{ aludel: { freshness: 1 } }, 'aludel.freshness'],
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
