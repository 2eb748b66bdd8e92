// autocannon: a load of whole answers over kept connections, with none refused.
import assert from 'node:assert/strict';
import test from 'node:test';

import autocannon from 'autocannon';

import { question, url } from './shared.mjs';

test('64 connections with 256 requests are all served', async () => {
  const result = await autocannon({
    url: `${url}/v1/chat/completions`, method: 'POST', connections: 64, amount: 256, timeout: 60,
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'chat', temperature: 0, max_tokens: 8, messages: [{ role: 'user', content: question }] }),
  });
  assert.deepEqual([result['2xx'], result.non2xx, result.errors, result.timeouts], [256, 0, 0, 0]);
});
