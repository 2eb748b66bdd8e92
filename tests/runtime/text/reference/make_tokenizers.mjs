// Trains a small BPE for every family of published tokenizer.json files and writes it with the structure, flags and
// regular expressions of that family; then variants.json. The training text is strings.mjs and the demo's passages.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { HARD_STRINGS, makeRandom, randomString } from './strings.mjs';
import { makeVariants } from './variants.mjs';

const METASPACE = '\u2581';
const GPT2_WORDS = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;
const LLAMA3_REGEX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const QWEN2_REGEX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

function trainingText() {
  const random = makeRandom(1);
  const lines = readFileSync('../../../../deploy/demo/questions.jsonl', 'utf8').split('\n').slice(0, 40).filter(Boolean)
    .map((line) => JSON.parse(line).context);
  for (let i = 0; i < 400; ++i) lines.push(randomString(random, []));
  return lines.concat(HARD_STRINGS);
}

// Byte-level spelling of GPT-2.
const BYTE_CHARACTERS = (() => {
  const itself = (b) => (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  let next = 0x100;
  return Array.from({ length: 256 }, (_, b) => String.fromCharCode(itself(b) ? b : next++));
})();
const spellBytes = (text) => Array.from(Buffer.from(text, 'utf8'), (b) => BYTE_CHARACTERS[b]);

// Merges the most frequent adjacent pair until the vocabulary is full; ties go to the smaller spelling.
function train(words, alphabet, merges) {
  const counts = new Map();
  for (const symbols of words) {
    const key = symbols.join('\u0000');
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  let items = [...counts].map(([key, count]) => ({ symbols: key.split('\u0000'), count })).filter((item) => item.symbols.length > 1);
  const vocabulary = [...alphabet];
  const known = new Set(vocabulary);
  const list = [];
  while (list.length < merges) {
    const pairs = new Map();
    for (const { symbols, count } of items) {
      for (let i = 0; i + 1 < symbols.length; ++i) {
        if (!known.has(symbols[i]) || !known.has(symbols[i + 1])) continue;
        const pair = `${symbols[i]}\u0000${symbols[i + 1]}`;
        pairs.set(pair, (pairs.get(pair) ?? 0) + count);
      }
    }
    let best = null;
    for (const [pair, count] of pairs) {
      if (best === null || count > best[1] || (count === best[1] && pair < best[0])) best = [pair, count];
    }
    if (best === null || best[1] < 2) break;
    const [left, right] = best[0].split('\u0000');
    list.push([left, right]);
    if (!known.has(left + right)) vocabulary.push(left + right);
    known.add(left + right);
    for (const item of items) {
      for (let i = 0; i + 1 < item.symbols.length; ++i) {
        if (item.symbols[i] === left && item.symbols[i + 1] === right) item.symbols.splice(i, 2, left + right);
      }
    }
    items = items.filter((item) => item.symbols.length > 1);
  }
  return { vocabulary, merges: list };
}

const special = (id, content, more = {}) => ({ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true, ...more });
const byteLevel = (more = {}) => ({ type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true, ...more });
const splitThenBytes = (regex) => ({
  type: 'Sequence',
  pretokenizers: [{ type: 'Split', pattern: { Regex: regex }, behavior: 'Isolated', invert: false }, byteLevel({ use_regex: false })],
});
const spDecoder = { type: 'Sequence', decoders: [{ type: 'Replace', pattern: { String: METASPACE }, content: ' ' }, { type: 'ByteFallback' }, { type: 'Fuse' }, { type: 'Strip', content: ' ', start: 1, stop: 0 }] };
const template = (id, token) => ({
  type: 'TemplateProcessing',
  single: [{ SpecialToken: { id: token, type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
  pair: [{ SpecialToken: { id: token, type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }, { SpecialToken: { id: token, type_id: 1 } }, { Sequence: { id: 'B', type_id: 1 } }],
  special_tokens: { [token]: { id: token, ids: [id], tokens: [token] } },
});
const model = (vocabulary, merges, more) => ({
  type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false, byte_fallback: false, ignore_merges: false,
  vocab: Object.fromEntries(vocabulary.map((token, id) => [token, id])), merges, ...more,
});

const text = trainingText();
const bpeOfWords = (regex) => train(text.flatMap((line) => (line.match(regex) ?? []).map(spellBytes)), BYTE_CHARACTERS, 900);
const asStrings = (merges) => merges.map((pair) => pair.join(' '));
// JavaScript of today has no (?i:...); the training words need not be the regex's own.
const withoutInline = (regex) => new RegExp(regex.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"), 'gu');

function sentencePiece() {
  const counts = new Map();
  const lines = text.map((line) => METASPACE + line.replaceAll(' ', METASPACE));
  for (const line of lines) for (const c of line) counts.set(c, (counts.get(c) ?? 0) + 1);
  const characters = [...counts].filter(([c, n]) => n >= 6 && c !== '\n').map(([c]) => c).sort();
  const words = lines.flatMap((line) => line.match(/\u2581*[^\u2581]+|\u2581+/g) ?? []).map((word) => [...word]);
  const bytes = Array.from({ length: 256 }, (_, b) => `<0x${b.toString(16).toUpperCase().padStart(2, '0')}>`);
  const trained = train(words, characters, 700);
  return { vocabulary: ['<unk>', '<s>', '</s>', ...bytes, ...trained.vocabulary], merges: trained.merges };
}

function families() {
  const result = {};
  const gpt2 = bpeOfWords(GPT2_WORDS);
  const eot = gpt2.vocabulary.length;
  gpt2.vocabulary.push('<|endoftext|>');
  result.gpt2 = {
    version: '1.0', truncation: null, padding: null, added_tokens: [special(eot, '<|endoftext|>', { normalized: true })], normalizer: null,
    pre_tokenizer: byteLevel(), post_processor: byteLevel({ add_prefix_space: true }), decoder: byteLevel({ add_prefix_space: true }),
    model: model(gpt2.vocabulary, asStrings(gpt2.merges), { continuing_subword_prefix: '', end_of_word_suffix: '' }),
  };
  const llama3 = bpeOfWords(withoutInline(LLAMA3_REGEX));
  const begin = llama3.vocabulary.length;
  // Whole words that no merge makes: ignore_merges finds them all the same.
  const names = ['<|begin_of_text|>', '<|end_of_text|>', '<|start_header_id|>', '<|end_header_id|>', '<|eot_id|>'];
  const words = ['\u0120Straße', 'jumps'].map((word) => spellBytes(word.replace('\u0120', ' ')).join('')).filter((word) => !llama3.vocabulary.includes(word));
  result.llama3 = {
    version: '1.0', truncation: null, padding: null, added_tokens: names.map((name, i) => special(begin + words.length + i, name)), normalizer: null,
    pre_tokenizer: splitThenBytes(LLAMA3_REGEX),
    post_processor: { type: 'Sequence', processors: [byteLevel({ add_prefix_space: true, trim_offsets: false }), template(begin + words.length, names[0])] },
    decoder: byteLevel({ add_prefix_space: true }), model: model([...llama3.vocabulary, ...words], llama3.merges, { ignore_merges: true }),
  };
  const qwen2 = bpeOfWords(withoutInline(QWEN2_REGEX));
  const first = qwen2.vocabulary.length;
  result.qwen2 = {
    version: '1.0', truncation: null, padding: null,
    added_tokens: [special(first, '<|endoftext|>'), special(first + 1, '<|im_start|>'), special(first + 2, '<|im_end|>'),
      special(first + 3, '<tool_call>', { special: false }), special(first + 4, '</tool_call>', { special: false })],
    normalizer: { type: 'NFC' }, pre_tokenizer: splitThenBytes(QWEN2_REGEX), post_processor: byteLevel({ trim_offsets: false, use_regex: false }),
    decoder: byteLevel({ trim_offsets: false, use_regex: false }), model: model(qwen2.vocabulary, asStrings(qwen2.merges), { continuing_subword_prefix: '', end_of_word_suffix: '' }),
  };
  const piece = sentencePiece();
  const base = [special(0, '<unk>'), special(1, '<s>'), special(2, '</s>')];
  const spModel = { unk_token: '<unk>', fuse_unk: true, byte_fallback: true };
  result.llama2 = {
    version: '1.0', truncation: null, padding: null, added_tokens: base,
    normalizer: { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: METASPACE }, { type: 'Replace', pattern: { String: ' ' }, content: METASPACE }] },
    pre_tokenizer: null, post_processor: template(1, '<s>'), decoder: spDecoder, model: model(piece.vocabulary, asStrings(piece.merges), spModel),
  };
  const instruct = ['[INST]', '[/INST]'];
  result.mistral = {
    version: '1.0', truncation: null, padding: null, added_tokens: [...base, ...instruct.map((name, i) => special(piece.vocabulary.length + i, name))], normalizer: null,
    pre_tokenizer: { type: 'Metaspace', replacement: METASPACE, prepend_scheme: 'first', split: false }, post_processor: template(1, '<s>'), decoder: spDecoder,
    model: model(piece.vocabulary, piece.merges, spModel),
  };
  return result;
}

for (const [name, tokenizer] of Object.entries(families())) {
  mkdirSync(name, { recursive: true });
  writeFileSync(`${name}/tokenizer.json`, JSON.stringify(tokenizer) + '\n');
  console.log(name, Object.keys(tokenizer.model.vocab).length, 'tokens', tokenizer.model.merges.length, 'merges');
}
writeFileSync('variants.json', JSON.stringify(makeVariants(), null, 1) + '\n');
