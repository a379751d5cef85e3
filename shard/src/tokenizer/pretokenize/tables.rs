//! The expressions of the supported families as data, and which names mean them.
//!
//! Adding a pre-tokenizer is adding a row here; the tests of the parent module run over every row. The comment over
//! a sequence is the expression it stands for.

use super::{
    super::unicode::{
        BACKTICK, BLANK, DECIMAL, DIGIT_ASCII, LETTER, LETTER_OTHER, LINE, LOWER, LOWER_ASCII, MARK,
        MODIFIER, Mask, NEWLINE, NUMBER, PUNCTUATION, PUNCTUATION_ASCII, SLASH, SPACE, SYMBOL, SYMBOL_ASCII,
        TITLE, UPPER, UPPER_ASCII,
    },
    Class, PreTokenizer, Sequence, Stage, Step, Then,
};

const MANY: u32 = u32::MAX;
/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
const UPPERISH: Mask = UPPER | TITLE | MODIFIER | LETTER_OTHER | MARK;
/// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
const LOWERISH: Mask = LOWER | MODIFIER | LETTER_OTHER | MARK;
/// ``[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]``
const ASCII_SIGN: Mask = PUNCTUATION_ASCII | SYMBOL_ASCII | BACKTICK | SLASH;

const fn of(mask: Mask) -> Class {
    Class { mask, ranges: &[], negated: false }
}
const fn not(mask: Mask) -> Class {
    Class { mask, ranges: &[], negated: true }
}
/// `[..&&[^ranges]]`
const fn without(ranges: &'static [(char, char)], mask: Mask) -> Class {
    Class { mask: !mask, ranges, negated: true }
}
const fn within(ranges: &'static [(char, char)]) -> Class {
    Class { mask: 0, ranges, negated: false }
}
/// `[..]`
const fn one(class: Class) -> Step {
    Step::Repeat { class, min: 1, max: 1 }
}
/// `[..]?`
const fn maybe(class: Class) -> Step {
    Step::Repeat { class, min: 0, max: 1 }
}
/// `[..]+`
const fn some(class: Class) -> Step {
    Step::Repeat { class, min: 1, max: MANY }
}
/// `[..]*`
const fn any(class: Class) -> Step {
    Step::Repeat { class, min: 0, max: MANY }
}
/// `[..]{1,max}`
const fn up_to(max: u32, class: Class) -> Step {
    Step::Repeat { class, min: 1, max }
}
/// `[..]{count}`
const fn exactly(count: u32, class: Class) -> Step {
    Step::Repeat { class, min: count, max: count }
}
const fn seq(steps: &'static [Step]) -> Sequence {
    Sequence { steps, then: Then::Any }
}

/// `'s|'t|'re|'ve|'m|'ll|'d`
const CONTRACTION: Sequence = seq(&[Step::Contraction { any_case: false, optional: false }]);
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
const CONTRACTION_ANY_CASE: Sequence = seq(&[Step::Contraction { any_case: true, optional: false }]);
const CONTRACTION_SUFFIX: Step = Step::Contraction { any_case: true, optional: true };
/// `\s+(?!\S)`
const SPACES_BEFORE_SPACE: Sequence = Sequence { steps: &[some(of(SPACE))], then: Then::Space };
/// `\s+`
const SPACES: Sequence = seq(&[some(of(SPACE))]);
/// `\s*[\r\n]+`
const SPACES_TO_LINE_END: Sequence = seq(&[any(of(SPACE)), some(of(LINE))]);
/// `[^\r\n\p{L}\p{N}]?\p{L}+`
const WORD: Sequence = seq(&[maybe(not(LINE | LETTER | NUMBER)), some(of(LETTER))]);
/// ` ?[^\s\p{L}\p{N}]+[\r\n]*`
const SIGNS: Sequence = seq(&[maybe(of(BLANK)), some(not(SPACE | LETTER | NUMBER)), any(of(LINE))]);
/// ` ?[^\s\p{L}\p{N}]+[\r\n/]*`
const SIGNS_AND_SLASHES: Sequence =
    seq(&[maybe(of(BLANK)), some(not(SPACE | LETTER | NUMBER)), any(of(LINE | SLASH))]);
/// `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
const CAPITALIZED: &[Step] = &[maybe(not(LINE | LETTER | NUMBER)), any(of(UPPERISH)), some(of(LOWERISH))];
/// `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`
const CAPITALS: &[Step] = &[maybe(not(LINE | LETTER | NUMBER)), some(of(UPPERISH)), any(of(LOWERISH))];
/// [`CAPITALIZED`] and `(?i:'s|'t|'re|'ve|'m|'ll|'d)?`
const CAPITALIZED_CONTRACTED: Sequence =
    seq(&[maybe(not(LINE | LETTER | NUMBER)), any(of(UPPERISH)), some(of(LOWERISH)), CONTRACTION_SUFFIX]);
/// [`CAPITALS`] and the same.
const CAPITALS_CONTRACTED: Sequence =
    seq(&[maybe(not(LINE | LETTER | NUMBER)), some(of(UPPERISH)), any(of(LOWERISH)), CONTRACTION_SUFFIX]);

/// `\p{N}`
const DIGIT: Stage = &[seq(&[one(of(NUMBER))])];
/// `\p{N}{1,3}`
const THREE_DIGITS: Stage = &[seq(&[up_to(3, of(NUMBER))])];
/// `\d{1,3}(?=(?:\d{3})*\b)`
const GROUPS_OF_WORDS: Stage = &[Sequence { steps: &[up_to(3, of(DECIMAL))], then: Then::GroupsOfWord }];
/// `(?=(\d{3})+(?!\d))`
const GROUPS: Stage = &[Sequence { steps: &[], then: Then::Groups }];
/// `[0-9][0-9][0-9]`
const THREE_ASCII_DIGITS: Stage = &[seq(&[exactly(3, of(DIGIT_ASCII))])];
/// `[\r\n]`
const LINE_END: Stage = &[seq(&[one(of(LINE))])];
/// `[^\n]+|[\n]+`
const LINES: Stage = &[seq(&[some(not(NEWLINE))]), seq(&[some(of(NEWLINE))])];

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
const GPT2: Stage = &[
    CONTRACTION,
    seq(&[maybe(of(BLANK)), some(of(LETTER))]),
    seq(&[maybe(of(BLANK)), some(of(NUMBER))]),
    seq(&[maybe(of(BLANK)), some(not(SPACE | LETTER | NUMBER))]),
    SPACES_BEFORE_SPACE,
    SPACES,
];

/// The llama 3 expression: three digits at a time.
const LLAMA3: Stage = &[
    CONTRACTION_ANY_CASE,
    WORD,
    seq(&[up_to(3, of(NUMBER))]),
    SIGNS,
    SPACES_TO_LINE_END,
    SPACES_BEFORE_SPACE,
    SPACES,
];

/// The qwen 2 expression: as llama 3, one digit at a time.
const QWEN2: Stage = &[
    CONTRACTION_ANY_CASE,
    WORD,
    seq(&[one(of(NUMBER))]),
    SIGNS,
    SPACES_TO_LINE_END,
    SPACES_BEFORE_SPACE,
    SPACES,
];

/// The qwen 3.5 expression: marks belong to words.
const QWEN35: Stage = &[
    CONTRACTION_ANY_CASE,
    seq(&[maybe(not(LINE | LETTER | NUMBER)), some(of(LETTER | MARK))]),
    seq(&[one(of(NUMBER))]),
    seq(&[maybe(of(BLANK)), some(not(SPACE | LETTER | MARK | NUMBER)), any(of(LINE))]),
    SPACES_TO_LINE_END,
    SPACES_BEFORE_SPACE,
    SPACES,
];

/// As qwen 2, but line ends never follow signs.
const SEED_CODER: Stage = &[
    CONTRACTION_ANY_CASE,
    WORD,
    seq(&[one(of(NUMBER))]),
    seq(&[maybe(of(BLANK)), some(not(SPACE | LETTER | NUMBER))]),
    SPACES_TO_LINE_END,
    SPACES_BEFORE_SPACE,
    SPACES,
];

/// As qwen 2, but one line end at a time.
const BAILING: Stage = &[
    CONTRACTION_ANY_CASE,
    WORD,
    seq(&[one(of(NUMBER))]),
    SIGNS,
    seq(&[any(of(SPACE)), one(of(LINE))]),
    SPACES_BEFORE_SPACE,
    SPACES,
];

/// As llama 3, but digits in one run; behind `\p{N}{1,3}`.
const MINICPM5: Stage = &[
    CONTRACTION_ANY_CASE,
    WORD,
    seq(&[some(of(NUMBER))]),
    SIGNS,
    SPACES_TO_LINE_END,
    SPACES_BEFORE_SPACE,
    SPACES,
];

/// The o200k expression: words end where a capital follows, contractions stay.
const GPT4O: Stage = &[
    CAPITALIZED_CONTRACTED,
    CAPITALS_CONTRACTED,
    seq(&[up_to(3, of(NUMBER))]),
    SIGNS_AND_SLASHES,
    SPACES_TO_LINE_END,
    SPACES_BEFORE_SPACE,
    SPACES,
];

/// `\p{Han}`, of Unicode 17.
const HAN: &[(char, char)] = &[
    ('\u{2e80}', '\u{2e99}'),
    ('\u{2e9b}', '\u{2ef3}'),
    ('\u{2f00}', '\u{2fd5}'),
    ('\u{3005}', '\u{3005}'),
    ('\u{3007}', '\u{3007}'),
    ('\u{3021}', '\u{3029}'),
    ('\u{3038}', '\u{303b}'),
    ('\u{3400}', '\u{4dbf}'),
    ('\u{4e00}', '\u{9fff}'),
    ('\u{f900}', '\u{fa6d}'),
    ('\u{fa70}', '\u{fad9}'),
    ('\u{16fe2}', '\u{16fe3}'),
    ('\u{16ff0}', '\u{16ff6}'),
    ('\u{20000}', '\u{2a6df}'),
    ('\u{2a700}', '\u{2b81e}'),
    ('\u{2b820}', '\u{2cead}'),
    ('\u{2ceb0}', '\u{2ebe0}'),
    ('\u{2ebf0}', '\u{2ee5d}'),
    ('\u{2f800}', '\u{2fa1d}'),
    ('\u{30000}', '\u{3134a}'),
    ('\u{31350}', '\u{33479}'),
];

/// As o200k, but a run of Chinese characters is a piece of its own, and no slashes follow signs. llama.cpp approximates it: words end
/// where a capital follows here, as in the models' own expression.
const KIMI_K2: Stage = &[
    seq(&[some(within(HAN))]),
    seq(&[
        maybe(not(LINE | LETTER | NUMBER)),
        any(without(HAN, UPPERISH)),
        some(without(HAN, LOWERISH)),
        CONTRACTION_SUFFIX,
    ]),
    seq(&[
        maybe(not(LINE | LETTER | NUMBER)),
        some(without(HAN, UPPERISH)),
        any(without(HAN, LOWERISH)),
        CONTRACTION_SUFFIX,
    ]),
    seq(&[up_to(3, of(NUMBER))]),
    SIGNS,
    SPACES_TO_LINE_END,
    SPACES_BEFORE_SPACE,
    SPACES,
];

/// As o200k, one digit at a time; behind [`YOUTU_SCRIPTS`].
const YOUTU: Stage = &[
    CAPITALIZED_CONTRACTED,
    CAPITALS_CONTRACTED,
    seq(&[one(of(NUMBER))]),
    SIGNS_AND_SLASHES,
    SPACES_TO_LINE_END,
    SPACES_BEFORE_SPACE,
    SPACES,
];

/// `[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+`
const YOUTU_SCRIPTS: Stage = &[
    seq(&[some(within(&[('\u{3131}', '\u{318e}'), ('\u{ac00}', '\u{d7a3}')]))]),
    seq(&[some(within(&[
        ('\u{2014}', '\u{2014}'),
        ('\u{2018}', '\u{2019}'),
        ('\u{201c}', '\u{201d}'),
        ('\u{2026}', '\u{2026}'),
        ('\u{3001}', '\u{303f}'),
        ('\u{fe30}', '\u{fe4f}'),
        ('\u{ff01}', '\u{ff01}'),
        ('\u{ff0c}', '\u{ff0c}'),
        ('\u{ff1a}', '\u{ff1b}'),
    ]))]),
    seq(&[some(within(&[('\u{3105}', '\u{312f}')]))]),
    HAN_AND_KANA,
];

/// As o200k without contractions, one digit at a time.
const TEKKEN: Stage = &[
    seq(CAPITALIZED),
    seq(CAPITALS),
    seq(&[one(of(NUMBER))]),
    SIGNS_AND_SLASHES,
    SPACES_TO_LINE_END,
    SPACES_BEFORE_SPACE,
    SPACES,
];

/// ``[\p{P}$+<=>^~|`]+``
const FALCON_SIGNS: Stage = &[seq(&[some(of(PUNCTUATION | SYMBOL_ASCII | BACKTICK))])];
/// `[\p{P}$+<=>^~|]+`
const DEFAULT_SIGNS: Stage = &[seq(&[some(of(PUNCTUATION | SYMBOL_ASCII))])];
/// `\p{N}+`
const DIGITS: Stage = &[seq(&[some(of(NUMBER))])];

/// ` ?[^(\s|.,!?…。，、।۔،)]+`
const BLOOM: Stage = &[seq(&[
    maybe(of(BLANK)),
    some(Class {
        mask: SPACE,
        ranges: &[
            ('!', '!'),
            ('(', ')'),
            (',', ','),
            ('.', '.'),
            ('?', '?'),
            ('|', '|'),
            ('\u{60c}', '\u{60c}'),
            ('\u{6d4}', '\u{6d4}'),
            ('\u{964}', '\u{964}'),
            ('\u{2026}', '\u{2026}'),
            ('\u{3001}', '\u{3002}'),
            ('\u{ff0c}', '\u{ff0c}'),
        ],
        negated: true,
    }),
])];

/// `[一-龥぀-ゟ゠-ヿ]+`
const HAN_AND_KANA: Sequence = seq(&[some(within(&[('\u{3040}', '\u{30ff}'), ('\u{4e00}', '\u{9fa5}')]))]);

/// The main expression of DeepSeek V3.
const DEEPSEEK3: Stage = &[
    seq(&[one(of(ASCII_SIGN)), some(of(UPPER_ASCII | LOWER_ASCII))]),
    seq(&[maybe(not(LINE | LETTER | PUNCTUATION | SYMBOL)), some(of(LETTER | MARK))]),
    seq(&[maybe(of(BLANK)), some(of(PUNCTUATION | SYMBOL)), any(of(LINE))]),
    SPACES_TO_LINE_END,
    SPACES_BEFORE_SPACE,
    SPACES,
];

/// `[一-龥ࠀ-一가-퟿]+`
const EAST_ASIAN: Stage = &[seq(&[some(within(&[('\u{800}', '\u{9fa5}'), ('\u{ac00}', '\u{d7ff}')]))])];

/// The letters of scripts with case, as DeepSeek LLM lists them.
const CASED_LETTERS: &[(char, char)] = &[
    ('\u{41}', '\u{5a}'),
    ('\u{61}', '\u{7a}'),
    ('\u{b5}', '\u{b5}'),
    ('\u{c0}', '\u{d6}'),
    ('\u{d8}', '\u{f6}'),
    ('\u{f8}', '\u{1ba}'),
    ('\u{1bc}', '\u{1bf}'),
    ('\u{1c4}', '\u{293}'),
    ('\u{295}', '\u{2af}'),
    ('\u{370}', '\u{373}'),
    ('\u{376}', '\u{376}'),
    ('\u{377}', '\u{377}'),
    ('\u{37b}', '\u{37d}'),
    ('\u{37f}', '\u{37f}'),
    ('\u{386}', '\u{386}'),
    ('\u{388}', '\u{38a}'),
    ('\u{38c}', '\u{38c}'),
    ('\u{38e}', '\u{3a1}'),
    ('\u{3a3}', '\u{3f5}'),
    ('\u{3f7}', '\u{481}'),
    ('\u{48a}', '\u{52f}'),
    ('\u{531}', '\u{556}'),
    ('\u{10a0}', '\u{10c5}'),
    ('\u{13a0}', '\u{13f5}'),
    ('\u{13f8}', '\u{13fd}'),
    ('\u{1c90}', '\u{1cba}'),
    ('\u{1cbd}', '\u{1cbf}'),
    ('\u{1d00}', '\u{1d2b}'),
    ('\u{1d6b}', '\u{1d77}'),
    ('\u{1d79}', '\u{1d9a}'),
    ('\u{1e00}', '\u{1f15}'),
    ('\u{1f18}', '\u{1f1d}'),
    ('\u{1f20}', '\u{1f45}'),
    ('\u{1f48}', '\u{1f4d}'),
    ('\u{1f50}', '\u{1f57}'),
    ('\u{1f59}', '\u{1f59}'),
    ('\u{1f5b}', '\u{1f5b}'),
    ('\u{1f5d}', '\u{1f5d}'),
    ('\u{1f5f}', '\u{1f7d}'),
    ('\u{1f80}', '\u{1fb4}'),
    ('\u{1fb6}', '\u{1fbc}'),
    ('\u{1fbe}', '\u{1fbe}'),
    ('\u{1fc2}', '\u{1fc4}'),
    ('\u{1fc6}', '\u{1fcc}'),
    ('\u{1fd0}', '\u{1fd3}'),
    ('\u{1fd6}', '\u{1fdb}'),
    ('\u{1fe0}', '\u{1fec}'),
    ('\u{1ff2}', '\u{1ff4}'),
    ('\u{1ff6}', '\u{1ffc}'),
    ('\u{2102}', '\u{2102}'),
    ('\u{2107}', '\u{2107}'),
    ('\u{210a}', '\u{2113}'),
    ('\u{2115}', '\u{2115}'),
    ('\u{2119}', '\u{211d}'),
    ('\u{2124}', '\u{2124}'),
    ('\u{2126}', '\u{2126}'),
    ('\u{2128}', '\u{2128}'),
    ('\u{212a}', '\u{212d}'),
    ('\u{212f}', '\u{2134}'),
    ('\u{2139}', '\u{2139}'),
    ('\u{213c}', '\u{213f}'),
    ('\u{2145}', '\u{2149}'),
    ('\u{214e}', '\u{214e}'),
    ('\u{2183}', '\u{2183}'),
    ('\u{2184}', '\u{2184}'),
    ('\u{2c00}', '\u{2c7b}'),
    ('\u{2c7e}', '\u{2ce4}'),
    ('\u{2ceb}', '\u{2cee}'),
    ('\u{2cf2}', '\u{2cf2}'),
    ('\u{2cf3}', '\u{2cf3}'),
    ('\u{a640}', '\u{a66d}'),
    ('\u{a680}', '\u{a69b}'),
    ('\u{a722}', '\u{a76f}'),
    ('\u{a771}', '\u{a787}'),
    ('\u{a78b}', '\u{a78e}'),
    ('\u{ab70}', '\u{abbf}'),
    ('\u{fb00}', '\u{fb06}'),
    ('\u{fb13}', '\u{fb17}'),
    ('\u{ff21}', '\u{ff3a}'),
    ('\u{ff41}', '\u{ff5a}'),
    ('\u{10400}', '\u{1044f}'),
    ('\u{104b0}', '\u{104d3}'),
    ('\u{104d8}', '\u{104fb}'),
    ('\u{10c80}', '\u{10cb2}'),
    ('\u{10cc0}', '\u{10cf2}'),
    ('\u{118a0}', '\u{118df}'),
    ('\u{1e900}', '\u{1e943}'),
];

/// `\s?` and a run of [`CASED_LETTERS`].
const DEEPSEEK_LETTERS: Stage = &[seq(&[maybe(of(SPACE)), some(within(CASED_LETTERS))])];
/// `\s?[!-/:-~！-／：-～‘-‟　-。]+`
const DEEPSEEK_SIGNS: Stage = &[seq(&[
    maybe(of(SPACE)),
    some(within(&[
        ('!', '/'),
        (':', '~'),
        ('\u{2018}', '\u{201f}'),
        ('\u{3000}', '\u{3002}'),
        ('\u{ff01}', '\u{ff0f}'),
        ('\u{ff1a}', '\u{ff5e}'),
    ])),
])];
/// `\s+$`
const TRAILING_SPACES: Stage = &[Sequence { steps: &[some(of(SPACE))], then: Then::End }];
/// `\s?\p{L}+`
const SPACED_LETTERS: Stage = &[seq(&[maybe(of(SPACE)), some(of(LETTER))])];
/// `\s?\p{P}+`
const SPACED_SIGNS: Stage = &[seq(&[maybe(of(SPACE)), some(of(PUNCTUATION))])];

const fn row(names: &'static [&'static str], stages: &'static [Stage]) -> PreTokenizer {
    PreTokenizer { names, stages, ignore_merges: false, add_bos: false, composes: false }
}

const fn composed(names: &'static [&'static str], stages: &'static [Stage]) -> PreTokenizer {
    PreTokenizer { composes: true, ..row(names, stages) }
}

/// Every pre-tokenizer there is.
pub static ALL: &[PreTokenizer] = &[
    row(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "modern-bert",
        ],
        &[GPT2],
    ),
    row(&["default"], &[DEFAULT_SIGNS, GPT2, DIGITS, THREE_ASCII_DIGITS]),
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        stages: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
        composes: false,
    },
    row(&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], &[LLAMA3]),
    row(
        &["stablelm2", "hunyuan", "megrez", "deepseek-r1-qwen", "kormo", "grok-2", "solar-open", "f2llmv2"],
        &[QWEN2],
    ),
    composed(&["qwen2"], &[QWEN2]),
    composed(&["qwen35"], &[QWEN35]),
    row(&["seed-coder"], &[SEED_CODER]),
    row(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    PreTokenizer {
        names: &["minicpm5"],
        stages: &[THREE_DIGITS, MINICPM5],
        ignore_merges: true,
        add_bos: false,
        composes: false,
    },
    row(&["laguna"], &[LINES, QWEN2]),
    row(&["tiny_aya", "cohere2moe"], &[GROUPS_OF_WORDS, GPT4O]),
    row(&["superbpe"], &[DIGITS, GROUPS]),
    row(&["gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"], &[GPT4O]),
    PreTokenizer {
        names: &["granite-embed-multi-97m"],
        stages: &[GPT4O],
        ignore_merges: true,
        add_bos: false,
        composes: false,
    },
    PreTokenizer {
        names: &["youtu"],
        stages: &[YOUTU_SCRIPTS, YOUTU],
        ignore_merges: true,
        add_bos: false,
        composes: false,
    },
    PreTokenizer {
        names: &["kimi-k2"],
        stages: &[KIMI_K2],
        ignore_merges: true,
        add_bos: false,
        composes: false,
    },
    PreTokenizer {
        names: &["tekken"],
        stages: &[TEKKEN],
        ignore_merges: true,
        add_bos: true,
        composes: false,
    },
    row(
        &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[DIGIT, GPT2],
    ),
    row(&["falcon"], &[FALCON_SIGNS, GPT2, THREE_ASCII_DIGITS]),
    row(&["bloom", "poro-chat", "gpt3-finnish"], &[BLOOM]),
    row(&["viking"], &[BLOOM, DIGIT]),
    row(&["deepseek-llm"], &[LINE_END, DEEPSEEK_LETTERS, DEEPSEEK_SIGNS, TRAILING_SPACES, EAST_ASIAN, DIGIT]),
    row(&["deepseek-coder"], &[LINE_END, SPACED_LETTERS, SPACED_SIGNS, EAST_ASIAN, DIGIT]),
    row(&["deepseek-v3", "hunyuan-dense", "joyai-llm"], &[THREE_DIGITS, &[HAN_AND_KANA], DEEPSEEK3]),
];
