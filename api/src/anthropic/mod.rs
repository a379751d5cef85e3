//! Anthropic's API, as far as its clients use it for text and tools.

pub(crate) mod messages;
mod tools;
