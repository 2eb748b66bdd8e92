// Every field of /v1/chat/completions but for formats and tools, which have files of their own.
import assert from 'node:assert/strict';
import test from 'node:test';

import { chat, exact, greedy, messages, passage, repeatingBias, testFields, tokenize } from './ask.mjs';

const reference = (await chat.ask(greedy, 'whole')).choices[0];
const [first] = await tokenize(reference.text);
const firstText = (await chat.ask({ ...greedy, max_tokens: 1 }, 'whole')).choices[0].text;
const bias = await repeatingBias(chat, greedy, first, firstText + firstText);
const promptTokens = async (list) =>
  (await chat.ask({ ...greedy, messages: list, max_tokens: 1 }, 'whole')).usage.prompt_tokens;
const questionTokens = await promptTokens(messages);

const same = (answer) => assert.deepEqual(answer.choices, [reference]);
const texts = (answer) => answer.choices.map((choice) => choice.text);
const wild = { temperature: 2, seed: 7, n: 4, max_tokens: 8 };
const end = reference.text.slice(-2);
const beforeEnd = reference.text.slice(0, reference.text.indexOf(end));

function stopped(answer) {
  assert.equal(answer.choices[0].text, beforeEnd);
  assert.equal(answer.choices[0].finish_reason, 'stop');
}

function cut(tokens) {
  return (answer) => {
    assert.equal(answer.usage.completion_tokens, tokens);
    assert.equal(answer.choices[0].finish_reason, 'length');
  };
}

// The reference has an answer to speak of, or comparing with it says nothing.
test('chat: the reference answers the question', () => {
  assert.match(reference.text, /\w{3}/);
  assert.equal(reference.finish_reason, 'stop');
  assert.ok(beforeEnd.length > 0);
});

function alternatives(count) {
  return ({ choices: [{ logprobs, text }], usage }) => {
    assert.equal(text, reference.text);
    assert.ok(logprobs.length === usage.completion_tokens && logprobs.length > 0);
    for (const { token, logprob, bytes, top_logprobs } of logprobs) {
      assert.ok(logprob <= 0);
      assert.equal(new TextDecoder().decode(Uint8Array.from(bytes)), token);
      assert.equal(top_logprobs.length, count);
      if (count === 0) continue;
      assert.equal(top_logprobs[0].token, token); // greedy
      for (let i = 1; i < count; ++i) assert.ok(top_logprobs[i - 1].logprob >= top_logprobs[i].logprob);
    }
    assert.equal(logprobs.map((entry) => entry.token).join(''), text);
  };
}

const brief = { role: 'system', content: 'Answer with one word.' };
const history = [...messages, { role: 'assistant', content: 'ferry' }, { role: 'user', content: 'where to' }];

testFields(chat, greedy, [
  ['messages, content as a string', {}, same],
  ['messages, content as parts', {
    messages: [{ role: 'user', content: [
      { type: 'text', text: passage.slice(0, 40) }, { type: 'text', text: passage.slice(40) }] }],
  }, same],
  ['messages, role system', { messages: [brief, ...messages] }, ({ usage }) =>
    assert.ok(usage.prompt_tokens > questionTokens)],
  ['messages, role developer', { messages: [{ ...brief, role: 'developer' }, ...messages] }, async ({ choices }) =>
    assert.deepEqual(choices, (await chat.ask({ ...greedy, messages: [brief, ...messages] }, 'whole')).choices)],
  ['messages, role assistant', { messages: history }, async ({ usage }) => {
    assert.ok(usage.prompt_tokens > questionTokens + 3);
    assert.equal(usage.prompt_tokens, await promptTokens([
      ...messages, { role: 'assistant', content: [{ type: 'text', text: 'ferry' }] }, history[2]]));
  }],
  ['max_tokens', { max_tokens: 1 }, cut(1)],
  ['max_completion_tokens', { max_tokens: undefined, max_completion_tokens: 2, ignore_eos: true }, cut(2)],
  ['temperature', { ...wild }, (answer) => assert.ok(new Set(texts(answer)).size > 1, texts(answer).join())],
  ['top_p', { ...wild, top_p: 0, max_tokens: 24 }, (answer) =>
    assert.deepEqual(new Set(texts(answer)), new Set([reference.text]))],
  ['n', { ...wild, n: 3, ignore_eos: true }, async (answer) => {
    assert.equal(answer.choices.length, 3);
    assert.equal(answer.usage.completion_tokens, 24);
    const single = await chat.ask({ ...greedy, ...wild, n: 1, ignore_eos: true }, 'whole');
    assert.deepEqual(answer.choices[0], single.choices[0]);
  }],
  ['stop, a string', { stop: end }, stopped],
  ['stop, a list', { stop: ['no such thing', end] }, stopped],
  ['seed', { ...wild, seed: 8 }, async (answer) => {
    assert.deepEqual(answer.choices, (await chat.ask({ ...greedy, ...wild, seed: 8 }, 'whole')).choices);
    assert.notDeepEqual(texts(answer), texts(await chat.ask({ ...greedy, ...wild }, 'whole')));
  }],
  ['logprobs', { logprobs: true }, alternatives(0)],
  ['top_logprobs', { logprobs: true, top_logprobs: 3 }, alternatives(3)],
  ['logit_bias against a token', { logit_bias: { [first]: -100 } }, ({ choices: [{ text }] }) =>
    assert.ok(!text.startsWith(firstText), text)],
  ['logit_bias for a token', { logit_bias: { [first]: 100 }, max_tokens: 5 }, ({ choices: [{ text }] }) =>
    assert.equal(text, firstText.repeat(5))],
  ...['presence_penalty', 'frequency_penalty', 'repetition_penalty'].map((name) => [
    name, { logit_bias: { [first]: bias }, max_tokens: 2, [name]: name === 'repetition_penalty' ? 10 : 2 },
    ({ choices: [{ text }] }) => assert.notEqual(text, firstText + firstText),
  ]),
  ['a negative presence_penalty', { logit_bias: { [first]: bias - 1 }, max_tokens: 2, presence_penalty: -2 },
    ({ choices: [{ text }] }) => assert.equal(text, firstText + firstText)],
  ['user', { user: 'someone' }, same],
  ['top_k', { ...wild, n: 1, top_k: 1, max_tokens: 24 }, same],
  ['min_p', { ...wild, n: 1, min_p: 1, max_tokens: 24 }, same],
  ['ignore_eos', { ignore_eos: true, max_tokens: 30 }, cut(30)],
  ['priority', { priority: -3 }, same],
  ['what cannot change the answer', {
    metadata: { a: 'b' }, store: false, service_tier: 'auto', n: 1, tools: [], response_format: { type: 'text' },
    logit_bias: {}, parallel_tool_calls: true, something_new: 1, best_of: 1, min_tokens: 0, length_penalty: 1.0,
    guided_json: null, reasoning_effort: 'none', prediction: null, modalities: ['text'],
  }, same],
]);

// The plan is free to differ between two answers, and with it the last bits: these are not compared.
for (const mode of ['whole', 'stream']) {
  const ask = (aludel, text) =>
    chat.ask({ ...greedy, messages: [{ role: 'user', content: `${text} ${passage}` }], aludel }, mode);
  const fresh = (() => {
    let count = 0;
    return () => `The ${mode} question of ${['Orla', 'Igor', 'Edna', 'Mira', 'Nils', 'Vera'][count++]} is this.`;
  })();

  for (const fidelity of ['exact', 'high', 'balanced', 'fast']) {
    test(`chat, ${mode}: aludel.fidelity ${fidelity}`, async () => {
      const { aludel, choices } = await ask({ fidelity }, fresh());
      assert.match(choices[0].text, /\w/);
      if (fidelity === 'exact') assert.equal(aludel.plan, 'local');
      if (fidelity === 'fast') assert.equal(aludel.plan, 'remote');
      assert.ok(['local', 'remote'].includes(aludel.plan), aludel.plan);
      assert.equal(aludel.format !== '', aludel.plan === 'remote');
      assert.equal(aludel.fallback_reason, null);
    });
  }
  test(`chat, ${mode}: aludel.format`, async () => {
    const { aludel } = await ask({ format: 'raw' }, `In format raw, ${mode}.`);
    assert.equal(aludel.plan, 'remote');
    assert.equal(aludel.format, 'raw');
    assert.ok(aludel.payload_bytes > aludel.raw_bytes);
  });
  test(`chat, ${mode}: aludel.max_staleness_ms`, async () => {
    for (const max_staleness_ms of [0, 60_000]) {
      const { aludel } = await ask({ fidelity: 'fast', max_staleness_ms }, `Aged ${max_staleness_ms} ms, ${mode}.`);
      assert.equal(aludel.plan, 'remote');
    }
  });
  test(`chat, ${mode}: aludel.timeout_ms`, async () => {
    const answer = await chat.ask({ ...greedy, aludel: { ...exact.aludel, timeout_ms: 30_000 } }, mode);
    same(answer);
  });
}
