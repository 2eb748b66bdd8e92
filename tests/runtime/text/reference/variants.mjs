// Tokenizers that differ from one of the families in some members of their tokenizer.json: what families leave out of
// the things that this runtime reads. `npm run generate` writes variants.json, {NAME: {base, members}}, and
// variants_golden.json for the C++ test.
import { readFileSync } from 'node:fs';

const METASPACE = '\u2581';
const token = (id, content, more = {}) => ({ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: false, ...more });
const byteLevel = (more = {}) => ({ type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true, ...more });
const sequence = (...pretokenizers) => ({ type: 'Sequence', pretokenizers });
const split = (pattern, behavior = 'Isolated', invert = false) => ({ type: 'Split', pattern, behavior, invert });
const metaspace = (more) => ({ type: 'Metaspace', replacement: METASPACE, ...more });
const normalizers = (...steps) => ({ type: 'Sequence', normalizers: steps });

const TEKKEN_REGEX = '[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+'
  + '|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*'
  + '|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';

// Every flag of an added token, alone and together, and spellings that begin with each other.
const flagged = (first, common = {}) => [
  ['<plain>', {}], ['<left>', { lstrip: true }], ['<right>', { rstrip: true }], ['<both>', { lstrip: true, rstrip: true }],
  ['word', { single_word: true }], ['<word>', { single_word: true, lstrip: true, rstrip: true }], ['<plain><left>', { special: true }],
  ['<special>', { special: true, lstrip: true }], ['\u00c9cole', {}], [' two words ', {}],
].map(([content, more], i) => token(first + i, content, { ...common, ...more }));

const size = (base) => {
  const file = read(base);
  return Math.max(...Object.values(file.model.vocab), ...file.added_tokens.map((item) => item.id)) + 1;
};
const added = (base, tokens) => [...read(base).added_tokens, ...tokens];
export const read = (family) => JSON.parse(readFileSync(`${family}/tokenizer.json`, 'utf8'));

export function makeVariants() {
  const gpt2 = size('gpt2'), llama2 = size('llama2'), qwen2 = size('qwen2');
  const meta = (more, decoder = more) => ({ base: 'llama2', members: { normalizer: null, pre_tokenizer: metaspace(more), decoder: metaspace(decoder) } });
  const words = (pre_tokenizer) => ({ base: 'gpt2', members: { pre_tokenizer, post_processor: null, decoder: byteLevel() } });
  const normal = (normalizer, more = {}) => ({ base: 'gpt2', members: { normalizer, ...more } });
  return {
    metaspace_always: meta({ prepend_scheme: 'always', split: true }),
    metaspace_always_whole: meta({ prepend_scheme: 'always', split: false }),
    metaspace_first_split: meta({ prepend_scheme: 'first', split: true }),
    metaspace_never: meta({ prepend_scheme: 'never', split: true }),
    metaspace_never_whole: meta({ prepend_scheme: 'never', split: false }),
    metaspace_old_spelling: meta({ add_prefix_space: true }),
    metaspace_with_added_tokens: { base: 'llama2', members: { ...meta({ prepend_scheme: 'always', split: true }).members, added_tokens: added('llama2', flagged(llama2)) } },
    metaspace_first_with_added_tokens: { base: 'llama2', members: { ...meta({ prepend_scheme: 'first', split: false }).members, added_tokens: added('llama2', flagged(llama2, { normalized: true })) } },
    prepend_with_added_tokens: { base: 'llama2', members: { added_tokens: added('llama2', flagged(llama2, { normalized: true })) } },
    added_tokens: { base: 'gpt2', members: { added_tokens: added('gpt2', flagged(gpt2)) } },
    added_tokens_prefix_space: { base: 'gpt2', members: { pre_tokenizer: byteLevel({ add_prefix_space: true }), added_tokens: added('gpt2', flagged(gpt2)) } },
    added_tokens_lowercased: normal({ type: 'Lowercase' }, { added_tokens: added('gpt2', [...flagged(gpt2, { normalized: true }), token(gpt2 + 10, '<RAW>'), token(gpt2 + 11, '<Big>', { normalized: true })]) }),
    added_tokens_nfkc: normal({ type: 'NFKC' }, { added_tokens: added('gpt2', [...flagged(gpt2, { normalized: true }), token(gpt2 + 10, '\ufb01x', { normalized: true }), token(gpt2 + 11, '\ufb03')]) }),
    qwen3: { base: 'qwen2', members: { added_tokens: added('qwen2', ['<|object_ref_start|>', '<|vision_pad|>', '<tool_response>', '</tool_response>', '<think>', '</think>'].map((name, i) => token(qwen2 + i, name, { special: i < 2 }))) } },
    tekken: { base: 'llama3', members: { pre_tokenizer: sequence(split({ Regex: TEKKEN_REGEX }), byteLevel({ use_regex: false })), post_processor: null, decoder: byteLevel() } },
    smollm: words(sequence({ type: 'Digits', individual_digits: true }, byteLevel())),
    digits_together: words(sequence({ type: 'Digits', individual_digits: false }, byteLevel())),
    deepseek: words(sequence(split({ Regex: '[\\r\\n]' }), split({ Regex: '\\s?\\p{L}+' }), split({ Regex: '\\s?\\p{P}+' }), split({ Regex: '[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+' }),
      { type: 'Digits', individual_digits: true }, byteLevel({ use_regex: false }))),
    split_previous: words(sequence(split({ String: ' ' }, 'MergedWithPrevious'), byteLevel({ use_regex: false }))),
    split_next: words(sequence(split({ Regex: '\\s' }, 'MergedWithNext'), byteLevel({ use_regex: false }))),
    split_contiguous: words(sequence(split({ Regex: '\\p{P}' }, 'Contiguous'), byteLevel({ use_regex: false }))),
    split_removed: words(sequence(split({ String: ' ' }, 'Removed'), byteLevel({ use_regex: false }))),
    split_inverted: words(sequence(split({ Regex: '\\p{L}+|\\p{N}' }, 'MergedWithPrevious', true), byteLevel({ use_regex: false }))),
    split_removed_inverted: words(sequence(split({ Regex: '\\w+|[^\\w\\s]+' }, 'Removed', true), byteLevel({ use_regex: false }))),
    normal_nfkc_lowercase_strip: normal(normalizers({ type: 'NFKC' }, { type: 'Lowercase' }, { type: 'Strip', strip_left: true, strip_right: true })),
    normal_nfd: normal({ type: 'NFD' }),
    normal_nfkd_strip_right: normal(normalizers({ type: 'NFKD' }, { type: 'Strip', strip_left: false, strip_right: true })),
    normal_replace: normal(normalizers({ type: 'Replace', pattern: { Regex: '\\s{2,}|\\p{Nd}' }, content: '#' }, { type: 'Prepend', prepend: '> ' })),
  };
}

// The tokenizer.json of a family or a variant.
export function compose(name) {
  const variant = makeVariants()[name];
  return variant === undefined ? read(name) : { ...read(variant.base), ...variant.members };
}
