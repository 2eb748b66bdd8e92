// promptfoo: an evaluation with assertions, over chat completions and over /v1/responses.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';

const url = process.env.GATEWAY_URL;
assert.ok(url, 'GATEWAY_URL names the gateway');

// Nothing goes anywhere else, and nothing stays.
const folder = mkdtempSync(join(tmpdir(), 'aludel-promptfoo-'));
Object.assign(process.env, {
  PROMPTFOO_CONFIG_DIR: folder, PROMPTFOO_CACHE_ENABLED: 'false', PROMPTFOO_DISABLE_TELEMETRY: '1', PROMPTFOO_DISABLE_UPDATE: '1',
  PROMPTFOO_DISABLE_REMOTE_GENERATION: 'true',
});
const { default: promptfoo } = await import('promptfoo');
test.after(() => rmSync(folder, { recursive: true, force: true }));

test('every question has its answer from every provider', async () => {
  const config = { apiBaseUrl: `${url}/v1`, apiKey: 'unused', temperature: 0, max_tokens: 48, max_output_tokens: 48 };
  const context = 'The trip of Zora Pellson ended in Kingfield. Zora Pellson went by ferry.';
  const evaluation = await promptfoo.evaluate({
    prompts: ['{{context}}\n{{question}}'],
    providers: ['openai:chat:chat', 'openai:responses:chat'].map((id) => ({ id, config })),
    tests: [{ vars: { context, question: 'by what means did Zora get there' }, assert: [{ type: 'regex', value: '\\w' }] }],
    writeLatestResults: false,
  }, { maxConcurrency: 2 });
  const { results, stats } = await evaluation.toEvaluateSummary();
  assert.deepEqual([stats.successes, stats.failures, stats.errors], [2, 0, 0], JSON.stringify(results.map((one) => one.error)));
  for (const one of results) assert.ok(one.response.tokenUsage.total > 20, JSON.stringify(one.response.tokenUsage));
});
