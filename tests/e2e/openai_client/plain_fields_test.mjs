// Every field of /v1/completions.
import assert from 'node:assert/strict';
import test from 'node:test';

import { client, collect, greedyPlain, plain, post, repeatingBias, testFields, tokenize } from './ask.mjs';

const { prompt } = greedyPlain;
const reference = (await plain.ask(greedyPlain, 'whole')).choices[0];
const promptIds = (await post('/tokenize', { model: 'chat', prompt })).tokens;
const [first] = await tokenize(reference.text);
const firstText = (await plain.ask({ ...greedyPlain, max_tokens: 1 }, 'whole')).choices[0].text;
const bias = await repeatingBias(plain, greedyPlain, first, firstText + firstText);

const same = (answer) => assert.deepEqual(answer.choices, [reference]);
const texts = (answer) => answer.choices.map((choice) => choice.text);
const wild = { temperature: 2, seed: 7, n: 4 };
const end = reference.text.slice(-2);

function stopped({ choices: [choice] }) {
  assert.equal(choice.text, reference.text.slice(0, reference.text.indexOf(end)));
  assert.equal(choice.finish_reason, 'stop');
}

function alternatives(count) {
  return ({ choices: [{ logprobs, text }] }) => {
    assert.equal(text, reference.text);
    assert.equal(logprobs.tokens.join(''), text);
    assert.ok(logprobs.token_logprobs.every((value) => value <= 0));
    for (const [i, token] of logprobs.tokens.entries()) {
      const top = logprobs.top_logprobs[i];
      assert.equal(top[token], logprobs.token_logprobs[i]);
      assert.equal(Object.keys(top).length, Math.max(count, 1)); // greedy: the one that was drawn is among them
      assert.equal([...text].slice(logprobs.text_offset[i]).join('').indexOf(token), 0);
    }
  };
}

test('plain: the reference goes on with the prompt', () => {
  assert.match(reference.text, /\w{2}/);
  assert.ok(reference.text.indexOf(end) > 0);
});

testFields(plain, greedyPlain, [
  ['prompt, a string', {}, same],
  ['prompt, a list of one string', { prompt: [prompt] }, same],
  ['prompt, token ids', { prompt: promptIds }, same],
  ['prompt, a list of one list of token ids', { prompt: [promptIds] }, same],
  ['max_tokens', { max_tokens: 3, ignore_eos: true }, ({ usage }) => assert.equal(usage.completion_tokens, 3)],
  ['max_tokens left out', { max_tokens: undefined, ignore_eos: true }, ({ usage }) =>
    assert.equal(usage.completion_tokens, 16)],
  ['temperature', wild, (answer) => assert.ok(new Set(texts(answer)).size > 1)],
  ['top_p', { ...wild, top_p: 0 }, (answer) => assert.deepEqual(new Set(texts(answer)), new Set([reference.text]))],
  ['n', { ...wild, n: 2, best_of: 2 }, async (answer) => {
    assert.equal(answer.choices.length, 2);
    const single = await plain.ask({ ...greedyPlain, ...wild, n: 1 }, 'whole');
    assert.deepEqual(answer.choices[0], single.choices[0]);
  }],
  ['stop, a string', { stop: end }, stopped],
  ['stop, a list', { stop: ['no such thing', end] }, stopped],
  ['seed', { ...wild, seed: 8 }, async (answer) =>
    assert.notDeepEqual(texts(answer), texts(await plain.ask({ ...greedyPlain, ...wild }, 'whole')))],
  ['logprobs 0', { logprobs: 0 }, alternatives(0)],
  ['logprobs 2', { logprobs: 2 }, alternatives(2)],
  ['logprobs of what is unlikely', { ...wild, n: 1, logprobs: 2 }, ({ choices: [{ logprobs }] }) => {
    const sizes = logprobs.top_logprobs.map((top) => Object.keys(top).length);
    assert.ok(sizes.every((size) => size === 2 || size === 3) && sizes.includes(3), sizes.join());
    for (const [i, token] of logprobs.tokens.entries()) {
      assert.equal(logprobs.top_logprobs[i][token], logprobs.token_logprobs[i]);
    }
  }],
  ['logit_bias', { logit_bias: { [first]: 100 }, max_tokens: 5 }, ({ choices: [{ text }] }) =>
    assert.equal(text, firstText.repeat(5))],
  ...['presence_penalty', 'frequency_penalty'].map((name) => [
    name, { logit_bias: { [first]: bias }, max_tokens: 2, [name]: 2 },
    ({ choices: [{ text }] }) => assert.notEqual(text, firstText + firstText),
  ]),
  ['user', { user: 'someone' }, same],
  ['response_format', { max_tokens: 60, response_format: { type: 'json_schema', json_schema: {
    name: 'town',
    schema: { type: 'object', properties: { town: { type: 'string', maxLength: 12 } }, required: ['town'] },
  } } }, ({ choices: [{ text, finish_reason }] }) => {
    assert.equal(finish_reason, 'stop');
    assert.deepEqual(Object.keys(JSON.parse(text)), ['town']);
  }],
  ['echo, suffix and best_of that ask for nothing', { echo: false, suffix: null, best_of: 1 }, same],
]);

// In a text with characters of several bytes, and of several tokens, an offset is an index as a client counts.
for (const mode of ['whole', 'stream']) {
  test(`plain, ${mode}: text_offset behind multi-byte characters`, async () => {
    const ids = await tokenize('é€a');
    assert.ok(ids.length > 3, 'these characters are single tokens: choose others');
    // Each step is forced to the next id of the list.
    const answer = { tokens: [], text_offset: [], text: '' };
    const forced = { ...greedyPlain, logprobs: 1, max_tokens: ids.length, ignore_eos: true };
    const biases = Object.fromEntries([...new Set(ids)].map((id) => [id, 100]));
    const { choices: [choice] } = await plain.ask({ ...forced, logit_bias: biases }, mode);
    Object.assign(answer, choice.logprobs, { text: choice.text });
    let bytes = [];
    for (const [i, token] of answer.tokens.entries()) {
      const own = token.startsWith('bytes:')
        ? token.slice('bytes:'.length).split('\\x').slice(1).map((hex) => parseInt(hex, 16))
        : [...new TextEncoder().encode(token)];
      const starts = bytes.filter((byte) => (byte & 0xc0) !== 0x80).length;
      const inside = bytes.length > 0 && (own[0] & 0xc0) === 0x80;
      assert.equal(answer.text_offset[i], inside ? starts - 1 : starts);
      bytes = bytes.concat(own);
    }
    assert.equal(new TextDecoder().decode(Uint8Array.from(bytes)), answer.text);
    assert.ok(answer.tokens.some((token) => /^bytes:(\\x[0-9a-f]{2})+$/.test(token)), answer.tokens.join(' '));
  });
}

test('plain, stream: usage where it is asked for', async () => {
  const ask = { ...greedyPlain, stream: true };
  const chunks = await collect(await client.completions.create({ ...ask, stream_options: { include_usage: true } }));
  assert.ok(chunks.slice(0, -1).every((chunk) => chunk.object === 'text_completion' && chunk.usage === null));
  assert.equal(chunks.at(-1).usage.completion_tokens, 8);
  assert.ok((await collect(await client.completions.create(ask))).every((chunk) => !('usage' in chunk)));
});

test('plain, whole and stream: aludel', async () => {
  for (const mode of ['whole', 'stream']) {
    const long = `Asked ${mode}. ${'The harbour of Kingley is old. '.repeat(8)}${prompt}`;
    const ask = (aludel) => plain.ask({ ...greedyPlain, prompt: long, aludel }, mode);
    assert.equal((await ask({ fidelity: 'exact', timeout_ms: 30_000 })).aludel.plan, 'local');
    const remote = await ask({ format: 'raw', max_staleness_ms: 0 });
    assert.deepEqual([remote.aludel.plan, remote.aludel.format], ['remote', 'raw']);
  }
});
