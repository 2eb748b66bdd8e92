// Compares @huggingface/jinja with templates/golden.json, which Jinja2 made, and prints where the two differ: a third
// opinion on the templates, not a source of golden values.
import { readFileSync } from 'node:fs';
import { Template } from '@huggingface/jinja';

const golden = JSON.parse(readFileSync('templates/golden.json', 'utf8'));
const defaults = { tools: null, documents: null, add_generation_prompt: false, bos_token: '<s>', eos_token: '</s>' };
function render(source, context) {
  try {
    return new Template(source).render({ ...defaults, ...context });
  } catch (error) {
    return null;
  }
}
let same = 0;
const differences = [];
for (const item of golden.cases) {
  const source = readFileSync(`templates/${item.template}`, 'utf8');
  const text = render(source, { messages: golden.conversations[item.conversation], ...golden.options[item.option] });
  if (text === (item.text ?? null)) ++same;
  else differences.push(`${item.template} ${item.conversation} ${item.option}`);
}
console.log(`templates: ${same} same, ${differences.length} differ`, differences);
let sameSnippets = 0;
for (const item of golden.snippets) {
  if (render(item.source, { messages: golden.conversations.turns }) === (item.text ?? null)) ++sameSnippets;
}
console.log(`snippets: ${sameSnippets} of ${golden.snippets.length} same`);
