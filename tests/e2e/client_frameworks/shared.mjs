// What the tests share: the gateway (GATEWAY_URL) of the demo pair, and a question.
import assert from 'node:assert/strict';

export const url = process.env.GATEWAY_URL;
assert.ok(url, 'GATEWAY_URL names the gateway');

export const question =
  'The trip of Zora Pellson ended in Kingfield. The departure of Zora was on Friday. Zora Pellson went by ferry.\n' +
  'by what means did Zora get there';

export async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}
