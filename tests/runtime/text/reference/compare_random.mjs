// Compares our tokenizer with HuggingFace's Rust library on random strings: ids, decoded text, decoded text without
// special tokens, and the streamed text. Half of the strings are text-like (strings.mjs), half are any code points
// that both sides' Unicode versions assign.
//
//   npm install && node compare_random.mjs --tool ../../../../build/release/bin/tokenize_lines --count 1000000
//       [--seed 7] [--family llama3]...        a family or a variant (variants.mjs); all if none is named
//
// Exit code 1 where anything differs; the first differences are printed.
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import { HARD_STRINGS, makeRandom, randomString, tokenString } from './strings.mjs';
import { compose, makeVariants } from './variants.mjs';

const { Tokenizer } = createRequire(import.meta.url)('@anush008/tokenizers');
const BATCH = 2000;
const SHOWN = 4;

// [first, last] of every run of code points that a version of Unicode assigns, by Perl's tables; surrogates are
// no text.
function assigned(version) {
  const runs = [];
  const codes = execFileSync('perl', ['-e',
    `for (0 .. 0x10ffff) { next if $_ >= 0xd800 && $_ < 0xe000; print "$_\\n" if chr =~ /\\p{Present_In: ${version}}/ }`],
  { maxBuffer: 1 << 24 });
  for (const line of String(codes).split('\n').filter(Boolean)) {
    const code = Number(line);
    if (runs.length > 0 && runs.at(-1)[1] === code - 1) runs.at(-1)[1] = code;
    else runs.push([code, code]);
  }
  return weighted(runs);
}
// Private use and the ideographs are most of Unicode and all alike: every run counts by its size up to 2,000.
function weighted(runs) {
  return runs.flatMap((run) => Array(Math.ceil(Math.min(2000, run[1] - run[0] + 1) / 20)).fill(run));
}

function anyCodePoints(random, runs) {
  let text = '';
  for (let count = random.below(12); count >= 0; --count) {
    const [first, last] = random.pick(runs);
    text += String.fromCodePoint(first + random.below(last - first + 1));
  }
  return text;
}

async function compare(family, tool, count, seed) {
  const json = compose(family);
  const directory = mkdtempSync(`${tmpdir()}/tokenizer-`);
  writeFileSync(`${directory}/tokenizer.json`, JSON.stringify(json));
  const rust = Tokenizer.fromString(JSON.stringify(json));
  const tokens = json.added_tokens.map((token) => token.content);
  // The Rust library categorises by Unicode 14 and normalises by the combining classes of Unicode 9.
  const runs = assigned(JSON.stringify(json.normalizer ?? '').includes('"NF') ? '9.0' : '14.0');
  const random = makeRandom(seed);
  const ours = spawn(tool, [directory], { stdio: ['pipe', 'pipe', 'pipe'] });
  let rate = '';
  ours.stderr.on('data', (data) => { rate += data; });
  const ended = new Promise((resolve) => { ours.on('close', resolve); });
  const answers = createInterface({ input: ours.stdout })[Symbol.asyncIterator]();
  const differences = {};
  const report = (kind, ...values) => {
    differences[kind] = (differences[kind] ?? 0) + 1;
    if (differences[kind] <= SHOWN) console.log(family, kind, ...values.map((value) => JSON.stringify(value)));
  };
  let done = 0;
  while (done < count) {
    const strings = done === 0 ? [...HARD_STRINGS] : [];
    while (strings.length < Math.min(BATCH, count - done)) {
      if (strings.length % 16 === 0) strings.push(tokenString(random, tokens));
      else strings.push(strings.length % 2 === 0 ? randomString(random, tokens) : anyCodePoints(random, runs));
    }
    ours.stdin.write(strings.map((text) => JSON.stringify(text)).join('\n') + '\n\n');
    const encoded = (await rust.encodeBatch(strings, { addSpecialTokens: false })).map((item) => [...item.getIds()]);
    const decoded = await rust.decodeBatch(encoded, false);
    const skipped = await rust.decodeBatch(encoded, true);
    for (let i = 0; i < strings.length; ++i) {
      const line = await answers.next();
      if (line.done) {
        await ended;
        console.log(`${family}: ${rate.trim()}`);
        return false;
      }
      const answer = JSON.parse(line.value);
      if (answer.error !== undefined) { report('error', strings[i], answer.error); continue; }
      const text = answer.decoded ?? strings[i];
      if (JSON.stringify(answer.ids) !== JSON.stringify(encoded[i])) report('ids', strings[i], answer.ids, encoded[i]);
      else if (text !== decoded[i]) report('decoded', strings[i], text, decoded[i]);
      else if ((answer.skipped ?? text) !== skipped[i]) report('skipped', strings[i], answer.skipped ?? text, skipped[i]);
      if (answer.streamed !== undefined) report('streamed', strings[i], answer.streamed, answer.skipped ?? text);
    }
    done += strings.length;
  }
  ours.stdin.end();
  await ended;
  rmSync(directory, { recursive: true });
  console.log(`${family}: ${done} strings, differences ${JSON.stringify(differences)}; ${rate.trim()}`);
  return Object.keys(differences).length === 0;
}

const { values } = parseArgs({
  options: {
    tool: { type: 'string' },
    count: { type: 'string', default: '100000' },
    seed: { type: 'string', default: '7' },
    family: { type: 'string', multiple: true, default: ['gpt2', 'llama3', 'qwen2', 'llama2', 'mistral', ...Object.keys(makeVariants())] },
  },
});
let good = true;
for (const family of values.family) {
  good = (await compare(family, values.tool, Number(values.count), Number(values.seed))) && good;
}
process.exit(good ? 0 : 1);
