// LangChain: a prompt template piped into the model, streams, tools and output of a schema, as its guides have them.
import assert from 'node:assert/strict';
import test from 'node:test';

import { HumanMessage, SystemMessage, ToolMessage } from '@langchain/core/messages';
import { StringOutputParser } from '@langchain/core/output_parsers';
import { ChatPromptTemplate } from '@langchain/core/prompts';
import { tool } from '@langchain/core/tools';
import { ChatOpenAI } from '@langchain/openai';
import { z } from 'zod';

import { collect, question, url } from './shared.mjs';

const settings = {
  model: 'chat', apiKey: 'unused', temperature: 0, maxTokens: 48, maxRetries: 0, configuration: { baseURL: `${url}/v1` },
};
const model = new ChatOpenAI(settings);

test('a chain of template, model and parser answers, whole, streamed and in a batch', async () => {
  const prompt = ChatPromptTemplate.fromMessages([['system', 'Be brief.'], ['human', '{asked}']]);
  const chain = prompt.pipe(model).pipe(new StringOutputParser());
  const whole = await chain.invoke({ asked: question });
  assert.match(whole, /\w/);
  assert.equal((await collect(await chain.stream({ asked: question }))).join(''), whole);
  assert.deepEqual(await chain.batch([{ asked: question }, { asked: question }]), [whole, whole]);
});

test('usage comes with the message', async () => {
  const { usage_metadata: usage } = await model.invoke([new SystemMessage('Be brief.'), new HumanMessage(question)]);
  assert.ok(usage.input_tokens > 20 && usage.output_tokens > 0);
});

test('a tool that is bound is called, and its result read', async () => {
  const findTown = tool(() => 'Kingfield', {
    name: 'find_town', description: 'Where a person went', schema: z.object({ days: z.number().int().min(1).max(9) }),
  });
  const asking = new ChatOpenAI({ ...settings, maxTokens: 200 }).bindTools([findTown], { tool_choice: 'find_town' });
  const call = await asking.invoke([new HumanMessage(question)]);
  assert.equal(call.tool_calls.length, 1);
  assert.ok(call.tool_calls[0].args.days >= 1 && call.tool_calls[0].args.days <= 9);
  const result = await findTown.invoke(call.tool_calls[0]);
  assert.ok(result instanceof ToolMessage);
  assert.match((await model.invoke([new HumanMessage(question), call, result])).text, /\w/);
});

test('an output of a schema is one', async () => {
  const typed = new ChatOpenAI({ ...settings, model: 'json', maxTokens: 100 })
    .withStructuredOutput(z.object({ sure: z.boolean() }), { method: 'jsonSchema', name: 'verdict' });
  assert.equal(typeof (await typed.invoke(question)).sure, 'boolean');
});
