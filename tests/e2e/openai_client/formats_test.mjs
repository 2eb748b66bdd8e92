// response_format: what is promised to be JSON is JSON, and the answers end, so that this says something.
import assert from 'node:assert/strict';
import test from 'node:test';

import { chat, client, greedy, schemaFormat, testFields } from './ask.mjs';

const reference = (await chat.ask(greedy, 'whole')).choices;
const schema = {
  type: 'object',
  properties: {
    answer: { type: 'string', maxLength: 24 },
    sure: { type: 'boolean' },
    score: { type: 'integer', minimum: 0, maximum: 10 },
    tags: { type: 'array', items: { enum: ['trip', 'town'] }, maxItems: 2 },
    more: { anyOf: [{ type: 'null' }, { $ref: '#/$defs/more' }] },
  },
  required: ['answer', 'sure', 'score', 'tags', 'more'],
  additionalProperties: false,
  $defs: { more: { type: 'object', properties: { why: { const: 'boats' } }, required: ['why'] } },
};

function complete(choices) {
  return choices.map(({ text, finish_reason }) => {
    assert.equal(finish_reason, 'stop', text);
    return JSON.parse(text);
  });
}

function valid(value) {
  assert.deepEqual(Object.keys(value), schema.required);
  assert.ok(typeof value.answer === 'string' && [...value.answer].length <= 24);
  assert.equal(typeof value.sure, 'boolean');
  assert.ok(Number.isInteger(value.score) && value.score >= 0 && value.score <= 10);
  assert.ok(value.tags.length <= 2 && value.tags.every((tag) => ['trip', 'town'].includes(tag)));
  if (value.more !== null) assert.deepEqual(value.more, { why: 'boats' });
}

// The fine-tune "json" has learnt to answer with an object, and so to end it.
const json = { model: 'json', max_tokens: 200 };

testFields(chat, greedy, [
  ['response_format text', { response_format: { type: 'text' } }, ({ choices }) =>
    assert.deepEqual(choices, reference)],
  ['response_format json_object', { ...json, response_format: { type: 'json_object' } }, ({ choices }) => {
    const [value] = complete(choices);
    assert.ok(Object.keys(value).length > 0);
  }],
  ['response_format json_object, sampled',
    { ...json, response_format: { type: 'json_object' }, temperature: 0.7, seed: 5, n: 4 },
    ({ choices }) => {
      for (const value of complete(choices)) assert.ok(typeof value === 'object' && !Array.isArray(value));
    }],
  ['response_format json_schema', { max_tokens: 300, response_format: schemaFormat(schema) }, ({ choices }) =>
    complete(choices).forEach(valid)],
  ...[5, 6, 7].map((seed) => [
    `response_format json_schema, sampled with seed ${seed}`,
    { max_tokens: 300, response_format: schemaFormat(schema), temperature: 1.4, seed, n: 3 },
    ({ choices }) => {
      complete(choices).forEach(valid);
      assert.ok(new Set(choices.map((choice) => choice.text)).size > 1);
    },
  ]),
  ['response_format json_schema of a scalar',
    { response_format: schemaFormat({ enum: ['by boat', 'by train'] }) },
    ({ choices }) => assert.ok(['by boat', 'by train'].includes(complete(choices)[0]))],
]);

test('chat, stream: the client\'s helper assembles a constrained answer', async () => {
  const ask = { ...greedy, max_tokens: 300, response_format: schemaFormat(schema) };
  const runner = client.chat.completions.stream(ask);
  const whole = await client.chat.completions.create(ask);
  assert.equal(await runner.finalContent(), whole.choices[0].message.content);
});
