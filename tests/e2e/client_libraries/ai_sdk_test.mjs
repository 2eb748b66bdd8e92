// Vercel's AI SDK with its providers for OpenAI (which speaks /v1/responses) and for Anthropic.
import assert from 'node:assert/strict';
import test from 'node:test';

import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, Output, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

import { question, url } from './shared.mjs';

const settings = { baseURL: `${url}/v1`, apiKey: 'unused' };
const providers = { openai: createOpenAI(settings), anthropic: createAnthropic(settings) };
const common = { system: 'Be brief.', prompt: question, temperature: 0, maxOutputTokens: 200, maxRetries: 0 };
const findTown = (asked) => tool({
  description: 'Where a person went',
  inputSchema: z.object({ days: z.number().int().min(1).max(9) }),
  execute: async (given) => {
    asked.push(given);
    return 'Kingfield';
  },
});

for (const [name, provider] of Object.entries(providers)) {
  test(`${name}: generates and streams text`, async () => {
    const whole = await generateText({ ...common, model: provider('chat') });
    assert.match(whole.text, /\w/);
    assert.ok(whole.usage.inputTokens > 20 && whole.usage.outputTokens > 0);
    const streamed = streamText({ ...common, model: provider('chat') });
    assert.match(await streamed.text, /\w/);
    assert.ok((await streamed.usage).outputTokens > 0);
    assert.ok(['stop', 'length'].includes(await streamed.finishReason));
  });

  test(`${name}: calls a tool and goes on from its result`, async () => {
    const asked = [];
    const ask = {
      ...common, model: provider('chat'), tools: { find_town: findTown(asked) }, toolChoice: 'required',
      stopWhen: stepCountIs(2), prepareStep: ({ stepNumber }) => (stepNumber > 0 ? { toolChoice: 'none' } : {}),
    };
    const { steps, text } = await generateText(ask);
    assert.equal(steps.length, 2);
    assert.equal(steps[0].finishReason, 'tool-calls');
    assert.match(text, /\w/);
    const streamed = streamText(ask);
    assert.match(await streamed.text, /\w/);
    assert.equal((await streamed.steps).length, 2);
    assert.equal(asked.length, 2);
  });

  // Through a format where the provider has one, else through a tool.
  test(`${name}: generates an object`, async () => {
    const { output } = await generateText({
      ...common, model: provider('chat'), output: Output.object({ schema: z.object({ sure: z.boolean() }) }),
    });
    assert.equal(typeof output.sure, 'boolean');
  });
}
