//! What a template may make: texts, values in containers, depth. Everything that can make text longer than its input asks
//! the [`Budget`] first.

use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::{Error, ErrorKind, Value, value::ValueKind};

/// Containers nested deeper than this are refused when counted or printed.
pub(super) const MAX_DEPTH: usize = 100;

/// What one rendering may still produce.
pub struct Budget {
    /// Bytes of text made by functions, filters and methods.
    bytes: AtomicU64,
    /// Values looked at when containers are made.
    values: AtomicU64,
    /// The longest text, in bytes.
    pub longest: usize,
}

pub(super) fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

impl Budget {
    /// `bytes` of text in all, none longer than `longest`, and `values` in containers.
    pub fn new(bytes: u64, values: u64, longest: usize) -> Self {
        Self { bytes: AtomicU64::new(bytes), values: AtomicU64::new(values), longest }
    }

    fn take(from: &AtomicU64, amount: u64, what: &str) -> Result<(), Error> {
        from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(amount))
            .map(|_| ())
            .map_err(|_| invalid(format!("the template makes too {what}")))
    }

    /// Asks for a text of `len` bytes.
    pub fn text(&self, len: usize) -> Result<(), Error> {
        if len > self.longest {
            return Err(invalid(format!("a text of more than {} bytes", self.longest)));
        }
        Self::take(&self.bytes, len as u64, "much text")
    }

    /// Asks for `len` bytes of work, in any number of texts.
    pub fn bytes(&self, len: u64) -> Result<(), Error> {
        Self::take(&self.bytes, len, "much text")
    }

    /// Counts `value` with everything in it.
    pub fn container(&self, value: &Value) -> Result<(), Error> {
        self.count(value, 0)
    }

    fn count(&self, value: &Value, depth: usize) -> Result<(), Error> {
        if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
            return Ok(());
        }
        if depth > MAX_DEPTH {
            return Err(invalid("containers are nested too deep"));
        }
        Self::take(&self.values, value.len().unwrap_or(1) as u64 + 1, "many values")?;
        for key in value.try_iter()? {
            if value.kind() == ValueKind::Map {
                self.count(&value.get_item(&key)?, depth + 1)?;
            }
            self.count(&key, depth + 1)?;
        }
        Ok(())
    }
}

/// Text that is being written under a budget.
pub(super) struct Writer<'b> {
    text: String,
    budget: &'b Budget,
}

impl<'b> Writer<'b> {
    pub(super) fn new(budget: &'b Budget) -> Self {
        Self { text: String::new(), budget }
    }

    pub(super) fn push(&mut self, part: &str) -> Result<(), Error> {
        if self.text.len() + part.len() > self.budget.longest {
            return Err(invalid(format!("a text of more than {} bytes", self.budget.longest)));
        }
        self.text.push_str(part);
        Ok(())
    }

    pub(super) fn finish(self) -> Result<String, Error> {
        self.budget.text(self.text.len())?;
        Ok(self.text)
    }
}
