// Writes NAME/golden.json for every family here, variants_golden.json, and demo_golden.json for the demo pair's: strings, their ids and the
// text that the ids decode to. Two implementations answer: @huggingface/tokenizers (JavaScript) and HuggingFace's Rust
// library through @anush008/tokenizers. Where they differ the Rust library counts, because models are trained with it,
// and the number of such strings is printed (JavaScript's \s is not Unicode's White_Space; its decoder drops U+FEFF).
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { Tokenizer as JsTokenizer } from '@huggingface/tokenizers';
import { HARD_STRINGS, makeRandom, randomString, tokenString } from './strings.mjs';
import { compose, makeVariants } from './variants.mjs';

const { Tokenizer: RustTokenizer } = createRequire(import.meta.url)('@anush008/tokenizers');
const equal = (a, b) => JSON.stringify(a) === JSON.stringify(b);

async function golden(file, json, strings) {
  const js = new JsTokenizer(json, { clean_up_tokenization_spaces: false });
  const rust = RustTokenizer.fromString(JSON.stringify(json));
  const encode = async (text, addSpecialTokens) => [...(await rust.encode(text, null, { addSpecialTokens })).getIds()];
  let differences = 0;
  const cases = [];
  for (const text of strings) {
    const ids = await encode(text, false);
    const decoded = await rust.decode(ids, false);
    if (!equal(js.encode(text, { add_special_tokens: false }).ids, ids)) ++differences;
    else if (ids.length > 0 && js.decode(ids, { skip_special_tokens: false }) !== decoded) ++differences;
    const item = { text, ids };
    if (decoded !== text) item.decoded = decoded;
    const skipped = await rust.decode(ids, true);
    if (skipped !== decoded) item.without_special = skipped;
    cases.push(item);
  }
  console.log(`${file}: ${cases.length} strings, ${differences} where the JavaScript package differs from the Rust library`);
  return `{"with_special_tokens": ${JSON.stringify(await encode('x', true))}, "without": ${JSON.stringify(await encode('x', false))}, "cases": [\n`
    + cases.map((item) => JSON.stringify(item)).join(',\n') + '\n]}\n';
}

for (const [seed, name] of ['gpt2', 'llama3', 'qwen2', 'llama2', 'mistral'].entries()) {
  const random = makeRandom(100 + seed);
  const tokens = JSON.parse(readFileSync(`${name}/tokenizer.json`, 'utf8')).added_tokens.map((token) => token.content);
  const strings = HARD_STRINGS.concat(Array.from({ length: 250 }, () => randomString(random, tokens)));
  writeFileSync(`${name}/golden.json`, await golden(name, compose(name), strings));
}

const variants = [];
for (const [seed, name] of Object.keys(makeVariants()).entries()) {
  const random = makeRandom(300 + seed);
  const json = compose(name);
  const tokens = json.added_tokens.map((token) => token.content);
  const strings = HARD_STRINGS.filter((_, i) => i % 6 === seed % 6).concat(Array.from({ length: 15 }, () => randomString(random, tokens)),
    Array.from({ length: 20 }, () => tokenString(random, tokens)));
  variants.push(`${JSON.stringify(name)}: ${await golden(name, json, strings)}`);
}
writeFileSync('variants_golden.json', `{${variants.join(',\n')}}\n`);

const demo = '../../../../deploy/demo';
const questions = readFileSync(`${demo}/questions.jsonl`, 'utf8').split('\n').filter(Boolean).map((line) => JSON.parse(line));
const random = makeRandom(200);
const strings = HARD_STRINGS.concat(questions.map((item) => item.question), questions.slice(0, 10).map((item) => `<|begin|><|user|>${item.context}\n${item.question}<|assistant|>`),
  Array.from({ length: 100 }, () => randomString(random, ['<|user|>', '<|end|>'])));
writeFileSync('demo_golden.json', await golden('demo', JSON.parse(readFileSync(`${demo}/chat/tokenizer.json`, 'utf8')), strings));
