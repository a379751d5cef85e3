//! Text to token ids and back, as the model was trained.
//!
//! What: a [`Tokenizer`] is built from the `tokenizer.ggml.*` metadata of a GGUF file, with or without weights in it.
//! Byte-level BPE (`gpt2`), SentencePiece BPE (`llama`) and its variant with merges (`gemma4`), WordPiece (`bert`) and unigram (`t5`) are here; others are refused by name. [`chat`] renders conversations with the model's own template.
//!
//! Why our own: text comes from strangers and so do vocabularies. Nothing here backtracks, recurses over input or looks at anything
//! more than O(n log n) times, and no table is larger than the file it came from asks for.
//!
//! How: special tokens are found first ([`special`]); what lies between them is cut into pieces ([`pretokenize`]) and
//! merged ([`bpe`], [`spm`], both on [`merge`]) or looked up ([`wordpiece`], [`unigram`]). [`stream`] goes the other way, one token at a time.
//!
//! Limits: a text is at most [`MAX_TEXT_BYTES`], or tokenized in parts ([`Tokenizer::encode_long`]). Text for the
//! vocabularies `qwen2` and `qwen35` is composed (NFC), as Hugging Face's tokenizers do it and the models were trained; llama.cpp does
//! not, so that text with separate accents has other tokens there. No other normalization is done. `clean_up_tokenization_spaces`
//! is not applied when decoding.

use crate::{Error, Result, gguf::Metadata};

pub mod bpe;
pub mod chat;
pub mod definition;
mod long;
pub mod merge;
pub mod pretokenize;
pub mod special;
pub mod spm;
pub mod stream;
pub mod unicode;
pub mod unigram;
pub mod vocabulary;
pub mod wordpiece;

pub use definition::{Definition, SpecialIds};
use special::{Fragment, Specials};
pub use stream::Detokenizer;
use vocabulary::{Kind, Vocabulary};

/// Longer texts are refused. It is about a million tokens, more than any context holds; the cost of a text this long
/// is below 200 MB for a moment.
pub const MAX_TEXT_BYTES: usize = 4 << 20;

/// Bytes that a byte of text has at most in Unicode's composed form.
const LONGEST_COMPOSED: usize = 3;

/// A character without a token becomes one that stands for nothing.
const MAX_CHARACTER_BYTES: usize = 4;

/// Texts of control tokens that end a turn, whatever the metadata calls them.
const END_OF_TURN: &[&str] = &[
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|user|>",
    "<|observation|>",
    "</s>",
    "<eos>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<turn|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
];

/// Whether `text` can only be meant as a mark. The names of roles end a reply too, but are left as the file has them.
fn ends_reply(text: &str) -> bool {
    !["<|user|>", "<|observation|>"].contains(&text) && END_OF_TURN.contains(&text)
}

/// What to do with the ends of a text and the special tokens in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encode {
    /// Add BOS in front and EOS behind where the model wants them.
    pub bos: bool,
    /// Recognize control tokens written out in the text. Never for a stranger's text: it could forge roles. User-defined tokens, which are text, are always recognized.
    pub special: bool,
}

impl Encode {
    /// Text as it stands: nothing added, special text stays text.
    pub const PLAIN: Self = Self { bos: false, special: false };
    /// A prompt written by hand: BOS if the model wants it, special text stays text.
    pub const TEXT: Self = Self { bos: true, special: false };
    /// What a chat template rendered: its special text is meant.
    pub const TEMPLATE: Self = Self { bos: false, special: true };
}

enum Model {
    Bpe(Box<bpe::Bpe>),
    Spm(Box<spm::Spm>),
    WordPiece(Box<wordpiece::WordPiece>),
    Unigram(Box<unigram::Unigram>),
}

/// A model's tokens and how to use them. Ids are the rows of its embedding.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    specials: Specials,
    model: Model,
    bos: Option<u32>,
    eos: Option<u32>,
    stop_ids: Vec<u32>,
    /// Bytes of the longest token, at least those of a character.
    longest: usize,
    add_bos: bool,
    add_eos: bool,
    add_sep: bool,
    add_space_prefix: bool,
    strip_after_special: bool,
}

impl Tokenizer {
    /// The tokenizer of a GGUF file, which may be one without tensors. Errors as for [`Tokenizer::new`].
    pub fn from_gguf(metadata: &Metadata) -> Result<Self> {
        Self::new(Definition::from_gguf(metadata)?)
    }

    /// Builds a tokenizer. Errors: [`Error::Unsupported`] for a model or pre-tokenizer that is not here,
    /// [`Error::Malformed`] for lists that do not fit together.
    pub fn new(definition: Definition<'_>) -> Result<Self> {
        let d = definition;
        let count = d.tokens.len();
        if count == 0 {
            return Err(Error::malformed("tokenizer.ggml.tokens", "missing or empty"));
        }
        for (key, len) in [("token_type", d.kinds.len()), ("scores", d.scores.len())] {
            if len != 0 && len < count {
                return Err(Error::malformed(
                    format!("tokenizer.ggml.{key}"),
                    format!("{len} entries for {count} tokens"),
                ));
            }
        }
        let Some(usual) = definition::usual_ids(d.model) else {
            return Err(Error::unsupported(format!("tokenizer {} (tokenizer.ggml.model)", d.model)));
        };
        // Granite Embedding 311M multilingual names the other kind of vocabulary, and its bytes are text by their type.
        let renamed = d.model == "gpt2" && d.pre == Some(spm::RENAMED);
        let listed = d.model == "gemma4" || renamed;
        let spm = d.model != "gpt2" || listed;
        let id = |given, default| definition::id_of(given, default, count);
        let [bos, eos, unknown] =
            [(d.special.bos, usual[0]), (d.special.eos, usual[1]), (d.special.unknown, usual[2])]
                .map(|(given, usual)| id(given, usual));
        let (eot, eom) = (id(d.special.eot, None), id(d.special.eom, None));
        let ends = [bos, eos, eot, eom];
        let kind = |id: usize| match d.kinds.get(id).copied().unwrap_or(Kind::Normal) {
            // Some files call their ends user-defined, which a stranger's text could then write.
            Kind::UserDefined if ends.contains(&Some(id as u32)) || ends_reply(d.tokens[id]) => Kind::Control,
            Kind::Normal if renamed && spm::byte_of(d.tokens[id].as_bytes()).is_some() => Kind::Byte,
            kind => kind,
        };
        let mut vocabulary = Vocabulary::with_capacity(count);
        let mut bytes = Vec::new();
        for (id, token) in d.tokens.iter().enumerate() {
            bytes.clear();
            match kind(id) {
                Kind::Normal | Kind::Unused if !spm => bpe::unspell(token, &mut bytes),
                _ => bytes.extend_from_slice(token.as_bytes()),
            }
            vocabulary.push(&bytes, kind(id))?;
        }
        let add_space_prefix = d.add_space_prefix.unwrap_or(!listed);
        let word_piece = d.model == "bert";
        let (model, add_bos) = if word_piece {
            (Model::WordPiece(Box::new(wordpiece::WordPiece::new(&vocabulary, unknown))), true)
        } else if d.model == "t5" {
            let whitespaces = (add_space_prefix, d.remove_extra_whitespaces.unwrap_or(true));
            let unigram = unigram::Unigram::new(&vocabulary, &d.scores, unknown, &d.rules, whitespaces)?;
            (Model::Unigram(Box::new(unigram)), false)
        } else if spm {
            let options = spm::Options {
                add_space_prefix,
                remove_extra_whitespaces: d.remove_extra_whitespaces.unwrap_or(false),
            };
            let spm = spm::Spm::new(&vocabulary, &d.scores, unknown, options);
            let spm = if listed { spm.with_merges(&vocabulary, &d.merges)? } else { spm };
            (Model::Spm(Box::new(spm)), !renamed)
        } else {
            let rule = pretokenize::by_name(d.pre.unwrap_or("default"))?;
            if d.merges.is_empty() {
                return Err(Error::malformed("tokenizer.ggml.merges", "missing or empty"));
            }
            (Model::Bpe(Box::new(bpe::Bpe::new(rule, &vocabulary, &d.merges)?)), rule.add_bos)
        };
        let stop_ids = stop_ids(&vocabulary, [eos, eot, eom]);
        let longest = (0..count as u32).map(|id| vocabulary.text(id).len()).max().unwrap_or(0);
        Ok(Self {
            specials: Specials::new(&vocabulary)?,
            vocabulary,
            model,
            bos,
            eos,
            stop_ids,
            longest: longest.max(MAX_CHARACTER_BYTES),
            add_bos: d.add_bos.unwrap_or(add_bos),
            add_eos: d.add_eos.unwrap_or(word_piece),
            add_sep: d.add_sep.unwrap_or(false),
            add_space_prefix: spm && add_space_prefix,
            strip_after_special: d.strip_after_special,
        })
    }

    /// The ids of `text`. Errors: [`Error::Invalid`] for a text longer than [`MAX_TEXT_BYTES`], or that the rules of its vocabulary
    /// make too long.
    pub fn encode(&self, text: &str, how: Encode) -> Result<Vec<u32>> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(Error::invalid(format!(
                "the text has {} bytes, at most {MAX_TEXT_BYTES} can be tokenized at once",
                text.len()
            )));
        }
        if let Model::Bpe(bpe) = &self.model
            && text.len() > MAX_TEXT_BYTES / LONGEST_COMPOSED
            && bpe.composed(text).len() > MAX_TEXT_BYTES
        {
            return Err(Error::invalid(format!(
                "in Unicode's composed form (NFC) the text has more than the {MAX_TEXT_BYTES} bytes that can be tokenized at once"
            )));
        }
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if how.bos && self.add_bos {
            ids.extend(self.bos);
        }
        let (mut first, mut sound) = (true, Ok(()));
        let (mut bpe_scratch, mut spm_scratch) = (bpe::Scratch::default(), spm::Scratch::default());
        let (mut words_scratch, mut unigram_scratch) =
            (wordpiece::Scratch::default(), unigram::Scratch::default());
        let strips = |id| self.strip_after_special && self.swallows_space(id);
        self.specials.split(&self.vocabulary, text, how.special, strips, |fragment| match fragment {
            Fragment::Token(id) => {
                ids.push(id);
                first = true;
            }
            Fragment::Text(text) => {
                match &self.model {
                    Model::Bpe(bpe) => bpe.encode(&self.vocabulary, text, &mut bpe_scratch, &mut ids),
                    Model::Spm(spm) => spm.encode(&self.vocabulary, text, first, &mut spm_scratch, &mut ids),
                    Model::Unigram(_) if sound.is_err() => {}
                    Model::Unigram(unigram) => {
                        sound = unigram.encode(&self.vocabulary, text, first, &mut unigram_scratch, &mut ids)
                    }
                    Model::WordPiece(words) => {
                        words.encode(&self.vocabulary, text, &mut words_scratch, &mut ids)
                    }
                }
                first = false;
            }
        });
        sound?;
        if how.bos {
            ids.extend(self.closing());
        }
        Ok(ids)
    }

    /// Whether `text` is tokenized as it stands, and not composed first.
    fn is_as_tokenized(&self, text: &str) -> bool {
        match &self.model {
            Model::Bpe(bpe) => bpe.is_composed(text),
            Model::Spm(_) | Model::Unigram(_) | Model::WordPiece(_) => true,
        }
    }

    /// The ids of two texts that are read together, as models that rank texts were trained on them: each with the token that
    /// closes texts behind it, and between them one more where the file says so. Errors as for [`Tokenizer::encode`].
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<Vec<u32>> {
        Ok(self.join(&self.encode(first, Encode::PLAIN)?, &self.encode(second, Encode::PLAIN)?))
    }

    /// As [`Tokenizer::encode_pair`], of texts that were encoded as they stand ([`Encode::PLAIN`]).
    pub fn join(&self, first: &[u32], second: &[u32]) -> Vec<u32> {
        let mut ids = Vec::with_capacity(first.len() + second.len() + 4);
        ids.extend(self.bos.filter(|_| self.add_bos));
        ids.extend(first);
        ids.extend(self.closing());
        ids.extend(self.eos.filter(|_| self.add_sep));
        ids.extend(second);
        ids.extend(self.closing());
        ids
    }

    /// The beginning of `text` that has more than `tokens` tokens, or all of it where it may have fewer: what does not fit a
    /// context need not be tokenized to its end to know that.
    ///
    /// No token is longer than the longest one, and white space may vanish, so `tokens + 1` times its bytes of other
    /// characters are enough. Where a text of any length may become one unknown token, or nothing, all of it is needed: such a text
    /// is bounded by [`MAX_TEXT_BYTES`] alone.
    pub fn beginning<'t>(&self, text: &'t str, tokens: usize) -> &'t str {
        if matches!(self.model, Model::WordPiece(_) | Model::Unigram(_)) {
            return text;
        }
        // Text that is composed first has a quarter of its bytes at least.
        let shrinks = if self.is_as_tokenized(text) { 1 } else { 4 };
        let enough = tokens.saturating_add(1).saturating_mul(self.longest).saturating_mul(shrinks);
        if text.len() <= enough {
            return text;
        }
        let mut seen = 0;
        for (at, c) in text.char_indices() {
            if seen >= enough {
                return &text[..at];
            }
            seen += if c.is_whitespace() { 0 } else { c.len_utf8() };
        }
        text
    }

    /// The ids of a rendered chat template: special text is meant, and BOS is added where the model wants it unless the template already wrote it.
    pub fn encode_prompt(&self, rendered: &str) -> Result<Vec<u32>> {
        let mut ids = self.encode(rendered, Encode::TEMPLATE)?;
        if let Some(bos) = self.bos
            && self.add_bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The text of `ids`; control tokens print nothing, bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut stream = self.stream();
        let mut text = String::new();
        for &id in ids {
            text.push_str(stream.push(id));
        }
        text.push_str(stream.finish());
        text
    }

    /// Decodes token by token.
    pub fn stream(&self) -> Detokenizer<'_> {
        Detokenizer::new(self)
    }

    /// The bytes a token prints; nothing for control tokens and ids that do not exist.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.print(self.printed_bytes(id, false), |part| bytes.extend_from_slice(part));
        bytes
    }

    /// A token's name as the file spells it, for showing; control tokens included.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.vocabulary.text(id)).into_owned()
    }

    /// What a token is for; [`Kind::Unused`] for an id that does not exist.
    pub fn kind(&self, id: u32) -> Kind {
        self.vocabulary.kind(id)
    }

    /// How many tokens there are: ids are below this.
    pub fn len(&self) -> usize {
        self.vocabulary.len()
    }

    /// Never: a vocabulary has tokens.
    pub fn is_empty(&self) -> bool {
        self.vocabulary.is_empty()
    }

    /// A hash of all tokens, their bytes and kinds in the order of their ids: two models whose hashes are equal speak the same
    /// ids, and one can draft for the other.
    pub fn digest(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for id in 0..self.len() as u32 {
            let text = self.vocabulary.text(id);
            hasher.update(&(text.len() as u32).to_le_bytes());
            hasher.update(&[self.vocabulary.kind(id) as u8]);
            hasher.update(text);
        }
        hasher.finalize()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether [`Encode::bos`] puts BOS in front.
    pub fn adds_bos(&self) -> bool {
        self.add_bos && self.bos.is_some()
    }

    /// The token that [`Encode::bos`] puts behind a text, if it does.
    pub fn closing(&self) -> Option<u32> {
        self.eos.filter(|_| self.add_eos)
    }

    /// The tokens after which a reply is over, ascending.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// Whether the first word's space is not part of the text.
    fn strips_first_space(&self) -> bool {
        self.add_space_prefix
    }

    /// Phi 3: all special tokens but these take the white space behind them.
    fn swallows_space(&self, id: u32) -> bool {
        !matches!(self.vocabulary.text(id), b"<unk>" | b"<s>" | b"<|endoftext|>")
    }

    /// What a token prints, spelled as in the file.
    fn printed_bytes(&self, id: u32, special: bool) -> Printed<'_> {
        let text = self.vocabulary.text(id);
        match self.vocabulary.kind(id) {
            Kind::Byte => spm::byte_of(text).map_or(Printed::Literal(text), Printed::Byte),
            Kind::Control | Kind::Unknown | Kind::Unused if !special => Printed::Literal(&[]),
            Kind::Normal if !matches!(self.model, Model::Bpe(_)) => Printed::Spelled(text),
            _ => Printed::Literal(text),
        }
    }

    /// Hands the bytes of `printed` to `out`, spaces as spaces.
    fn print(&self, printed: Printed<'_>, mut out: impl FnMut(&[u8])) {
        match printed {
            Printed::Literal(bytes) => out(bytes),
            Printed::Byte(byte) => out(&[byte]),
            Printed::Spelled(text) => {
                let space = "\u{2581}".as_bytes();
                let mut start = 0;
                while let Some(at) = text[start..].windows(space.len()).position(|window| window == space) {
                    out(&text[start..start + at]);
                    out(b" ");
                    start += at + space.len();
                }
                out(&text[start..]);
            }
        }
    }
}

/// The printed form of one token.
#[derive(Clone, Copy)]
enum Printed<'t> {
    Literal(&'t [u8]),
    Byte(u8),
    /// SentencePiece's spelling, U+2581 for spaces.
    Spelled(&'t [u8]),
}

impl Printed<'_> {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Literal([]) | Self::Spelled([]))
    }
}

/// The given ids and every control token whose text is known to end a turn.
fn stop_ids(vocabulary: &Vocabulary, given: [Option<u32>; 3]) -> Vec<u32> {
    let control = |text: &str| {
        vocabulary.ids(|kind| kind == Kind::Control).find(|&id| vocabulary.text(id) == text.as_bytes())
    };
    let mut ids: Vec<u32> = given.into_iter().flatten().collect();
    ids.extend(END_OF_TURN.iter().filter_map(|text| control(text)));
    // In the harmony format <|end|> ends a message and the reply goes on.
    if control("<|return|>").is_some() && control("<|call|>").is_some() {
        let end = control("<|end|>");
        ids.retain(|&id| Some(id) != end);
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}
