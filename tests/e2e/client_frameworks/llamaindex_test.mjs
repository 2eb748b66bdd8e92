// LlamaIndex's model class over another base URL: chat, streams and completion.
import assert from 'node:assert/strict';
import test from 'node:test';

import { OpenAI } from '@llamaindex/openai';
import { Settings } from 'llamaindex';

import { collect, question, url } from './shared.mjs';

const llm = new OpenAI({ model: 'chat', apiKey: 'unused', baseURL: `${url}/v1`, temperature: 0, maxTokens: 48, maxRetries: 0 });
const messages = [{ role: 'system', content: 'Be brief.' }, { role: 'user', content: question }];

test('the model of the settings chats, whole and streamed', async () => {
  Settings.llm = llm;
  const whole = await Settings.llm.chat({ messages });
  assert.match(whole.message.content, /\w/);
  const parts = await collect(await Settings.llm.chat({ messages, stream: true }));
  assert.equal(parts.map((part) => part.delta).join(''), whole.message.content);
});

test('it completes a prompt', async () => {
  assert.match((await llm.complete({ prompt: question })).text, /\w/);
});
