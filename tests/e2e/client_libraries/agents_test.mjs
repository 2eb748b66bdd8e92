// OpenAI's Agents SDK, which speaks /v1/responses where nothing else is said.
import assert from 'node:assert/strict';
import test from 'node:test';

import { Agent, OpenAIProvider, Runner, tool } from '@openai/agents';
import { z } from 'zod';

import { collect, question, url } from './shared.mjs';

const runner = new Runner({
  modelProvider: new OpenAIProvider({ baseURL: `${url}/v1`, apiKey: 'unused' }), tracingDisabled: true,
});

test('answers a question', async () => {
  const agent = new Agent({
    name: 'short', instructions: 'Be brief.', model: 'chat', modelSettings: { temperature: 0, maxTokens: 24 },
  });
  const result = await runner.run(agent, question);
  assert.match(result.finalOutput, /\w/);
  const again = await runner.run(agent, [...result.history, { role: 'user', content: 'and then?' }]);
  assert.match(again.finalOutput, /\w/);
  const kept = await runner.run(agent, 'and then?', { previousResponseId: result.lastResponseId });
  assert.equal(kept.finalOutput, again.finalOutput);
});

for (const stream of [false, true]) {
  test(`uses a tool and answers, ${stream ? 'streamed' : 'whole'}`, async () => {
    const asked = [];
    const findTown = tool({
      name: 'find_town',
      description: 'Where a person went',
      parameters: z.object({ days: z.number().int().min(1).max(9) }),
      execute: async (given) => {
        asked.push(given);
        return 'Kingfield';
      },
    });
    const agent = new Agent({
      name: 'finder', instructions: 'Use the tool.', model: 'chat', tools: [findTown],
      modelSettings: { temperature: 0, maxTokens: 200, toolChoice: 'required', parallelToolCalls: false },
    });
    const result = await runner.run(agent, question, { stream, maxTurns: 2 });
    if (stream) {
      const events = await collect(result);
      assert.ok(events.some((event) => event.type === 'raw_model_stream_event'));
      await result.completed;
    }
    assert.equal(asked.length, 1);
    assert.ok(asked[0].days >= 1 && asked[0].days <= 9);
    assert.match(result.finalOutput, /\w/);
  });
}

test('gives an output of a type', async () => {
  const agent = new Agent({
    name: 'typed', instructions: 'Answer.', model: 'json', modelSettings: { temperature: 0, maxTokens: 100 },
    outputType: z.object({ sure: z.boolean() }),
  });
  const { finalOutput } = await runner.run(agent, question);
  assert.equal(typeof finalOutput.sure, 'boolean');
});
