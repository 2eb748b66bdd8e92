// The official OpenAI client on /v1/responses.
import assert from 'node:assert/strict';
import test from 'node:test';

import OpenAI from 'openai';

import { checkArguments, collect, exact, findTown, question, url } from './shared.mjs';

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'unused', maxRetries: 0, timeout: 60_000 });
const greedy = { model: 'chat', input: question, max_output_tokens: 24, temperature: 0, ...exact };
const tools = [{
  type: 'function', name: findTown.name, description: findTown.description, parameters: findTown.schema, strict: true,
}];

const textOf = ({ output }) => output.flatMap(({ content }) => content ?? []).map(({ text }) => text).join('');

test('answers, whole and streamed, with the same words and counts', async () => {
  const whole = await client.responses.create(greedy);
  assert.match(whole.output_text, /\w/);
  assert.ok(['completed', 'incomplete'].includes(whole.status));
  assert.equal(whole.usage.total_tokens, whole.usage.input_tokens + whole.usage.output_tokens);
  const streamed = await client.responses.stream(greedy).finalResponse();
  assert.equal(textOf(streamed), whole.output_text);
  assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
  const chat = await client.chat.completions.create({
    model: 'chat', messages: [{ role: 'user', content: question }], max_tokens: 24, temperature: 0, ...exact,
  });
  assert.equal(whole.output_text, chat.choices[0].message.content);
});

test('streams the events that the API has, numbered', async () => {
  const events = await collect(await client.responses.create({ ...greedy, max_output_tokens: 1, stream: true }));
  events.forEach((event, i) => assert.equal(event.sequence_number, i));
  assert.deepEqual(events.map(({ type }) => type).filter((type) => type !== 'response.output_text.delta'), [
    'response.created', 'response.in_progress', 'response.output_item.added', 'response.content_part.added',
    'response.output_text.done', 'response.content_part.done', 'response.output_item.done', 'response.incomplete',
  ]);
  const { response } = events.at(-1);
  assert.equal(response.incomplete_details.reason, 'max_output_tokens');
  assert.equal(response.aludel.plan, 'local');
});

test('follows instructions and items of every role', async () => {
  const short = await client.responses.create(greedy);
  const long = await client.responses.create({
    ...greedy, instructions: 'Be brief.',
    input: [
      { role: 'developer', content: 'Be kind.' },
      { role: 'user', content: [{ type: 'input_text', text: question }] },
      { role: 'assistant', content: 'by ferry' },
      { role: 'user', content: question },
    ],
  });
  assert.ok(long.usage.input_tokens > short.usage.input_tokens * 2);
});

for (const mode of ['whole', 'streamed']) {
  const ask = (fields) => mode === 'whole'
    ? client.responses.create({ ...greedy, max_output_tokens: 200, tools, ...fields })
    : client.responses.stream({ ...greedy, max_output_tokens: 200, tools, ...fields }).finalResponse();

  test(`${mode}: calls a function and reads its output`, async () => {
    const asked = await ask({ tool_choice: { type: 'function', name: 'find_town' } });
    assert.equal(asked.output.length, 1);
    const [call] = asked.output;
    assert.equal(call.type, 'function_call');
    checkArguments(JSON.parse(call.arguments));
    const output = { type: 'function_call_output', call_id: call.call_id, output: 'Kingfield' };
    const input = [{ role: 'user', content: question }, call, output];
    const sent = await ask({ input, max_output_tokens: 16, tool_choice: 'none' });
    const kept = await ask({
      input: [output], previous_response_id: asked.id, max_output_tokens: 16, tool_choice: 'none',
    });
    assert.match(textOf(kept), /\w/);
    assert.equal(textOf(kept), textOf(sent));
  });

  test(`${mode}: may be allowed a part of its functions`, async () => {
    const asked = await ask({
      tools: [...tools, { type: 'function', name: 'wait', parameters: { type: 'object' } }],
      tool_choice: { type: 'allowed_tools', mode: 'required', tools: [{ type: 'function', name: 'find_town' }] },
    });
    assert.equal(asked.output[0].name, 'find_town');
  });
}

test('follows a schema', async () => {
  const format = { type: 'json_schema', name: 'trip', strict: true, schema: findTown.schema };
  const answer = await client.responses.parse({ ...greedy, model: 'json', max_output_tokens: 150, text: { format } });
  checkArguments(answer.output_parsed);
  const object = await client.responses.create({
    ...greedy, model: 'json', max_output_tokens: 12, text: { format: { type: 'json_object' } },
  });
  assert.match(object.output_text, /^\s*\{/);
});

test('keeps answers, and goes on from them', async () => {
  const first = await client.responses.create(greedy);
  assert.deepEqual((await client.responses.retrieve(first.id)).output, first.output);
  const second = await client.responses.create({ ...greedy, input: 'and then?', previous_response_id: first.id });
  assert.equal(second.previous_response_id, first.id);
  const sent = await client.responses.create({
    ...greedy, input: [{ role: 'user', content: question }, ...first.output, { role: 'user', content: 'and then?' }],
  });
  assert.equal(second.output_text, sent.output_text);
  assert.equal(second.usage.input_tokens, sent.usage.input_tokens);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
  const unkept = await client.responses.create({ ...greedy, store: false });
  assert.equal(unkept.store, false);
  await assert.rejects(client.responses.create({ ...greedy, previous_response_id: unkept.id }),
                       (error) => error.code === 'previous_response_not_found');
});

test('refuses what it does not serve', async () => {
  const rejects = (fields, param) => assert.rejects(client.responses.create({ ...greedy, ...fields }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError, error);
    assert.equal(error.param, param);
    return true;
  });
  await rejects({ background: true }, 'background');
  await rejects({ conversation: 'conv_1' }, 'conversation');
  await rejects({ include: ['web_search_call.action.sources'] }, 'include');
  await rejects({ tools: [{ type: 'web_search' }] }, 'tools[0].type');
  await rejects({ input: [{ role: 'user', content: [{ type: 'input_image', image_url: 'x' }] }] },
                'input[0].content[0].type');
  await rejects({ reasoning: { effort: 'high' } }, 'reasoning.effort');
});
