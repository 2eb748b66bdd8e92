// The strings that tokenizers are compared on: hard cases by hand, then random ones from a seed.

export const HARD_STRINGS = [
  '', ' ', '  ', '   ', '\n', '\n\n', ' \n', '\n ', '\t', '\r\n', ' \r\n \r\n  ', 'a', ' a', 'a ', ' a ', '  a  b   c    ',
  "I'm you're he's we'll they've I'd can't", "I'M YOU'RE HE'S WE'LL THEY'VE I'D CAN'T", "'s's'S 'T'll'LL''ve", "x'\u017f y'\u017f",
  'x\u2019s don\u2019t', '1', '12', '123', '1234', '12345678901', '3.14159', '1,000,000', '\u0663\u0664\u0665', '\u00bd \u00b2\u00b3 \u2167 \u2460\u2461',
  'caf\u00e9 cafe\u0301', '\u00c5 A\u030a \u212b', '\u1e9b\u0323', '\uac00 \u1100\u1161', 'e\u0301\u0301\u0327', '\ufb01 \ufb03',
  '\u4f60\u597d\uff0c\u4e16\u754c\uff01', '\u3053\u3093\u306b\u3061\u306f\u4e16\u754c', '\uc548\ub155\ud558\uc138\uc694', '\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!',
  '\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645', '\u05e9\u05dc\u05d5\u05dd', '\u0928\u092e\u0938\u094d\u0924\u0947', '\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35', '\u00df\u1e9e\u0130\u0131',
  '\ud83d\ude00', '\ud83d\udc69\u200d\ud83d\udc69\u200d\ud83d\udc67', '\ud83c\uddeb\ud83c\uddf7', '\ud83d\udc4d\ud83c\udffd', '\u2764\ufe0f', '\ud835\udd04\ud835\udd05', '\ud800\udf48 \ud840\udc00',
  '\u00a0', 'a\u00a0b', '\u3000\u3000x', '\u2003 \u2009', '\u0085', 'a\u0085b', '\u2028\u2029', '\u180e', 'a\u180eb', '\u200b', 'a\u200bb', '\ufeffa', '\u001c\u001d', 'a\u0000b', '\u007f', '\u00ad',
  '\u2581', ' \u2581 \u2581\u2581a', 'a\u2581b', '<0x0A>', '<0xZZ>', '<unk>', '</s', '<s>a</s>', '<s> a </s> b', '[INST] hi [/INST]', ' [INST]x[/INST] ',
  '<|endoftext|>', 'a<|endoftext|>b', '<|endoftext|><|endoftext|>', '<|im_start|>user\nhi<|im_end|>\n', '<|im_start', '<tool_call>\n{"a": 1}\n</tool_call>',
  '<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>', '<|begin|><|user|>x\ny<|assistant|>', ' <|end|> ',
  'def f(x):\n    return x ** 2\n\n\n\tif (a!=b) {\r\n\t\tfoo();;\r\n\t}', '{"a": [1, 2.5e-3, null], "b": "\\u00e9"}', 'https://example.org/a_b?c=d&e=%20#f', 'a_b-c.d/e\\f', '#!@$%^&*()_+-=[]{}|;:,.<>?/~`',
  '!!!???...', ' !', '  !', '!\n', '!\n\n', '! \n \n', 'a\n b\n  c\n   d', 'a  \nb', 'x \t\n y', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',
  'abababababababababababababababababababababababababababababababababababab', '                                                                  x', '\n\n\n\n\n\n\n\n\n\n\n\n', '==========================', '1234567890'.repeat(9),
  'ththththehehehe the theththe', 'The quick brown fox jumps over the lazy dog.', 'MixedCASEWords AndCamelCase snake_case', '\u0301', 'a\u0301', ' \u0301', '\u0915\u094d\u0937', '\u0d15\u0d4d', '\u2160\u2161', 'x\u00b2', '\u01c5\u02b0',
];

// A small generator with a state of 32 bits (mulberry32).
export function makeRandom(seed) {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  return { below: (n) => Math.floor(next() * n), pick: (list) => list[Math.floor(next() * list.length)] };
}

const WORDS = ("the of and to in a is that for it was on are as with his they at be this from have or by one had not but what "
  + "Question Answer painter Velkin Hamton founded museum capital seventh 1987 42 007 naïve façade über Straße żółw").split(' ');
const SPACES = [' ', ' ', ' ', '  ', '   ', '\n', '\n\n', '\t', '\r\n', '\u00a0', '\u3000', '\u2003', '\u0085', '\u2028', ' \n', '\u200b', '\u180e'];
const PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~".split('').concat(['...', '\u2019', '\u201c', '\u2014', '\u3002', '\uff0c', '\u00bf']);
const CONTRACTIONS = ["'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'Ll", "'d", "'x", "\u2019s"];
// Blocks whose assigned code points have not changed for many Unicode versions.
const BLOCKS = [[0x20, 0x7e], [0xa0, 0xff], [0x100, 0x17f], [0x250, 0x2ae], [0x300, 0x36f], [0x391, 0x3a1], [0x410, 0x44f], [0x5d0, 0x5ea], [0x620, 0x64a],
  [0x660, 0x669], [0x904, 0x939], [0x93e, 0x94d], [0xe01, 0xe30], [0x10d0, 0x10f0], [0x1e00, 0x1eff], [0x2010, 0x2027], [0x2030, 0x205e], [0x2070, 0x2071], [0x2080, 0x208e], [0x20a0, 0x20b5],
  [0x2150, 0x2188], [0x2190, 0x23f3], [0x2460, 0x24ff], [0x2500, 0x27bf], [0x3001, 0x303f], [0x3041, 0x3096], [0x30a1, 0x30fa], [0x4e00, 0x9fa5], [0xac00, 0xd7a3], [0xe000, 0xe0ff],
  [0xf900, 0xfa2d], [0xff01, 0xff5e], [0x10330, 0x1034a], [0x1d400, 0x1d454], [0x1f300, 0x1f5ff], [0x1f600, 0x1f64f], [0x20000, 0x2a6d6]];

export function randomString(random, tokens) {
  let text = '';
  for (let count = random.below(14); count >= 0; --count) {
    switch (random.below(10)) {
      case 0: case 1: case 2: text += random.pick(WORDS); break;
      case 3: case 4: text += random.pick(SPACES); break;
      case 5: text += random.pick(PUNCTUATION); break;
      case 6: text += random.pick(CONTRACTIONS); break;
      case 7: text += String(random.below(10 ** (1 + random.below(6)))); break;
      case 8: {
        const [first, last] = random.pick(BLOCKS);
        for (let i = random.below(4); i >= 0; --i) text += String.fromCodePoint(first + random.below(last - first + 1));
        break;
      }
      case 9: text += random.below(4) === 0 && tokens.length > 0 ? random.pick(tokens) : random.pick(SPACES) + random.pick(WORDS); break;
    }
  }
  return text;
}

// Added tokens among what their flags look at: white space, letters, marks and each other.
export function tokenString(random, tokens) {
  const around = ['', '', ' ', '  ', '\n', '\t\u00a0', 'a', 'Z', '_', '9', '\u0301', '\u2581', '-', '\u00e9', '\u200d', 'word', 'Word '];
  let text = '';
  for (let count = random.below(6); count >= 0; --count) {
    let token = tokens.length > 0 ? random.pick(tokens) : 'x';
    if (random.below(6) === 0) token = token.toUpperCase();
    text += random.pick(around) + token + random.pick(around);
  }
  return text;
}
