// A gateway with keys, clients that leave, and a decode server that dies: servers of this file's own.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import OpenAI from 'openai';

import { fails, greedy, modes } from './ask.mjs';
import { answers, Server, until } from './servers.mjs';

const keyLine = (name, more = '') => `${name} ${createHash('sha256').update(`sk-${name}`).digest('hex')} ${more}\n`;
// Some seconds of work.
const endless = { ...greedy, n: 8, max_tokens: 900, ignore_eos: true };
let decode, gateway, url;

const clientOf = (name) => new OpenAI({ baseURL: `${url}/v1`, apiKey: `sk-${name}`, maxRetries: 0, timeout: 60_000 });
const create = (name, fields, mode, options) =>
  clientOf(name).chat.completions.create({ ...fields, stream: mode === 'stream' }, options);
const requests = async (status) => {
  const metrics = await (await fetch(`${url}/metrics`)).text();
  const labels = `{path="/v1/chat/completions",status="${status}"} `;
  return Number(metrics.split(`aludel_http_requests_total${labels}`)[1]?.split('\n')[0] ?? 0);
};
const logged = (id) =>
  gateway.log().split('\n').filter((line) => line.includes(`"${id}"`)).map((line) => JSON.parse(line));

before(async () => {
  decode = await Server.start('aludel-decode', 'decode-chat');
  gateway = await Server.start('aludel-gateway', 'gateway', (config, folder) => {
    const keys = join(folder, 'keys');
    const seldom = 'requests_per_minute=1';
    writeFileSync(keys, keyLine('alice') + keyLine('bob', seldom) + keyLine('carol', seldom));
    const target = config.match(/decode_targets: "[^"]*"/)[0]; // the first model's
    return config.replace(target, `decode_targets: "${decode.address}"`) +
      `log { format: "json" }\naccess { keys_file: "${keys}" }\nprobe_interval_ms: 100\n`;
  });
  url = `http://${gateway.address}`;
  await until('ready', () => answers(`${url}/ready?model=chat`, 200));
});

after(async () => {
  await gateway?.remove();
  await decode?.remove();
});

for (const mode of modes) {
  test(`chat, ${mode}: 401 without a known key`, async () => {
    for (const name of ['mallory', 'alice2']) {
      await assert.rejects(create(name, greedy, mode),
        fails(OpenAI.AuthenticationError, { status: 401, code: 'invalid_api_key', param: null }));
    }
    await assert.rejects(clientOf('mallory').models.list(), OpenAI.AuthenticationError);
    assert.ok(await create('alice', greedy, mode));
  });

  test(`chat, ${mode}: 429 with Retry-After beyond a key's rate`, async () => {
    const key = mode === 'whole' ? 'bob' : 'carol';
    await create(key, { ...greedy, max_tokens: 1 }, 'whole');
    await assert.rejects(create(key, greedy, mode), (error) => {
      fails(OpenAI.RateLimitError, { status: 429, code: 'rate_limit_exceeded', type: 'rate_limit_error' })(error);
      const seconds = Number(error.headers.get('retry-after'));
      return seconds >= 1 && seconds <= 60;
    });
  });

  test(`chat, ${mode}: a client that leaves is 499 in the log and among the metrics`, async () => {
    const leaving = new AbortController();
    const id = `leaves-${mode}`;
    const answer = create('alice', endless, mode, { signal: leaving.signal, headers: { 'x-request-id': id } });
    const earlier = await requests(499);
    if (mode === 'stream') {
      let chunks = 0;
      for await (const chunk of await answer) {
        assert.ok(chunk);
        if (++chunks === 3) leaving.abort();
      }
    } else {
      setTimeout(() => leaving.abort(), 100);
      await assert.rejects(answer, OpenAI.APIUserAbortError);
    }
    await until('counted', async () => (await requests(499)) === earlier + 1);
    await until('logged', () => logged(id).length > 0);
    const [line] = logged(id);
    assert.deepEqual([line.status, line.outcome, line.stream], [499, 'cancelled', mode === 'stream']);
  });
}

test('chat, stream: the death of the decode server in mid-stream rejects', async () => {
  const streams = [
    await create('alice', endless, 'stream'),
    clientOf('alice').chat.completions.stream(endless),
  ];
  let underWay = 0;
  const readers = streams.map(async (stream) => {
    let chunks = 0;
    for await (const chunk of stream) {
      assert.equal(chunk.choices[0].finish_reason, null);
      if (++chunks === 5 && ++underWay === streams.length) decode.process.kill('SIGKILL');
    }
  });
  // All at once: whichever fails first, none fails unobserved.
  for (const { status, reason } of await Promise.allSettled(readers)) {
    assert.equal(status, 'rejected');
    assert.ok(reason instanceof OpenAI.APIError, reason);
    assert.equal(reason.code ?? reason.error?.code, 'unavailable');
  }
  await decode.ended;
});

for (const mode of modes) {
  test(`chat, ${mode}: 503 with Retry-After while the decode server is down`, async () => {
    await until('known to be down', () => answers(`${url}/ready?model=chat`, 503));
    await assert.rejects(create('alice', greedy, mode), (error) => {
      fails(OpenAI.InternalServerError, { status: 503, code: 'unavailable' })(error);
      return Number(error.headers.get('retry-after')) > 0;
    });
    assert.equal((await create('alice', { ...greedy, model: 'json', aludel: {} }, 'whole')).model, 'json');
  });
}
