// Mastra's agents over the AI SDK's provider: text, streams and tools.
import assert from 'node:assert/strict';
import test from 'node:test';

import { createOpenAI } from '@ai-sdk/openai';
import { Agent } from '@mastra/core/agent';
import { createTool } from '@mastra/core/tools';
import { z } from 'zod';

import { collect, question, url } from './shared.mjs';

const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: 'unused' });
// An agent's requests carry no temperature, so that two answers need not agree.
const modelSettings = { maxOutputTokens: 200, maxRetries: 0 };

for (const [name, model] of [['responses', provider('chat')], ['chat completions', provider.chat('chat')]]) {
  const agent = new Agent({ id: 'short', name: 'short', instructions: 'Be brief.', model });

  test(`${name}: an agent answers, whole and streamed`, async () => {
    const whole = await agent.generate(question, { modelSettings });
    assert.match(whole.text, /\w/);
    const streamed = await agent.stream(question, { modelSettings });
    const parts = await collect(streamed.textStream);
    assert.match(parts.join(''), /\w/);
    assert.equal(parts.join(''), await streamed.text);
  });

  test(`${name}: an agent uses its tool`, async () => {
    const asked = [];
    const findTown = createTool({
      id: 'find_town', description: 'Where a person went', inputSchema: z.object({ by: z.enum(['ferry', 'train']) }),
      execute: async (given) => {
        asked.push(given);
        return { town: 'Kingfield' };
      },
    });
    const finder = new Agent({ id: 'finder', name: 'finder', instructions: 'Use the tool.', model, tools: { find_town: findTown } });
    await finder.generate(question, { modelSettings, toolChoice: 'required', maxSteps: 1 });
    assert.equal(asked.length, 1);
  });
}
