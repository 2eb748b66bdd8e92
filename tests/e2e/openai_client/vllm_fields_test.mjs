// The fields that vLLM's users send beside OpenAI's.
import assert from 'node:assert/strict';
import test from 'node:test';

import { chat, greedy, greedyPlain, messages, plain, post, testFields, tokenize, url } from './ask.mjs';

const detokenize = async (tokens) => (await post('/detokenize', { model: 'chat', tokens })).prompt;
const asked = { return_token_ids: true };

for (const [endpoint, base] of [[chat, greedy], [plain, greedyPlain]]) {
  const whole = await endpoint.ask({ ...base, ...asked }, 'whole');
  const [reference] = whole.choices;
  const [first, second] = reference.tokens;
  const longer = { max_tokens: 40 };

  test(`${endpoint.name}: the reference's tokens spell its text`, async () => {
    assert.ok(reference.tokens.length >= 2);
    assert.equal((await detokenize(reference.tokens)).trim(), reference.text.trim());
    assert.equal(whole.prompt.length, whole.usage.prompt_tokens);
  });

  testFields(endpoint, base, [
    ['return_token_ids', asked, ({ choices, prompt, usage }) => {
      assert.equal(choices[0].tokens.length, usage.completion_tokens);
      assert.deepEqual(choices[0].tokens, reference.tokens);
      assert.deepEqual(prompt, whole.prompt);
    }],
    ['no token ids unasked', {}, ({ choices, prompt }) => {
      assert.deepEqual(choices[0].tokens, []);
      assert.equal(prompt, undefined);
    }],
    ['stop_token_ids', { stop_token_ids: [second], ...asked }, ({ choices: [choice] }) => {
      assert.deepEqual(choice.tokens, [first]);
      assert.deepEqual([choice.finish_reason, choice.stop_reason], ['stop', second]);
    }],
    ['stop_token_ids, included', { stop_token_ids: [second], include_stop_str_in_output: true, ...asked },
      ({ choices: [choice] }) => {
        assert.deepEqual(choice.tokens, [first, second]);
        assert.deepEqual([choice.finish_reason, choice.stop_reason], ['stop', second]);
      }],
    ['stop, included', { stop: reference.text.slice(1, 3), include_stop_str_in_output: true },
      ({ choices: [choice] }) => {
        assert.equal(choice.text, reference.text.slice(0, 3));
        assert.equal(choice.stop_reason, reference.text.slice(1, 3));
      }],
    ['sixteen stops', { stop: [...Array(15).fill('no such thing'), reference.text.slice(1, 3)] },
      ({ choices: [choice] }) => assert.equal(choice.text, reference.text.slice(0, 1))],
    ['min_tokens holds the end token back', { ...longer, min_tokens: 30 }, ({ usage }) =>
      assert.ok(usage.completion_tokens >= 30)],
    ['min_tokens holds stop tokens back', { stop_token_ids: [second], min_tokens: 3, ...asked },
      ({ choices: [choice] }) => {
        assert.ok(choice.tokens.length >= 3);
        assert.notEqual(choice.tokens[1], second);
      }],
    ['min_tokens holds stop strings back', { stop: [reference.text.slice(0, 1)], min_tokens: 2, ...asked },
      ({ choices: [choice] }) => assert.deepEqual(choice.tokens.slice(0, 2), [first, second])],
    ['allowed_token_ids', { allowed_token_ids: [second, first], max_tokens: 6, ...asked }, ({ choices: [choice] }) => {
      assert.equal(choice.tokens.length, 6);
      assert.ok(choice.tokens.every((id) => id === first || id === second), choice.tokens.join());
    }],
    ['bad_words', { bad_words: [reference.text.trim().split(/\W/)[0]], ...asked }, ({ choices: [choice] }) =>
      assert.ok(!choice.text.trim().startsWith(reference.text.trim().split(/\W/)[0]), choice.text)],
    ['rules that rule out nothing leave the draws alone', {
      temperature: 1, seed: 3, max_tokens: 12, min_tokens: 1, bad_words: ['zzz'], stop_token_ids: [0] }, async (answer) =>
      assert.deepEqual(answer.choices,
        (await endpoint.ask({ ...base, temperature: 1, seed: 3, max_tokens: 12 }, 'whole')).choices)],
  ]);
}

test('chat: continue_final_message goes on where the message ends', async () => {
  const [{ text, tokens }] = (await chat.ask({ ...greedy, ...asked }, 'whole')).choices;
  const said = await detokenize(tokens.slice(0, 1));
  const open = { ...greedy, messages: [...messages, { role: 'assistant', content: said }], continue_final_message: true };
  const answer = await chat.ask({ ...open, ...asked }, 'whole');
  const begun = (await chat.ask({ ...greedy, ...asked, max_tokens: 1 }, 'whole')).prompt;
  // The prompt is the question's, and then what the answer has begun with, without an end.
  assert.deepEqual(answer.prompt.slice(0, begun.length), begun);
  assert.deepEqual(answer.prompt.slice(begun.length), await tokenize(said));
  assert.equal(said + answer.choices[0].text, text);
});

test('chat: continue_final_message cuts behind the message, whatever its text', async () => {
  for (const content of ['|', 'end', '<', ' two words ']) {
    const open = { ...greedy, ...asked, messages: [...messages, { role: 'assistant', content }] };
    const { prompt } = await chat.ask({ ...open, continue_final_message: true, max_tokens: 1 }, 'whole');
    assert.ok((await detokenize(prompt)).trimEnd().endsWith(content.trim()), await detokenize(prompt));
    assert.ok(!/(\|\||endend|<<)$/.test(await detokenize(prompt)), await detokenize(prompt));
  }
});

test('chat: rules that leave no token are the request\'s fault', async () => {
  const [{ tokens: [first] }] = (await chat.ask({ ...greedy, ...asked }, 'whole')).choices;
  const word = (await detokenize([first])).trim();
  const answer = await post('/v1/chat/completions', { ...greedy, allowed_token_ids: [first], bad_words: [word] });
  if (answer.error) assert.match(answer.error.message, /leave no token/);
  const late = await post('/v1/chat/completions', {
    ...greedy, allowed_token_ids: [first], stop_token_ids: [first], min_tokens: 2 });
  assert.match(late.error.message, /min_tokens holds back every token/);
});

test('plain: truncate_prompt_tokens keeps the last ones', async () => {
  const { prompt } = await plain.ask({ ...greedyPlain, ...asked }, 'whole');
  const cut = await plain.ask({ ...greedyPlain, ...asked, truncate_prompt_tokens: 3 }, 'whole');
  assert.deepEqual(cut.prompt, prompt.slice(-3));
  const long = 'river '.repeat(2000);
  const limit = (await (await fetch(`${url}/v1/models/chat`)).json()).max_model_len;
  const fitted = await plain.ask({ ...greedyPlain, prompt: long, truncate_prompt_tokens: -1, max_tokens: 100 }, 'whole');
  assert.equal(fitted.usage.prompt_tokens, limit - 100);
});

test('usage in every chunk is refused, not left out', async () => {
  const { error } = await post('/v1/chat/completions', {
    ...greedy, stream: true, stream_options: { continuous_usage_stats: true } });
  assert.deepEqual([error.code, error.param], ['unsupported_parameter', 'stream_options.continuous_usage_stats']);
});

test('paths with doubled slashes or one too many at the end', async () => {
  for (const path of ['/v1/models/', '//v1/models', '/v1//models/chat', '/v1/models/chat/']) {
    assert.equal((await fetch(url + path)).status, 200, path);
  }
  assert.equal((await fetch(`${url}/v1/models/none/`)).status, 404);
});

test('a compressed body is refused with words', async () => {
  const answer = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST', headers: { 'content-encoding': 'gzip' }, body: new Uint8Array([31, 139, 8, 0]) });
  assert.equal(answer.status, 415);
  assert.match((await answer.json()).error.message, /gzip/);
});
