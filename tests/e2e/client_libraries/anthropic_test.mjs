// Anthropic's own client, unmodified, on /v1/messages; and what Claude Code sends.
import assert from 'node:assert/strict';
import test from 'node:test';

import Anthropic from '@anthropic-ai/sdk';

import { checkArguments, collect, exact, findTown, question, url } from './shared.mjs';

const client = new Anthropic({ baseURL: url, apiKey: 'unused', maxRetries: 0, timeout: 60_000 });
const greedy = {
  model: 'chat', max_tokens: 24, temperature: 0, messages: [{ role: 'user', content: question }], ...exact,
};
const tools = [
  { name: findTown.name, description: findTown.description, input_schema: findTown.schema },
  { name: 'wait', input_schema: { type: 'object', properties: { hours: { enum: [1, 2] } }, required: ['hours'] } },
];

test('answers, whole and streamed, with the same words and counts', async () => {
  const whole = await client.messages.create(greedy);
  assert.equal(whole.type, 'message');
  assert.equal(whole.role, 'assistant');
  assert.equal(whole.content.length, 1);
  assert.match(whole.content[0].text, /\w/);
  assert.ok(['end_turn', 'max_tokens'].includes(whole.stop_reason));
  assert.match(whole._request_id, /^req-/);
  const streamed = await client.messages.stream(greedy).finalMessage();
  assert.deepEqual(streamed.content, whole.content);
  assert.equal(streamed.stop_reason, whole.stop_reason);
  assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
  const all = ({ usage }) => usage.input_tokens + usage.cache_read_input_tokens;
  assert.equal(all(streamed), all(whole));
  const { input_tokens } = await client.messages.countTokens({ model: 'chat', messages: greedy.messages });
  assert.equal(input_tokens, all(whole));
});

test('streams the events that the API has', async () => {
  const events = await collect(await client.messages.create({ ...greedy, stream: true }));
  const types = events.map((event) => event.type).filter((type) => type !== 'content_block_delta');
  assert.deepEqual(types.filter((type) => type !== 'ping'), [
    'message_start', 'content_block_start', 'content_block_stop', 'message_delta', 'message_stop',
  ]);
  assert.equal(events.at(-2).aludel.plan, 'local');
});

test('ends at the length limit and at a stop sequence, which it names', async () => {
  assert.equal((await client.messages.create({ ...greedy, max_tokens: 1 })).stop_reason, 'max_tokens');
  const { content } = await client.messages.create(greedy);
  const stop = content[0].text.trim().slice(1, 3);
  const stopped = await client.messages.create({ ...greedy, stop_sequences: [stop] });
  assert.equal(stopped.stop_reason, 'stop_sequence');
  assert.equal(stopped.stop_sequence, stop);
});

test('goes on where the assistant\'s message ends', async () => {
  const { content } = await client.messages.create(greedy);
  const begin = content[0].text.slice(0, 3);
  const messages = [...greedy.messages, { role: 'assistant', content: begin }];
  const on = await client.messages.create({ ...greedy, messages });
  const body = JSON.stringify({ ...greedy, messages, continue_final_message: true });
  const chat = await (await fetch(`${url}/v1/chat/completions`, { method: 'POST', body })).json();
  assert.match(chat.choices[0].message.content, /\w/);
  assert.equal(on.content[0].text, chat.choices[0].message.content);
  assert.equal(on.usage.input_tokens + on.usage.cache_read_input_tokens, chat.usage.prompt_tokens);
});

for (const mode of ['whole', 'streamed']) {
  const ask = (fields) => mode === 'whole'
    ? client.messages.create({ ...greedy, max_tokens: 200, tools, ...fields })
    : client.messages.stream({ ...greedy, max_tokens: 200, tools, ...fields }).finalMessage();

  test(`${mode}: calls a tool and reads its result`, async () => {
    const asked = await ask({ tool_choice: { type: 'tool', name: 'find_town', disable_parallel_tool_use: true } });
    assert.equal(asked.stop_reason, 'tool_use');
    assert.equal(asked.content.length, 1);
    const [use] = asked.content;
    assert.equal(use.type, 'tool_use');
    assert.equal(use.name, 'find_town');
    checkArguments(use.input);
    const messages = [
      ...greedy.messages,
      { role: 'assistant', content: asked.content },
      { role: 'user', content: [
        { type: 'tool_result', tool_use_id: use.id, content: [{ type: 'text', text: 'Kingfield' }] },
        { type: 'text', text: 'and then?' },
      ] },
    ];
    const answered = await ask({ messages, max_tokens: 16, tool_choice: { type: 'none' } });
    assert.match(answered.content[0].text, /\w/);
  });

  test(`${mode}: calls one of its tools where it must`, async () => {
    const asked = await ask({ tool_choice: { type: 'any' } });
    assert.ok(['find_town', 'wait'].includes(asked.content[0].name));
  });
}

test('runs the client\'s own loop of tools', async () => {
  let calls = 0;
  const runner = client.beta.messages.toolRunner({
    ...greedy, max_tokens: 200, max_iterations: 1, tool_choice: { type: 'any' },
    tools: [{ ...tools[0], run: (input) => { calls += 1; checkArguments(input); return 'Kingfield'; } }],
  });
  for await (const message of runner) {
    assert.equal(message.stop_reason, 'tool_use');
    const { content } = await runner.generateToolResponse();
    assert.equal(calls, message.content.filter(({ type }) => type === 'tool_use').length);
    assert.equal(content[0].tool_use_id, message.content.find(({ type }) => type === 'tool_use').id);
  }
  assert.ok(calls >= 1);
});

test('follows a schema of the output', async () => {
  const answer = await client.messages.create({
    ...greedy, model: 'json', max_tokens: 150, output_config: { format: { type: 'json_schema', schema: findTown.schema } },
  });
  checkArguments(JSON.parse(answer.content[0].text));
});

test('refuses with the client\'s own errors', async () => {
  const rejects = async (fields, type, pattern) => assert.rejects(
    client.messages.create({ ...greedy, ...fields }),
    (error) => {
      assert.ok(error instanceof type, error);
      assert.equal(error.error.type, 'error');
      assert.match(error.message, pattern);
      assert.match(error.requestID, /^req-/);
      return true;
    });
  await rejects({ temperature: 3 }, Anthropic.BadRequestError, /'temperature' must be between 0 and 2, found 3/);
  await rejects({ model: 'none' }, Anthropic.NotFoundError, /'none' does not exist/);
  await rejects({ thinking: { type: 'enabled', budget_tokens: 1024 } }, Anthropic.BadRequestError, /thinking/);
  const format = { type: 'json_schema', schema: findTown.schema };
  await rejects({ output_format: format }, Anthropic.BadRequestError, /use 'output_config\.format'/);
  const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'AAAA' } };
  await rejects({ messages: [{ role: 'user', content: [image] }] }, Anthropic.BadRequestError,
                /messages\[0\]\.content\[0\].*'image' are not supported/);
  await rejects({ tools: [{ type: 'web_search_20250305', name: 'web_search' }] }, Anthropic.BadRequestError,
                /tools\[0\]\.type/);
});

test('serves what Claude Code sends', async () => {
  const cached = { cache_control: { type: 'ephemeral' } };
  const names = ['Bash', 'Edit', 'Read', 'mcp__github__list_issues'];
  const request = {
    model: 'chat',
    max_tokens: 32000,
    temperature: 1,
    betas: ['claude-code-20250219', 'fine-grained-tool-streaming-2025-05-14'],
    metadata: { user_id: 'user_0123_account__session_4567' },
    thinking: { type: 'adaptive' },
    system: [
      { type: 'text', text: 'You are a coding assistant.', ...cached },
      { type: 'text', text: 'Work in /tmp.', ...cached },
    ],
    tools: names.map((name, i) => ({
      name,
      description: `Does ${name}`,
      input_schema: { type: 'object', properties: { path: { type: 'string' } } },
      ...(i === names.length - 1 ? cached : {}),
    })),
    messages: [
      { role: 'user', content: [
        { type: 'text', text: '<system-reminder>\nToday is Monday.\n</system-reminder>' },
        { type: 'text', text: question, ...cached },
      ] },
      { role: 'assistant', content: [
        { type: 'text', text: 'I look.' },
        { type: 'tool_use', id: 'toolu_01', name: 'Read', input: { path: 'a.txt' } },
      ] },
      { role: 'user', content: [
        { type: 'tool_result', tool_use_id: 'toolu_01', content: 'no such file', is_error: true, ...cached },
      ] },
    ],
    stream: true,
  };
  const { model, system, tools: offered, messages, betas } = request;
  const { input_tokens } = await client.beta.messages.countTokens({ model, system, tools: offered, messages, betas });
  assert.ok(input_tokens > 100);
  const events = await collect(await client.beta.messages.create(request));
  const { usage } = events[0].message;
  assert.equal(usage.input_tokens + usage.cache_read_input_tokens, input_tokens);
  assert.ok(['end_turn', 'max_tokens', 'tool_use'].includes(events.at(-2).delta.stop_reason));
  assert.equal(events.at(-1).type, 'message_stop');
});
