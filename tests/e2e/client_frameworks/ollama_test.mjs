// Ollama's client speaks an API of its own, which is refused with words that say where to turn.
import assert from 'node:assert/strict';
import test from 'node:test';

import { Ollama } from 'ollama';

import { question, url } from './shared.mjs';

const ollama = new Ollama({ host: url });

test('its calls are a 404 that names the APIs there are', async () => {
  const messages = [{ role: 'user', content: question }];
  for (const ask of [() => ollama.chat({ model: 'chat', messages }), () => ollama.generate({ model: 'chat', prompt: question }),
    () => ollama.list()]) {
    await assert.rejects(ask, { name: 'ResponseError', status_code: 404, message: /below \/v1; Ollama's own is not served/ });
  }
});
