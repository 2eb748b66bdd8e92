// Compares @huggingface/jinja with templates/golden.json, which Jinja2 made: an independent implementation must agree on
// every template and conversation (tools, their calls and replies among them), or the goldens are not worth testing
// against. Snippets, where the JavaScript engine knows less of Jinja, are only counted.
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
  // Lists of parts are added to strings there, which Jinja2 refuses and the JavaScript engine does not.
  else if (item.conversation !== 'parts') differences.push(`${item.template} ${item.conversation} ${item.option}`);
}
console.log(`templates: ${same} of ${golden.cases.length} same, ${differences.length} differ where they must not`, differences);
let sameSnippets = 0;
for (const item of golden.snippets) {
  if (render(item.source, { messages: golden.conversations.turns }) === (item.text ?? null)) ++sameSnippets;
}
console.log(`snippets: ${sameSnippets} of ${golden.snippets.length} same`);
process.exitCode = differences.length > 0 ? 1 : 0;
