// Tools, their choice, calls and their answers. The template of this test speaks Hermes' dialect.
import assert from 'node:assert/strict';
import test from 'node:test';

import { chat, client, collect, greedy, messages, schemaFormat, testFields, tokenize } from './ask.mjs';

const object = (properties) => ({
  type: 'object', properties, required: Object.keys(properties), additionalProperties: false,
});
const tools = [
  { type: 'function', function: {
    name: 'find_town', description: 'Where somebody went',
    parameters: object({
      person: { type: 'string', maxLength: 12 }, days: { type: 'integer', minimum: 1, maximum: 9 },
    }),
  } },
  { type: 'function', function: { name: 'wait', strict: true, parameters: object({ hours: { enum: [1, 2] } }) } },
];
const named = (name) => ({ type: 'function', function: { name } });

const plainAnswer = (await chat.ask(greedy, 'whole'));

// Exactly one call, of one of `names`, whose arguments validate.
function calls(...names) {
  return ({ choices }) => {
    for (const { text, calls: list, finish_reason } of choices) {
      assert.equal(finish_reason, 'tool_calls');
      assert.equal(text, null);
      assert.equal(list.length, 1);
      assert.equal(list[0].type, 'function');
      assert.ok(names.includes(list[0].name), list[0].name);
      const given = JSON.parse(list[0].arguments);
      if (list[0].name === 'wait') {
        assert.deepEqual(Object.keys(given), ['hours']);
        assert.ok([1, 2].includes(given.hours));
      } else {
        assert.deepEqual(Object.keys(given), ['person', 'days']);
        assert.ok([...given.person].length <= 12 && given.days >= 1 && given.days <= 9);
      }
    }
  };
}

function text({ choices: [choice], usage }) {
  assert.match(choice.text, /\w/);
  assert.deepEqual(choice.calls, []);
  assert.ok(['stop', 'length'].includes(choice.finish_reason));
  assert.ok(usage.prompt_tokens > plainAnswer.usage.prompt_tokens + 50, 'the template got no tools');
}

// A text of a format that was asked for beside tools.
function sure({ choices }) {
  for (const { text: said, calls: list, finish_reason } of choices) {
    assert.equal(finish_reason, 'stop');
    assert.deepEqual(list, []);
    assert.equal(typeof JSON.parse(said).sure, 'boolean');
    assert.deepEqual(Object.keys(JSON.parse(said)), ['sure']);
  }
}

// A required call of find_town that `max_tokens` cut off.
function cutCall({ choices: [{ text, calls: list, finish_reason }] }) {
  assert.equal(finish_reason, 'length');
  assert.equal(text, null);
  for (const { name, arguments: begin } of list) {
    assert.equal(name, 'find_town');
    assert.match(begin, /^(\{|$)/);
    assert.throws(() => JSON.parse(begin));
  }
}

const base = { ...greedy, max_tokens: 200, tools };
// The model is led to the one or the other by its first character.
const [less] = await tokenize('<');
const beside = {
  tools, response_format: schemaFormat(object({ sure: { type: 'boolean' } })), max_tokens: 200, temperature: 1, seed: 4, n: 3,
};
testFields(chat, greedy, [
  ['a format beside tools may be a call', { ...beside, logit_bias: { [less]: 100 } }, calls('find_town', 'wait')],
  ['a format beside tools may be a text of it', { ...beside, logit_bias: { [less]: -100 } }, sure],
  ['a required call beside a format', { ...beside, tool_choice: 'required' }, calls('find_town', 'wait')],
]);

testFields(chat, base, [
  ['tools, no tool_choice', { max_tokens: 24 }, text],
  ['tool_choice auto', { max_tokens: 24, tool_choice: 'auto' }, text],
  ['tool_choice none', { tool_choice: 'none', max_tokens: 24 }, ({ choices }) =>
    assert.deepEqual(choices, plainAnswer.choices)],
  ['tool_choice required', { tool_choice: 'required' }, calls('find_town', 'wait')],
  ['tool_choice required, sampled', { tool_choice: 'required', temperature: 1.3, seed: 3, n: 4 }, (answer) => {
    calls('find_town', 'wait')(answer);
    assert.ok(new Set(answer.choices.map((choice) => JSON.stringify(choice.calls))).size > 1);
  }],
  ['tool_choice of one', { tool_choice: named('find_town') }, calls('find_town')],
  ...[1, 5, 10, 15, 20].map((max_tokens) => [
    `tool_choice of one, cut after ${max_tokens} tokens`, { tool_choice: named('find_town'), max_tokens }, cutCall,
  ]),
  ['tool_choice of the other', { tool_choice: named('wait') }, calls('wait')],
  ...[true, false].flatMap((parallel_tool_calls) => [
    [`parallel_tool_calls ${parallel_tool_calls}, required`, { parallel_tool_calls, tool_choice: 'required' },
      calls('find_town', 'wait')],
    [`parallel_tool_calls ${parallel_tool_calls}, auto`, { parallel_tool_calls, max_tokens: 24 }, text],
  ]),
]);

for (const mode of ['whole', 'stream']) {
  test(`chat, ${mode}: messages, tool_calls and role tool`, async () => {
    const ask = { ...base, tool_choice: named('find_town') };
    const asked = mode === 'whole'
      ? (await client.chat.completions.create(ask)).choices[0].message
      : (await client.chat.completions.stream(ask).finalChatCompletion()).choices[0].message;
    assert.equal(asked.content, null);
    assert.match(asked.tool_calls[0].id, /^call_\w{24}$/);
    const answer = { role: 'tool', tool_call_id: asked.tool_calls[0].id, content: 'Kingfield' };
    const answered = await chat.ask({ ...base, max_tokens: 24, messages: [...messages, asked, answer] }, mode);
    assert.match(answered.choices[0].text, /\w/);
    const once = await chat.ask({ ...base, max_tokens: 1 }, mode);
    assert.ok(answered.usage.prompt_tokens > once.usage.prompt_tokens + 10);
  });
}

test('chat, whole: calls without valid arguments, and refusals, may be sent back', async () => {
  const broken = { role: 'assistant', content: null, tool_calls: [
    { id: 'a', type: 'function', function: { name: 'find_town', arguments: '{"person": ' } }] };
  const complaint = { role: 'tool', tool_call_id: 'a', content: 'the arguments are no JSON' };
  const refusal = { role: 'assistant', content: null, refusal: 'no' };
  const history = [...messages, broken, complaint, ...messages, refusal, ...messages];
  assert.match((await chat.ask({ ...base, max_tokens: 8, messages: history }, 'whole')).choices[0].text, /\w/);
});

test('chat, stream: a call begins without content, and has its index and id', async () => {
  const ask = { ...base, tool_choice: 'required', stream: true };
  const chunks = await collect(await client.chat.completions.create(ask));
  const deltas = chunks.map((chunk) => chunk.choices[0].delta);
  assert.deepEqual(deltas[0], { role: 'assistant', content: null });
  const calling = deltas.filter((delta) => delta.tool_calls);
  assert.equal(calling.length, 1);
  assert.equal(calling[0].tool_calls[0].index, 0);
  assert.match(calling[0].tool_calls[0].id, /^call_\w{24}$/);
  assert.ok(deltas.every((delta) => delta.content == null));
  // What was generated before there was anything to show is a stage of its own.
  const { stages, ttft } = chunks.at(-1).aludel;
  assert.ok(stages.held > stages.gateway && stages.held < ttft);
});
