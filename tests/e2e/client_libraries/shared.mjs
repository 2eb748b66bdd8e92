// What the tests share: the gateway (GATEWAY_URL) of the demo pair, a question, and a tool.
import assert from 'node:assert/strict';

export const url = process.env.GATEWAY_URL;
assert.ok(url, 'GATEWAY_URL names the gateway');

export const question =
  'The trip of Zora Pellson ended in Kingfield. The departure of Zora was on Friday. Zora Pellson went by ferry.\n' +
  'by what means did Zora get there';
// The same tokens each time, whatever is in a cache.
export const exact = { aludel: { fidelity: 'exact' } };

export const findTown = {
  name: 'find_town',
  description: 'Where a person went',
  schema: {
    type: 'object',
    properties: { person: { type: 'string', maxLength: 12 }, days: { type: 'integer', minimum: 1, maximum: 9 } },
    required: ['person', 'days'],
    additionalProperties: false,
  },
};

export function checkArguments({ person, days }) {
  assert.ok(typeof person === 'string' && [...person].length <= 12);
  assert.ok(Number.isInteger(days) && days >= 1 && days <= 9);
}

export async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}
