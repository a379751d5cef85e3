//! Conversations that a node keeps for its owner: what one is, how it changes, and who stores it.
//!
//! A conversation is a tree of messages, so that an edited question or another answer is a branch beside the first one and
//! nothing is lost. The path from its `leaf` to the root is what the owner sees.
//!
//! ```text
//! q1 -- a1 -- q2 -- a2        the first questions and answers
//!          \- q2' -- a2'      q2 was edited: leaf is a2'
//! ```
//!
//! This crate knows no file. The server is handed a [`Conversations`] and asks it for the holder of the API's token only:
//! keys of other people do not reach these routes (`keys.rs`), and an API without a token keeps none.
//!
//! Bounds: [`MAX_MESSAGES`] messages of [`MAX_CONTENT`] characters with [`MAX_FILES`] attached texts each, [`MAX_BYTES`] for the
//! whole of it. What is beyond them is refused, and nothing is dropped to make room.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Messages of one conversation, those on other branches included.
pub const MAX_MESSAGES: usize = 4_096;
/// Characters of a message's words.
pub const MAX_CONTENT: usize = 2 << 20;
/// Texts attached to one message.
pub const MAX_FILES: usize = 8;
/// Characters of one attached text.
pub const MAX_FILE: usize = 256 << 10;
/// Bytes of a whole conversation as JSON.
pub const MAX_BYTES: usize = 16 << 20;
/// Characters of a system prompt.
pub const MAX_SYSTEM: usize = 64 << 10;
/// Bytes of what the page notes beside a message, and of settings, as JSON.
pub const MAX_NOTES: usize = 128 << 10;
/// Presets of one node.
pub const MAX_PRESETS: usize = 64;
/// Characters of a title.
pub const MAX_TITLE: usize = 120;
/// Characters of the words of a search.
pub const MAX_WORDS: usize = 256;
/// Characters that a title takes of the first question.
const TITLE_CHARS: usize = 56;
/// Characters around the first word found.
const EXCERPT_CHARS: usize = 96;

/// A text attached to a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The file's name, for showing.
    pub name: String,
    /// What is in it.
    pub text: String,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Its name within the conversation, chosen by the client: 1 to 32 of `a-z0-9`.
    pub id: String,
    /// The message that it follows; `None` at the beginning.
    pub parent: Option<String>,
    /// `user` or `assistant`.
    pub role: String,
    /// The words.
    pub content: String,
    /// Attached texts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<Attachment>,
    /// What the page notes: who computed an answer, or what was asked while it is under way.
    #[serde(default)]
    pub about: Map<String, Value>,
}

/// A conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// 32 hex digits.
    pub id: String,
    /// Its first words, or what the owner called it.
    pub title: String,
    /// Whether the owner called it so.
    pub named: bool,
    /// When it began, milliseconds since 1970.
    pub created_ms: u64,
    /// When it last changed, milliseconds since 1970.
    pub changed_ms: u64,
    /// The system prompt; empty for none.
    pub system: String,
    /// Sampling settings, as the fields of a request.
    pub sampling: Map<String, Value>,
    /// The last message that is shown.
    pub leaf: Option<String>,
    /// The messages, each after its parent.
    pub messages: Vec<Message>,
}

/// What a list says of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// 32 hex digits.
    pub id: String,
    /// Its first words, or what the owner called it.
    pub title: String,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// Milliseconds since 1970.
    pub changed_ms: u64,
    /// Messages, those on other branches included.
    pub messages: usize,
}

/// A conversation in which words were found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Which.
    #[serde(flatten)]
    pub summary: Summary,
    /// Words around the first place; empty where only the title has them.
    pub excerpt: String,
}

/// A system prompt and settings under a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preset {
    /// What it is called.
    pub name: String,
    /// The system prompt; empty for none.
    pub system: String,
    /// Sampling settings, as the fields of a request.
    pub sampling: Map<String, Value>,
}

/// What changes in a conversation; what is `None` stays. A conversation begins with its first message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// A name; an empty one brings the first words back.
    pub title: Option<String>,
    /// The system prompt.
    pub system: Option<String>,
    /// Sampling settings.
    pub sampling: Option<Map<String, Value>>,
    /// The last message that is shown.
    pub leaf: Option<String>,
    /// Messages that are new, or known and changed.
    pub messages: Vec<Message>,
}

/// Why conversations are not there or not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is none of that name.
    Unknown,
    /// The change makes no conversation; says why.
    Wrong(String),
    /// A bound is reached; says which and what to do.
    Full(String),
    /// It cannot be read or written; says why, without a path.
    Broken(String),
}

/// How much is kept and may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Room {
    /// Bytes on disk.
    pub bytes: u64,
    /// Most bytes on disk.
    pub most_bytes: u64,
    /// Most conversations.
    pub most: usize,
}

/// Who keeps conversations. Methods may wait for a disk.
pub trait Conversations: std::fmt::Debug + Send + Sync + 'static {
    /// All, the one changed last first, and the room they take.
    ///
    /// # Errors
    /// [`Refusal::Broken`].
    fn list(&self) -> Result<(Vec<Summary>, Room), Refusal>;

    /// Those that have every one of these words, the one changed last first.
    ///
    /// # Errors
    /// [`Refusal::Broken`].
    fn search(&self, words: &str) -> Result<Vec<Found>, Refusal>;

    /// One.
    ///
    /// # Errors
    /// [`Refusal::Unknown`], [`Refusal::Broken`].
    fn read(&self, id: &str) -> Result<Conversation, Refusal>;

    /// Changes one, or begins it with messages.
    ///
    /// # Errors
    /// Any, [`Refusal::Unknown`] for a change without messages of one that is not there; then it is as it was.
    fn change(&self, id: &str, change: Change) -> Result<Summary, Refusal>;

    /// Deletes one, its bytes on the disk included.
    ///
    /// # Errors
    /// [`Refusal::Unknown`], [`Refusal::Broken`].
    fn remove(&self, id: &str) -> Result<(), Refusal>;

    /// The presets, in the owner's order.
    ///
    /// # Errors
    /// [`Refusal::Broken`].
    fn presets(&self) -> Result<Vec<Preset>, Refusal>;

    /// Keeps these presets and no others.
    ///
    /// # Errors
    /// [`Refusal::Full`], [`Refusal::Broken`].
    fn keep_presets(&self, presets: Vec<Preset>) -> Result<(), Refusal>;
}

/// Whether this is a conversation's name.
pub fn is_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

impl Conversation {
    /// One that begins at `now_ms`.
    pub fn begin(id: &str, now_ms: u64) -> Self {
        Self { id: id.to_owned(), created_ms: now_ms, changed_ms: now_ms, ..Self::default() }
    }

    /// What a list says of it.
    pub fn summary(&self) -> Summary {
        Summary {
            id: self.id.clone(),
            title: self.title.clone(),
            created_ms: self.created_ms,
            changed_ms: self.changed_ms,
            messages: self.messages.len(),
        }
    }

    /// What it is after a change at `now_ms`.
    ///
    /// # Errors
    /// [`Refusal::Wrong`] for a message that follows none or changes its place, [`Refusal::Full`] for too many.
    pub fn changed(mut self, change: Change, now_ms: u64) -> Result<Self, Refusal> {
        for message in change.messages {
            let known = self.messages.iter_mut().find(|known| known.id == message.id);
            if let Some(known) = known {
                if (&known.parent, &known.role) != (&message.parent, &message.role) {
                    let why = format!("message {} stands elsewhere already; give it another id", message.id);
                    return Err(Refusal::Wrong(why));
                }
                *known = message;
                continue;
            }
            let follows = |parent: &String| self.messages.iter().any(|known| known.id == *parent);
            if !message.parent.as_ref().is_none_or(follows) {
                let why = format!("message {} follows one that is not here; send that one first", message.id);
                return Err(Refusal::Wrong(why));
            }
            if self.messages.len() >= MAX_MESSAGES {
                let why = format!("a conversation has at most {MAX_MESSAGES} messages; begin another one");
                return Err(Refusal::Full(why));
            }
            self.messages.push(message);
        }
        if let Some(leaf) = change.leaf {
            if !self.messages.iter().any(|message| message.id == leaf) {
                return Err(Refusal::Wrong("`leaf` is no message of the conversation".into()));
            }
            self.leaf = Some(leaf);
        }
        self.system = change.system.unwrap_or(self.system);
        self.sampling = change.sampling.unwrap_or(self.sampling);
        if let Some(title) = change.title {
            self.named = !title.trim().is_empty();
            self.title = title.trim().to_owned();
        }
        if !self.named {
            self.title = self.messages.first().map_or_else(String::new, |first| title_of(&first.content));
        }
        self.changed_ms = now_ms;
        Ok(self)
    }

    /// The place of the first of `words`, when all of them are in the title or in messages.
    pub fn finds(&self, words: &str) -> Option<Found> {
        let words: Vec<String> = words.split_whitespace().map(str::to_lowercase).collect();
        let title = self.title.to_lowercase();
        let texts = self.messages.iter().flat_map(|message| {
            std::iter::once(&message.content).chain(message.files.iter().map(|file| &file.text))
        });
        let mut missing = words.clone();
        missing.retain(|word| !title.contains(word));
        let mut excerpt = String::new();
        for text in texts {
            let lower = text.to_lowercase();
            if excerpt.is_empty()
                && let Some(word) = words.iter().find(|word| lower.contains(*word))
            {
                excerpt = excerpt_of(text, &lower, word);
            }
            missing.retain(|word| !lower.contains(word));
        }
        (missing.is_empty() && !words.is_empty()).then(|| Found { summary: self.summary(), excerpt })
    }
}

/// The first words of a text, on one line.
fn title_of(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.chars().count() <= TITLE_CHARS {
        return words;
    }
    let cut: String = words.chars().take(TITLE_CHARS).collect();
    // At a space, unless the first word alone is too long.
    let end = cut.rfind(' ').filter(|end| *end > 0).unwrap_or(cut.len());
    format!("{}…", cut[..end].trim_end_matches([',', '.', ';', ':']))
}

/// The words around the first place of `word`. Lower case may have other lengths: the place is counted in characters.
fn excerpt_of(text: &str, lower: &str, word: &str) -> String {
    let place = lower.find(word).map_or(0, |at| lower[..at].chars().count());
    let skip = place.saturating_sub(EXCERPT_CHARS / 3);
    let around: String = text.chars().skip(skip).take(EXCERPT_CHARS).collect();
    let folded = around.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{}{folded}", if skip > 0 { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: &str, parent: Option<&str>, role: &str, content: &str) -> Message {
        let (id, role, content) = (id.to_owned(), role.to_owned(), content.to_owned());
        Message { id, parent: parent.map(str::to_owned), role, content, files: Vec::new(), about: Map::new() }
    }

    fn of(messages: Vec<Message>) -> Change {
        Change { messages, ..Change::default() }
    }

    #[test]
    fn branches_stay_and_a_message_keeps_its_place() {
        let first = of(vec![message("q", None, "user", "one"), message("a", Some("q"), "assistant", "1")]);
        let whole = Conversation::begin("c", 5).changed(first, 6).unwrap();
        let edited = Change { leaf: Some("p".into()), ..of(vec![message("p", None, "user", "uno")]) };
        let whole = whole.changed(edited, 7).unwrap();
        assert_eq!((whole.messages.len(), whole.leaf.as_deref(), whole.changed_ms), (3, Some("p"), 7));
        let longer = whole.clone().changed(of(vec![message("a", Some("q"), "assistant", "1 2")]), 8).unwrap();
        assert_eq!(longer.messages[1].content, "1 2");
        for wrong in [
            of(vec![message("a", None, "assistant", "")]),
            of(vec![message("a", Some("q"), "user", "")]),
            of(vec![message("x", Some("nowhere"), "user", "")]),
            Change { leaf: Some("nowhere".into()), ..Change::default() },
        ] {
            assert!(matches!(whole.clone().changed(wrong, 9), Err(Refusal::Wrong(_))));
        }
    }

    #[test]
    fn messages_are_bounded() {
        let many = (0..MAX_MESSAGES).map(|n| message(&format!("{n}"), None, "user", "")).collect();
        let full = Conversation::begin("c", 0).changed(of(many), 0).unwrap();
        let more = full.changed(of(vec![message("more", None, "user", "")]), 0);
        assert!(matches!(more, Err(Refusal::Full(_))), "{more:?}");
    }

    #[test]
    fn the_first_words_are_the_title_until_it_is_named() {
        let long = "Why do  lighthouses\nblink, each in a rhythm of its own, and who decided that they do?";
        let begun =
            Conversation::begin("c", 0).changed(of(vec![message("q", None, "user", long)]), 0).unwrap();
        assert_eq!(begun.title, "Why do lighthouses blink, each in a rhythm of its own…");
        let named = Change { title: Some(" Lights ".into()), ..Change::default() };
        let named = begun.changed(named, 1).unwrap();
        assert_eq!((named.title.as_str(), named.named), ("Lights", true));
        let back = named.changed(Change { title: Some(String::new()), ..Change::default() }, 2).unwrap();
        assert!(back.title.starts_with("Why do") && !back.named);
        assert_eq!(title_of(&"x".repeat(80)).chars().count(), TITLE_CHARS + 1);
    }

    #[test]
    fn all_words_are_looked_for_in_any_case() {
        let said = vec![
            message("q", None, "user", "Über den Fuchs"),
            message("a", Some("q"), "assistant", "İstanbul has a lantern"),
        ];
        let whole = Conversation::begin("c", 0).changed(of(said), 0).unwrap();
        let excerpt = |words| whole.finds(words).map(|found| found.excerpt);
        assert_eq!(excerpt("ÜBER lantern").as_deref(), Some("Über den Fuchs"));
        assert_eq!(excerpt("LANTERN").as_deref(), Some("İstanbul has a lantern"));
        assert_eq!((excerpt("fuchs otter"), excerpt("  ")), (None, None));
    }
}
