// What is refused, as the client's typed errors tell it. Before a stream begins, a streamed request fails like
// another.
import assert from 'node:assert/strict';
import test, { after, before } from 'node:test';

import OpenAI from 'openai';

import {
  chat, client, exact, fails, greedy, greedyPlain, messages, modes, plain, schemaFormat, tokenize,
} from './ask.mjs';
import { answers, Server, until } from './servers.mjs';

function testErrors(endpoint, base, type, status, rows) {
  for (const [fields, param, code] of rows) {
    const what = JSON.stringify(fields).slice(0, 90);
    for (const mode of modes) {
      test(`${endpoint.name}, ${mode}: ${status} ${param} for ${what}`, async () => {
        const wanted = { status, param, ...(code && { code }) };
        await assert.rejects(endpoint.ask({ ...base, ...fields }, mode), fails(type, wanted));
      });
    }
  }
}

const call = (fields) => [{ id: 'a', type: 'function', function: { name: 'f', ...fields } }];
const said = (tool_calls) => ({ messages: [...messages, { role: 'assistant', content: null, tool_calls }] });
const tool = { type: 'function', function: { name: 'f' } };
const [ordinary] = await tokenize('harp');

testErrors(chat, greedy, OpenAI.BadRequestError, 400, [
  [{ model: '' }, 'model'],
  [{ messages: [] }, 'messages'],
  [{ messages: [{ role: 'robot', content: 'a' }] }, 'messages[0].role'],
  [{ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'x' } }] }] },
    'messages[0].content[0].type', 'unsupported_parameter'],
  [said(call({ arguments: { a: 1 } })), 'messages[1].tool_calls[0].function.arguments', 'invalid_type'],
  [{ messages: [{ role: 'tool', content: 'a' }] }, 'messages[0].tool_call_id'],
  [{ messages: [{ role: 'user', content: 'river '.repeat(3000) }] }, 'messages', 'context_length_exceeded'],
  [{ max_tokens: 0 }, 'max_tokens'],
  [{ max_tokens: 1020 }, 'max_tokens', 'context_length_exceeded'],
  [{ max_tokens: undefined, max_completion_tokens: 1020 }, 'max_completion_tokens', 'context_length_exceeded'],
  [{ max_completion_tokens: 1.5 }, 'max_completion_tokens', 'invalid_type'],
  [{ temperature: 3 }, 'temperature'],
  [{ top_p: -1 }, 'top_p'],
  [{ n: 0 }, 'n'],
  [{ n: 129 }, 'n'],
  [{ stop: Array(17).fill('a') }, 'stop'],
  [{ min_tokens: 25 }, 'min_tokens'],
  [{ stop_token_ids: [999999] }, 'stop_token_ids'],
  [{ allowed_token_ids: ['a'] }, 'allowed_token_ids'],
  [{ bad_words: [' '] }, 'bad_words'],
  [{ bad_words: 'a' }, 'bad_words'],
  [{ continue_final_message: true, add_generation_prompt: true }, 'continue_final_message'],
  [{ truncate_prompt_tokens: -2 }, 'truncate_prompt_tokens'],
  [{ seed: 'a' }, 'seed', 'invalid_type'],
  [{ logprobs: 'yes' }, 'logprobs', 'invalid_type'],
  [{ top_logprobs: 3 }, 'top_logprobs'],
  [{ logit_bias: { x: 1 } }, 'logit_bias'],
  [{ logit_bias: { [ordinary]: 101 } }, 'logit_bias'],
  [{ logit_bias: { 999999: 1 } }, 'logit_bias'],
  [{ presence_penalty: 3 }, 'presence_penalty'],
  [{ frequency_penalty: -3 }, 'frequency_penalty'],
  [{ response_format: { type: 'xml' } }, 'response_format.type'],
  [{ response_format: schemaFormat({ type: 'string', pattern: 'a(?=b)' }) }, 'response_format'],
  [{ tools: [{ type: 'function', function: { name: 'a b' } }] }, 'tools[0].function.name'],
  [{ tools: [tool], model: 'json' }, 'tools', 'unsupported_parameter'],
  [{ tool_choice: 'required' }, 'tool_choice'],
  [{ tools: [tool], tool_choice: { type: 'function', function: { name: 'g' } } }, 'tool_choice'],
  [{ tools: [tool], parallel_tool_calls: 'no' }, 'parallel_tool_calls', 'invalid_type'],
  [{ aludel: { fidelity: 'best' } }, 'aludel.fidelity'],
  [{ aludel: { fidelity: 'coded' } }, 'aludel.fidelity'],
  [{ aludel: { format: 'zip' } }, 'aludel.format'],
  [{ aludel: { format: 'raw', fidelity: 'exact' } }, 'aludel.format'],
  [{ aludel: { max_staleness_ms: -1 } }, 'aludel.max_staleness_ms'],
  [{ aludel: { timeout_ms: 0 } }, 'aludel.timeout_ms'],
  [{ aludel: { freshness: 1 } }, 'aludel.freshness'],
  [{ guided_regex: 'a(?=b)' }, 'guided_regex'],
  [{ guided_grammar: 'root ::= root "a"' }, 'guided_grammar'],
  [{ guided_choice: ['a', 1] }, 'guided_choice'],
  [{ guided_choice: ['a'], regex: 'a' }, 'regex'],
  [{ structured_outputs: { choice: ['a'], json: { type: 'null' } } }, 'structured_outputs.choice'],
  [{ response_format: { type: 'json_object' }, grammar: 'root ::= "a"' }, 'grammar'],
  ...[
    { functions: [{ name: 'f' }] }, { modalities: ['audio'] }, { audio: { voice: 'alloy', format: 'wav' } },
    { prediction: { type: 'content', content: 'a' } }, { reasoning_effort: 'high' },
    { echo: true }, { lora_path: 'a' }, { n_predict: 5 }, { mirostat: 2 },
    { typical_p: 0.5 }, { dry_multiplier: 0.8 }, { xtc_probability: 0.5 }, { samplers: ['top_k'] }, { length_penalty: 0.5 }, { use_beam_search: true },
    { best_of: 2 },
  ].map((fields) => [fields, Object.keys(fields)[0], 'unsupported_parameter']),
]);

testErrors(plain, greedyPlain, OpenAI.BadRequestError, 400, [
  [{ prompt: ['a', 1] }, 'prompt[1]'],
  [{ prompt: [999999] }, 'prompt'],
  [{ prompt: 'river '.repeat(3000) }, 'prompt', 'context_length_exceeded'],
  [{ max_tokens: 1020 }, 'max_tokens', 'context_length_exceeded'],
  [{ logprobs: 6 }, 'logprobs'],
  [{ logit_bias: { 999999: 1 } }, 'logit_bias'],
  [{ aludel: { format: 'zip' } }, 'aludel.format'],
  ...[
    { best_of: 3 }, { suffix: 'a' }, { max_completion_tokens: 5 },
    { n_predict: 5 },
  ].map((fields) => [fields, Object.keys(fields)[0], 'unsupported_parameter']),
]);

for (const [endpoint, base] of [[chat, greedy], [plain, greedyPlain]]) {
  testErrors(endpoint, base, OpenAI.NotFoundError, 404, [[{ model: 'gpt' }, 'model', 'model_not_found']]);
  testErrors(endpoint, base, OpenAI.UnprocessableEntityError, 422, [[{ n: 100 }, 'n', 'unprocessable_entity']]);
}

const vast = { type: 'object', properties: { a: { type: 'string', maxLength: 900_000 } }, required: ['a'] };
testErrors(chat, greedy, OpenAI.UnprocessableEntityError, 422, [
  [{ response_format: schemaFormat(vast) }, 'response_format', 'unprocessable_entity'],
  [{ tools: [{ type: 'function', function: { name: 'f', parameters: vast } }], tool_choice: 'required' }, 'tools',
    'unprocessable_entity'],
]);

// Until nobody holds a sequence any more: those of a request that failed are freed behind its answer.
const patient = client.withOptions({ maxRetries: 8 });
const everySequenceIsFree = () => patient.chat.completions.create({ ...greedy, n: 16, max_tokens: 1 });

// Another gateway to the same decode servers, at which nothing waits.
let gateway, impatient;
before(async () => {
  gateway = await Server.start('aludel-gateway', 'gateway', (config) => `${config}max_waiting: 0\n`);
  const url = `http://${gateway.address}`;
  await until('ready', () => answers(`${url}/ready?model=chat`, 200));
  impatient = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'unused', maxRetries: 0, timeout: 60_000 });
});
after(() => gateway?.remove());

for (const mode of modes) {
  test(`chat, ${mode}: says both numbers for a prompt that is too long`, async () => {
    const long = [{ role: 'user', content: 'river '.repeat(3000) }];
    await assert.rejects(chat.ask({ ...greedy, messages: long }, mode), /1024.*\d{4}/);
  });

  test(`chat, ${mode}: 413 for a body that is too large`, async () => {
    const vastly = [{ role: 'user', content: 'x'.repeat(5 << 20) }];
    await assert.rejects(chat.ask({ ...greedy, messages: vastly }, mode), (error) => {
      assert.ok(error instanceof OpenAI.APIError, error);
      assert.equal(error.status, 413);
      assert.equal(error.type, 'invalid_request_error');
      return true;
    });
  });

  test(`chat, ${mode}: waits while all sequences run, and 429 with Retry-After where none may wait`, async () => {
    await everySequenceIsFree();
    const full = await client.chat.completions.create({
      ...greedy, n: 16, max_tokens: 900, ignore_eos: true, stream: true,
    });
    // Its first token is there: so are its sequences.
    let answered = false;
    const waiting = chat.ask(greedy, mode).finally(() => { answered = true; });
    await assert.rejects(impatient.chat.completions.create({ ...greedy, stream: mode === 'stream' }), (error) => {
      fails(OpenAI.RateLimitError, { status: 429, code: 'resource_exhausted', type: 'rate_limit_error' })(error);
      return Number(error.headers.get('retry-after')) > 0;
    });
    assert.equal(answered, false);
    full.controller.abort();
    assert.match((await waiting).choices[0].text, /\w/);
  });

  test(`chat, ${mode}: 504 at aludel.timeout_ms`, async () => {
    const fresh = [{ role: 'user', content: `Late, ${mode}. ${'The river of Kingley is old. '.repeat(60)}` }];
    await assert.rejects(
      chat.ask({ ...greedy, messages: fresh, aludel: { ...exact.aludel, timeout_ms: 1 } }, mode),
      fails(OpenAI.InternalServerError, { status: 504, code: 'deadline_exceeded' }),
    );
  });
}

// Some seconds of work.
const tooMuch = { ...greedy, n: 16, max_tokens: 900, ignore_eos: true, aludel: { ...exact.aludel, timeout_ms: 1000 } };

test('chat, stream: a deadline in mid-stream rejects, and does not look like an end', async () => {
  await everySequenceIsFree();
  const stream = await client.chat.completions.create({ ...tooMuch, stream: true });
  const seen = [];
  await assert.rejects(
    (async () => {
      for await (const chunk of stream) seen.push(chunk);
    })(),
    (error) => {
      assert.ok(error instanceof OpenAI.APIError, error);
      assert.equal(error.code, 'deadline_exceeded');
      return true;
    },
  );
  assert.ok(seen.length > 1 && seen.every((chunk) => !chunk.choices[0].finish_reason));
});

test('chat, stream: the client\'s helper rejects, too', async () => {
  await everySequenceIsFree();
  await assert.rejects(client.chat.completions.stream(tooMuch).finalChatCompletion(), (error) => {
    assert.ok(error instanceof OpenAI.APIError, error);
    assert.equal(error.code, 'deadline_exceeded');
    return true;
  });
});

test('chat, whole: a deadline in mid-answer is 504: nothing has left', async () => {
  await everySequenceIsFree();
  await assert.rejects(chat.ask(tooMuch, 'whole'), fails(OpenAI.InternalServerError, { status: 504 }));
});
