// response_format: what is promised to be JSON is JSON, and the answers end, so that this says something.
import assert from 'node:assert/strict';
import test from 'node:test';

import { chat, client, greedy, greedyPlain, plain, schemaFormat, testFields } from './ask.mjs';

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

const order = {
  type: 'object',
  properties: {
    id: { type: 'string', pattern: '^[A-Z]{2}-\\d{3}$' },
    day: { type: 'string', format: 'date' },
    pair: { type: 'array', prefixItems: [{ type: 'boolean' }, { type: 'integer', multipleOf: 5, minimum: 0, maximum: 50 }], minItems: 2 },
    tags: { type: 'array', items: { enum: ['a', 'b', 'c'] }, uniqueItems: true, minItems: 2 },
  },
  required: ['id', 'day', 'pair', 'tags'],
  additionalProperties: false,
};

function ordered([text]) {
  const value = JSON.parse(text);
  assert.match(value.id, /^[A-Z]{2}-\d{3}$/);
  assert.equal(new Date(`${value.day}T00:00:00Z`).toISOString().slice(0, 10), value.day);
  assert.ok(typeof value.pair[0] === 'boolean' && value.pair[1] % 5 === 0 && value.pair.length === 2);
  assert.ok(value.tags.length >= 2 && new Set(value.tags).size === value.tags.length);
}

const texts = (check) => ({ choices }) => {
  for (const { finish_reason } of choices) assert.equal(finish_reason, 'stop');
  check(choices.map((choice) => choice.text));
};
const among = (...allowed) => texts((found) => found.forEach((text) => assert.ok(allowed.includes(text), text)));
const matches = (pattern) => texts((found) => found.forEach((text) => assert.match(text, pattern)));
const sum = 'root ::= term (" + " term){1,3}\nterm ::= number | "(" number " - " number ")"\nnumber ::= [1-9] [0-9]{0,2}';
const summed = /^([1-9]\d{0,2}|\([1-9]\d{0,2} - [1-9]\d{0,2}\))( \+ ([1-9]\d{0,2}|\([1-9]\d{0,2} - [1-9]\d{0,2}\))){1,3}$/;

for (const [endpoint, base] of [[chat, greedy], [plain, greedyPlain]]) {
  const sampled = { temperature: 1, seed: 3, n: 2, max_tokens: 200 };
  testFields(endpoint, base, [
    ['patterns, formats and sets of a schema',
      { max_tokens: 300, response_format: schemaFormat(order) }, texts(ordered)],
    ['guided_choice', { ...sampled, guided_choice: ['by boat', 'by "train"'] }, among('by boat', 'by "train"')],
    ['guided_regex', { ...sampled, guided_regex: '[a-c]{3}-\\d{2}' }, matches(/^[a-c]{3}-\d{2}$/)],
    ['guided_json', { ...sampled, guided_json: { enum: [1, 2] } }, among('1', '2')],
    ['guided_grammar', { ...sampled, guided_grammar: sum }, matches(summed)],
    ['structured_outputs', { ...sampled, structured_outputs: { choice: ['x', 'y'] } }, among('x', 'y')],
    ['regex', { ...sampled, regex: 'caf\u00e9|tea' }, among('caf\u00e9', 'tea')],
    ['ebnf', { ...sampled, ebnf: 'root ::= "go" "!"{2,4}' }, matches(/^go!{2,4}$/)],
    ['grammar', { ...sampled, grammar: 'root ::= "left" | "right"' }, among('left', 'right')],
    ['response_format regex', { ...sampled, response_format: { type: 'regex', pattern: '[01]{8}' } }, matches(/^[01]{8}$/)],
  ]);
}

test('chat, stream: the client\'s helper assembles a constrained answer', async () => {
  const ask = { ...greedy, max_tokens: 300, response_format: schemaFormat(schema) };
  const runner = client.chat.completions.stream(ask);
  const whole = await client.chat.completions.create(ask);
  assert.equal(await runner.finalContent(), whole.choices[0].message.content);
});
